"""The connector in the scheduler's process: what is claimed, told to the workers, and held.

Upstream's methods first, or last, where the order matters; what is ours is contained.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from moriio_observed import config, upstream
from moriio_observed.claims import Claims
from moriio_observed.containment import Containment
from moriio_observed.lease import LEASE_KEY, Issuer
from moriio_observed.policy import Policy
from moriio_observed.telemetry.aggregate import Aggregate
from moriio_observed.telemetry.hold_recorder import HoldRecorder
from moriio_observed.telemetry.ways_out import WaysOut

__all__ = ["SchedulerSide"]


class SchedulerSide(upstream.MoRIIOConnector):
    """What ours does in front of upstream's scheduler side."""

    _known = False
    _news = False
    _aggregate: Aggregate
    _claims: Claims | None = None
    _issuer: Issuer | None = None
    # With traces: what P holds, and the trace contexts of what is read from the next step on.
    _holds: HoldRecorder | None = None
    _traceparents: dict[str, str] | None = None

    def _serve_scheduler(
        self,
        vllm_config: Any,
        settings: config.Settings,
        policy: Policy,
        kv_cache_config: Any,
        ways_out: WaysOut,
    ) -> None:
        """Be the scheduler's side of a decode or prefill engine in READ mode."""
        # One for each concern, so that none silences another.
        self._scheduling = Containment(self._aggregate, "expired sends are no longer counted.")
        if upstream.sends(self.connector_scheduler):
            extra_config = vllm_config.kv_transfer_config.kv_connector_extra_config
            self._issuer = Issuer()
            self._lease_s = upstream.deadlines(extra_config).defer_timeout
            self._holds = ways_out.holds(self._aggregate)
        if not upstream.reads(self.connector_scheduler):
            return
        claims = self._claims = Claims(
            self.connector_scheduler,
            self._aggregate,
            guarded=policy.guarded,
            waits=policy.waits,
            ranks=vllm_config.parallel_config.world_size,
            block_size=upstream.block_size(vllm_config, kv_cache_config),
            limit_s=settings.quarantine_limit_s,
        )
        self._claiming = Containment(
            self._aggregate,
            "phantom hits and stale reads are no longer told; with a guard every prompt is "
            "computed here.",
        )
        # What is being read is still looked after when a claim has gone wrong.
        self._holding = Containment(
            self._aggregate,
            "no more blocks are held; with a guard every prompt is computed here.",
            claims.give_up,
        )
        self._traceparents = {} if ways_out.traces else None
        self._notes = Containment(
            self._aggregate,
            "the worker no longer knows who takes part in a step; with a guard every prompt is "
            "computed here.",
            claims.lose_notes,
        )
        self._tracing = Containment(
            self._aggregate, "reads no longer stand in their request's trace.", signal="traces"
        )

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        """As upstream; blocks that a read may still write into can be kept from reuse."""
        super().bind_gpu_block_pool(gpu_block_pool)
        if self._claims is not None:
            self._claims.bind(gpu_block_pool)

    def on_new_request(self, request: Any) -> None:
        """As upstream; how old the prefill engine's answer is becomes known."""
        super().on_new_request(request)
        if self._claims is not None:
            self._claiming.tell(self._claims.arrived, request)

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """As upstream; with a guard, only what a read will fill, and the scheduler waits for it."""
        if self._claims is not None and self._claiming.tell(self._claims.steps_aside, request):
            # Asked again in the next step; meanwhile others have their turn.
            return None, False
        claimed: tuple[int | None, bool] = super().get_num_new_matched_tokens(
            request, num_computed_tokens
        )
        external, asynchronous = claimed
        if self._claims is None or asynchronous or not external:
            return claimed
        mine: tuple[int, bool] | None = self._claiming.tell(
            self._claims.claim, request, num_computed_tokens, external
        )
        if mine is None:
            # Computed here: slower, and right.
            mine = (0, False) if self._claims.guarded else (external, False)
        return mine

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> Any:
        """As upstream; what is claimed and will not be read, or too late, is counted."""
        claims = self._claims
        if claims is not None:
            self._claiming.tell(claims.before_allocation, request)
        result = super().update_state_after_alloc(request, blocks, num_external_tokens)
        if claims is not None:
            self._claiming.tell(claims.allocated, request, blocks, num_external_tokens)
        if self._traceparents is not None and num_external_tokens > 0:
            self._tracing.tell(self._note_trace, self._traceparents, request)
        return result

    def _note_trace(self, traceparents: dict[str, str], request: Any) -> None:
        if (traceparent := upstream.traceparent_of(request)) is not None:
            traceparents[request.request_id] = traceparent

    def request_finished(
        self, request: Any, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """As upstream; on P the answer carries how long it is good for."""
        self._before_finish(request)
        finished = super().request_finished(request, block_ids)
        return self._after_finish(request, block_ids, finished)

    if upstream.HAS_GROUPS:

        def request_finished_all_groups(
            self, request: Any, block_ids: Any
        ) -> tuple[bool, dict[str, Any] | None]:
            """As upstream; on P the answer carries how long it is good for."""
            self._before_finish(request)
            finished = super().request_finished_all_groups(request, block_ids)
            return self._after_finish(request, block_ids, finished)

    def _before_finish(self, request: Any) -> None:
        if self._claims is not None:
            self._claiming.tell(self._claims.before_release, request)

    def _after_finish(
        self, request: Any, block_ids: Any, finished: tuple[bool, dict[str, Any] | None]
    ) -> tuple[bool, dict[str, Any] | None]:
        if self._claims is not None:
            self._holding.tell(self._claims.finished, request, block_ids)
        held, params = finished
        if self._issuer is not None and held and params is not None:
            params[LEASE_KEY] = self._issuer.issue(self._lease_s)
        if self._holds is not None and held:
            self._scheduling.tell(self._note_hold, self._holds, request, block_ids)
        return finished

    @staticmethod
    def _note_hold(holds: HoldRecorder, request: Any, block_ids: Any) -> None:
        blocks = sum(1 for _ in upstream.flat(block_ids))
        holds.held(request.request_id, upstream.traceparent_of(request), blocks)

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        """As upstream; the worker also learns who takes part in the step."""
        metadata = super().build_connector_meta(scheduler_output)
        claims = self._claims
        if claims is not None:
            # A call that has nothing to do costs more here than the question.
            if claims.waits:
                self._claiming.tell(claims.scheduled, scheduler_output.num_scheduled_tokens)
            if claims.holds:
                self._holding.tell(claims.expire)
            self._notes.tell(self._attach_notes, claims, metadata, scheduler_output)
        return metadata

    def _attach_notes(self, claims: Claims, metadata: Any, scheduler_output: Any) -> None:
        if preempted := getattr(scheduler_output, "preempted_req_ids", None):
            claims.preempted(preempted)
        lease_left, held = claims.take_notes()
        traceparents: Mapping[str, str] = {}
        if self._traceparents:
            traceparents, self._traceparents = self._traceparents, {}
        upstream.attach_notes(
            metadata,
            scheduler_output,
            lease_left=lease_left,
            held=held,
            traceparents=traceparents,
        )

    def update_connector_output(self, connector_output: Any) -> None:
        """As upstream; blocks whose reads have ended are free, expired sends are counted."""
        if self._claims is not None:
            report = getattr(connector_output, "kv_connector_worker_meta", None)
            arrived = connector_output.finished_recving
            if report is not None or arrived:
                self._holding.tell(self._hear, self._claims, report, arrived or ())
            super().update_connector_output(connector_output)
            return
        overdue = None
        if self._known:
            overdue = self._scheduling.tell(self._overdue, connector_output)
        super().update_connector_output(connector_output)
        expired: set[str] = set()
        if overdue:
            expired = self._scheduling.tell(self._note_expired, overdue) or expired
        if self._holds is not None:
            self._holds.ended(expired, "expired")
            self._holds.ended(connector_output.finished_sending or (), "released")

    @staticmethod
    def _hear(claims: Claims, report: Any, arrived: Collection[str]) -> None:
        # Of a connector beside ours, or of no connector at all, it is none of ours.
        claims.hear(report if isinstance(report, upstream.WorkerReport) else None, arrived)

    def _overdue(self, connector_output: Any) -> set[str]:
        released = connector_output.finished_sending or ()
        return upstream.overdue_sends(self.connector_scheduler).difference(released)

    def _note_expired(self, overdue: set[str]) -> set[str]:
        expired = overdue.difference(upstream.held_sends(self.connector_scheduler))
        self._aggregate.counter("deferred_sends_expired_total").inc(len(expired))
        self._news = self._news or bool(expired)
        return expired
