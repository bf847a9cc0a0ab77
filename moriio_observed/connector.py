"""The connector that vLLM loads: upstream's MoRIIOConnector with its READ barrier observed.

Only wiring. What is known of upstream stands in ``upstream``, what a step is in ``observer.py``,
what is counted in ``telemetry``.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

from moriio_observed import __version__, config, upstream
from moriio_observed.barrier import Era, Outcome, Placement, Waiter, place
from moriio_observed.claims import Claims
from moriio_observed.containment import Containment
from moriio_observed.guard import Guard, Turn
from moriio_observed.lease import LEASE_KEY, Issuer
from moriio_observed.log import get_logger
from moriio_observed.observer import ReadObserver, StepNotes
from moriio_observed.policy import Policy
from moriio_observed.reads import ReadLedger
from moriio_observed.registration import register
from moriio_observed.release import check_guard, check_release
from moriio_observed.telemetry.aggregate import Aggregate, Payload, make_key
from moriio_observed.telemetry.catalog import CATALOG
from moriio_observed.telemetry.read_metrics import ReadMetrics
from moriio_observed.telemetry.vllm_stats import ObservedPromMetrics, ObservedStats

__all__ = ["ObservedMoRIIOConnector"]

logger = get_logger(__name__)

FLUSH_S = 1.0
"""A step with nothing to say sends what was counted at most this often, seconds."""


class _AlwaysArmed:
    """Stands in for an observer where upstream's layer hook must run untouched."""

    armed = True


class _NeverArmed:
    """Stands in for an observer where upstream's layer hook has nothing to do."""

    armed = False


class ObservedMoRIIOConnector(upstream.MoRIIOConnector):
    """MoRIIOConnector that says for every step whether attention ran on landed KV only."""

    # What was made but never initialised, as upstream's own tests do, steps as upstream's.
    _known = False
    _reads = False
    _hooks: upstream.Hooks | None = None
    _observer: ReadObserver | None = None
    _claims: Claims | None = None
    _issuer: Issuer | None = None
    _guard: Guard
    _runs_forward = True
    _turn: Turn | None = None
    _watch: Any = _AlwaysArmed

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        transfer_config = vllm_config.kv_transfer_config
        settings, seams = _checked_settings(transfer_config.kv_connector_extra_config)
        upstream.by_name.check(vllm_config)
        super().__init__(vllm_config, role, kv_cache_config)
        seams = seams.of(self)
        policy = upstream.policy(self, settings.guard, transfer_config, kv_cache_config)
        try:
            check_release(settings, seams)
            if upstream.is_read_consumer(transfer_config):
                check_guard(policy)
        except config.SettingsError:
            super().shutdown()
            raise
        self._known = seams.era is not Era.UNKNOWN
        self._flushed_at = time.monotonic()
        self._news = False
        self._watch = _NeverArmed
        worker = getattr(self, "connector_worker", None)
        if role is KVConnectorRole.SCHEDULER:
            self._aggregate = Aggregate(source="scheduler")
            self._reads = self._known and upstream.reads(self.connector_scheduler)
            if self._reads:
                self._claims = Claims(
                    self.connector_scheduler,
                    self._aggregate,
                    guarded=policy.guarded,
                    waits=policy.waits,
                    ranks=vllm_config.parallel_config.world_size,
                    block_size=upstream.block_size(vllm_config, kv_cache_config),
                    limit_s=settings.quarantine_limit_s,
                )
            elif self._known and upstream.sends(self.connector_scheduler):
                self._issuer = Issuer()
                timeouts = upstream.deadlines(transfer_config.kv_connector_extra_config)
                self._lease_s = timeouts.defer_timeout
        else:
            tp_rank = getattr(worker, "tp_rank", 0)
            self._aggregate = Aggregate(
                source=f"rank {getattr(worker, '_rank', tp_rank)}",
                tp_rank=str(tp_rank),
                wait_buckets=settings.wait_buckets,
            )
            self._reads = self._known and upstream.reads(worker)
            if self._known:
                self._hook(vllm_config, settings, seams, policy)
            else:
                self._say_installed(dict.fromkeys(seams.hooks, False))
                self._say_unprotected(vllm_config)
        if not self._known:
            self._stand_aside(seams)
        # One for each concern, so that none silences another.
        self._statistics = Containment(self._aggregate, "its gauges stand still.")
        self._peers = Containment(self._aggregate, "peer failures are no longer counted.")
        self._scheduling = Containment(self._aggregate, "expired sends are no longer counted.")
        self._claiming = Containment(
            self._aggregate,
            "phantom hits and stale reads are no longer told and no blocks are held; with a guard "
            "every prompt is computed here.",
            self._claims.give_up if self._claims is not None else None,
        )
        self._notes = Containment(
            self._aggregate, "the worker no longer knows who takes part in a step."
        )

    def _hook(
        self,
        vllm_config: Any,
        settings: config.Settings,
        seams: upstream.Seams,
        policy: Policy,
    ) -> None:
        transfer_config = vllm_config.kv_transfer_config
        placement = _placement(settings, seams.era, policy)
        hooks = self._hooks = upstream.Hooks(self.connector_worker, seams, self._aggregate)
        self._target_layers = upstream.layer_count(vllm_config)
        self._full_graphs = _full_graphs_protected(vllm_config, Placement.UPSTREAM, seams.era)
        if not self._reads:
            hooks.install(None)
        else:
            timeouts = upstream.deadlines(transfer_config.kv_connector_extra_config)
            ledger = ReadLedger(settings.quarantine_limit_s)
            self._guard = Guard(
                waits=policy.waits,
                deadline_s=timeouts.transfer_timeout,
                watch_s=settings.quarantine_limit_s,
            )
            self._observer = self._watch = ReadObserver(
                placement=placement,
                era=seams.era,
                ledger=ledger,
                waiter=Waiter(ledger, timeouts.transfer_timeout, wait_all=hooks.wait_all()),
                metrics=ReadMetrics(
                    self._aggregate,
                    max_remotes=settings.max_remotes,
                    per_layer=settings.per_layer,
                ),
                action=policy.action,
            )
            hooks.install(self._observer, self._guard, fails_steps=policy.fails_steps)
            warning = upstream.effective_warning(placement, seams.era, vllm_config)
            if warning:
                logger.warning(warning)
            logger.info(
                "moriio_observed %s: barrier %r, so waits stand %s; vLLM's own wait for %s",
                __version__,
                settings.barrier,
                placement.where,
                seams.era.value,
            )
            logger.info(policy.sentence(timeouts.transfer_timeout))
        self._say_installed(hooks.installed())

    def _stand_aside(self, seams: upstream.Seams) -> None:
        """Let vLLM reach upstream's own methods, whatever they have become."""
        self._watch = _AlwaysArmed
        for name in upstream.OVERRIDDEN:
            if (method := getattr(super(), name, None)) is not None:
                setattr(self, name, method)
        _say_unknown("; ".join(seams.missing))

    def _say_installed(self, hooks: Mapping[str, bool]) -> None:
        for hook, in_force in hooks.items():
            self._aggregate.gauge("hook_installed", hook=hook).set(int(in_force))

    def _say_unprotected(self, vllm_config: Any) -> None:
        """Claim no protection of FULL graphs: the API server has not seen what this worker has."""
        reads = upstream.is_read_consumer(vllm_config.kv_transfer_config)
        if reads and upstream.cudagraph_mode(vllm_config)[1]:
            self._aggregate.gauge("full_graph_protected").set(0)

    @classmethod
    def requires_piecewise_for_cudagraph(
        cls, extra_config: dict[str, Any], *args: Any, **kwargs: Any
    ) -> bool:
        """As upstream; where FULL graphs are configured vLLM asks before it loads a model.

        Raises:
            SettingsError: A setting is bad: better now than minutes later.
        """
        _checked_settings(extra_config)
        return bool(super().requires_piecewise_for_cudagraph(extra_config, *args, **kwargs))

    # The scheduler side.

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
        return result

    def request_finished(
        self, request: Any, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """As upstream; on P the answer carries how long it is good for."""
        return self._after_finish(request, super().request_finished(request, block_ids))

    if upstream.HAS_GROUPS:

        def request_finished_all_groups(
            self, request: Any, block_ids: Any
        ) -> tuple[bool, dict[str, Any] | None]:
            """As upstream; on P the answer carries how long it is good for."""
            finished = super().request_finished_all_groups(request, block_ids)
            return self._after_finish(request, finished)

    def _after_finish(
        self, request: Any, finished: tuple[bool, dict[str, Any] | None]
    ) -> tuple[bool, dict[str, Any] | None]:
        if self._claims is not None:
            self._claiming.tell(self._claims.finished, request)
        held, params = finished
        if self._issuer is not None and held and params is not None:
            params[LEASE_KEY] = self._issuer.issue(self._lease_s)
        return finished

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        """As upstream; the worker also learns who takes part in the step."""
        metadata = super().build_connector_meta(scheduler_output)
        if self._claims is not None:
            self._notes.tell(self._attach_notes, self._claims, metadata, scheduler_output)
        return metadata

    def _attach_notes(self, claims: Claims, metadata: Any, scheduler_output: Any) -> None:
        claims.preempted(getattr(scheduler_output, "preempted_req_ids", None) or ())
        lease_left, held = claims.take_notes()
        upstream.attach_notes(metadata, scheduler_output, lease_left=lease_left, held=held)

    def update_connector_output(self, connector_output: Any) -> None:
        """As upstream; blocks whose reads have ended are free, expired sends are counted."""
        if self._claims is not None:
            self._claiming.tell(
                self._claims.told,
                upstream.WorkerReport.of(connector_output),
                connector_output.finished_recving or (),
            )
        overdue = None
        if self._known:
            overdue = self._scheduling.tell(self._overdue, connector_output)
        super().update_connector_output(connector_output)
        if overdue:
            self._scheduling.tell(self._note_expired, overdue)

    def _overdue(self, connector_output: Any) -> set[str]:
        released = connector_output.finished_sending or ()
        return upstream.overdue_sends(self.connector_scheduler).difference(released)

    def _note_expired(self, overdue: set[str]) -> None:
        expired = overdue.difference(upstream.held_sends(self.connector_scheduler))
        self._aggregate.counter("deferred_sends_expired_total").inc(len(expired))
        self._news = self._news or bool(expired)

    # The worker side, in the order of a step.

    def register_kv_caches(self, kv_caches: Any) -> None:
        """As upstream; layers whose hook cannot be relied on become known."""
        super().register_kv_caches(kv_caches)
        if self._observer is not None and self._hooks is not None:
            layers = self._hooks.tell(self._hooks.hookless_layers, self._target_layers)
            self._observer.hookless = frozenset(layers or ())

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        """As upstream; a step begins.

        Raises:
            TransferError: Where upstream fails the step rather than run its forward.
        """
        super().bind_connector_metadata(connector_metadata)
        hooks, observer = self._hooks, self._observer
        if observer is None or hooks is None:
            return
        notes = upstream.read_notes(connector_metadata)
        self._runs_forward = notes.runs_forward
        self._guard.reading(upstream.reading_from(connector_metadata), notes.lease_left)
        if hooks.broken:
            return

        def begin() -> Outcome | None:
            return observer.begin_step(notes, upstream.bound_mode(notes))

        self._wait_or_step_back("between", hooks, observer, begin)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """As upstream; before the forward, what no layer hook will wait for is waited for.

        Raises:
            TransferError: Where upstream fails the step rather than run its forward.
        """
        hooks, observer = self._hooks, self._observer
        if observer is None or hooks is None or hooks.broken:
            super().start_load_kv(forward_context, **kwargs)
            return
        metadata = getattr(self, "_connector_metadata", None)
        notes = hooks.tell(upstream.read_notes, metadata) or StepNotes()
        if notes.loads_before_forward is False:
            hooks.tell(observer.end_forward)
            hooks.after_forward = True
            try:
                super().start_load_kv(forward_context, **kwargs)
            finally:
                hooks.after_forward = False
            return
        super().start_load_kv(forward_context, **kwargs)
        if not hooks.broken:
            self._wait_or_step_back(
                "step",
                hooks,
                observer,
                lambda: observer.before_forward(
                    upstream.runtime_mode(forward_context, kwargs, notes)
                ),
            )

    def _wait_or_step_back(
        self,
        site: str,
        hooks: upstream.Hooks,
        observer: ReadObserver,
        wait: Callable[[], Outcome | None],
    ) -> None:
        """Wait before the forward; if our own wait fails, wait without any bookkeeping."""
        try:
            outcome = wait()
        except Exception as error:  # noqa: BLE001  (whatever it is, serving goes on)
            hooks.containment.step_back(error)
            if observer.placement.waits:
                hooks.wait_for_everything(site)
            return
        if observer.placement.waits:
            hooks.refuse_incomplete(site, outcome)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Wait for one layer's reads; nothing but one look where none is in flight.

        Raises:
            TransferError: Where upstream fails the step rather than run its forward.
        """
        if self._watch.armed:
            try:
                self._at_layer(layer_name)
            except upstream.TransferError:
                if self._observer is not None:
                    self._observer.fail_step()
                raise

    def _at_layer(self, layer_name: str) -> None:
        hooks, observer = self._hooks, self._observer
        if observer is None or hooks is None or hooks.broken:
            super().wait_for_layer_load(layer_name)
            return
        if observer.placement is Placement.UPSTREAM:
            started = time.perf_counter()
            try:
                super().wait_for_layer_load(layer_name)
            finally:
                waited_s = time.perf_counter() - started
                hooks.tell(observer.upstream_waited_at_layer, layer_name, waited_s)
            return
        try:
            outcome = observer.at_layer(layer_name)
        except Exception as error:  # noqa: BLE001  (whatever it is, serving goes on)
            hooks.containment.step_back(error)
            hooks.wait_for_everything("layer")
            return
        hooks.refuse_incomplete("layer", outcome)

    def get_finished(self, finished_req_ids: set[str]) -> Any:
        """As upstream; also the requests that the scheduler need not wait for any longer."""
        self._finish(finished_req_ids)
        sent, received = super().get_finished(finished_req_ids)
        arrived = self._take_turn()
        return sent, {*(received or ()), *arrived} if arrived else received

    # The base's calls `get_finished`; from 0.33 upstream has its own, which does not.
    if upstream.HAS_TRANSFER_RESULTS:

        def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
            """As upstream; also the requests that the scheduler need not wait for any longer."""
            self._finish(finished_req_ids)
            results = super().get_transfer_results(finished_req_ids)
            if arrived := self._take_turn():
                results.finished_recving = {*(results.finished_recving or ()), *arrived}
            return results

    def _finish(self, request_ids: set[str]) -> None:
        if request_ids and self._observer is not None and self._hooks is not None:
            self._guard.finished(request_ids)
            self._hooks.tell(self._observer.finish, request_ids)

    def _take_turn(self) -> set[str]:
        """Let the guard look at what has landed; return for whom the scheduler need not wait.

        It decides what is served, so an error of its own is not contained.
        """
        hooks, observer = self._hooks, self._observer
        if observer is None or hooks is None or not self._guard:
            return set()
        if not self._runs_forward:
            self._guard.doze()
        turn = self._turn = self._guard.turn()
        if turn.landed:
            hooks.tell(observer.let_run, turn.landed)
        for given_up in turn.given_up:
            hooks.tell(observer.given_up, given_up.request_id, given_up.cause, given_up.layers)
            if given_up.in_flight:
                hooks.abandon(given_up.request_id)
        return turn.arrived

    def get_block_ids_with_load_errors(self) -> Any:
        """As upstream, and the blocks of requests the guard gives up; they are counted."""
        blocks = super().get_block_ids_with_load_errors()
        if self._turn is not None and self._guard.waits:
            # Upstream's come with the first failure, when others of the request are in flight.
            blocks = self._turn.invalid
        if blocks and self._observer is not None and self._hooks is not None:
            self._hooks.tell(self._observer.metrics.load_errors, len(blocks))
        return blocks

    def build_connector_worker_meta(self) -> upstream.WorkerReport | None:
        """What the scheduler side must know of the reads' ends."""
        turn, self._turn = self._turn, None
        broken = self._hooks is not None and self._hooks.broken
        if not broken and (turn is None or not turn.settled):
            return None
        return upstream.WorkerReport(Counter(turn.settled if turn else ()), broken)

    def shutdown(self) -> None:
        """As upstream; the hooks are taken away."""
        try:
            super().shutdown()
        finally:
            if self._hooks is not None:
                self._hooks.uninstall()
            self._watch, self._observer = _AlwaysArmed, None

    # The way out.

    def get_kv_connector_stats(self) -> ObservedStats | None:
        """What was counted since the last step that had something to say, else None."""
        delta: Payload | None = self._statistics.tell(self._take_delta)
        if self._statistics.broken:
            with contextlib.suppress(Exception):
                delta = self._aggregate.delta()
        return None if delta is None else ObservedStats(data=delta)

    def _step_failed(self) -> bool:
        observer, hooks = self._observer, self._hooks
        return (
            observer is not None and hooks is not None and not hooks.broken and observer.step_failed
        )

    def _take_delta(self) -> Payload | None:
        if self._step_failed():
            # Runner V1 asks even then, and drops the answer: it is kept for the next step.
            return None
        if self._hooks is not None:
            for reason in self._peers.tell(self._hooks.peer_failures) or ():
                self._aggregate.counter("peer_failures_total", reason=reason).inc()
                self._news = True
            # Cleared before the counters are read, so that what comes meanwhile is told next time.
            news, self._hooks.news = self._hooks.news, False
            self._news = self._news or news
        if self._observer is not None:
            self._news = self._observer.take_news() or self._news
        if self._claims is not None:
            news, self._claims.news = self._claims.news, False
            self._news = self._news or news
        now = time.monotonic()
        if not self._news and now - self._flushed_at < FLUSH_S:
            return None
        self._news = False
        self._flushed_at = now
        if self._hooks is not None and self._observer is not None:
            self._set_gauges(self._hooks, self._observer)
        if self._known and self.connector_scheduler is not None and not self._reads:
            held = upstream.deferred_sends(self.connector_scheduler)
            self._aggregate.gauge("deferred_sends").set(held)
        return self._aggregate.delta()

    def _set_gauges(self, hooks: upstream.Hooks, observer: ReadObserver) -> None:
        if hooks.broken:
            # Nobody knows any more what is in flight.
            observer.metrics.in_flight(math.nan, math.nan)
            self._say_installed(hooks.installed())
            if self._full_graphs is not None:
                self._aggregate.gauge("full_graph_protected").set(int(self._full_graphs))
        else:
            observer.gauge()

    @classmethod
    def build_kv_connector_stats(cls, data: Payload | None = None) -> ObservedStats:
        """Make statistics of what came over the wire."""
        return ObservedStats() if data is None else ObservedStats(data=data)

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: Any,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> ObservedPromMetrics:
        """Make the metrics of the API server's /metrics, all zero-initialised."""
        settings, _ = _checked_settings(vllm_config.kv_transfer_config.kv_connector_extra_config)
        return ObservedPromMetrics(
            vllm_config,
            metric_types,
            labelnames,
            per_engine_labelvalues,
            settings=settings,
            layers=upstream.layer_count(vllm_config),
            tp_ranks=vllm_config.parallel_config.tensor_parallel_size,
            static=_static_gauges(vllm_config, settings),
        )


@functools.cache
def _say_unknown(missing: str) -> None:
    """Once in a process, however many connectors are built in it."""
    logger.error(
        "This vLLM's MoRIIO connector is not one that moriio_observed knows (%s); it runs as "
        "upstream wrote it and its reads are not observed.",
        missing,
    )


def _checked_settings(
    extra_config: Mapping[str, Any],
) -> tuple[config.Settings, upstream.Seams]:
    settings = config.of_connector(extra_config, os.environ)
    seams = upstream.Seams.detect()
    check_release(settings, seams)
    return settings, seams


def _placement(settings: config.Settings, era: Era, policy: Policy) -> Placement:
    """Where reads are waited for: a guard leaves a barrier nothing to wait for, or all."""
    if policy.waits:
        return Placement.GATE
    return Placement.STEP if policy.fails_steps else place(settings.barrier, era)


def _full_graphs_protected(vllm_config: Any, placement: Placement, era: Era) -> bool | None:
    """Whether a barrier protects FULL graph steps; None where no FULL graph is configured."""
    if not upstream.cudagraph_mode(vllm_config)[1]:
        return None
    return placement.protects_full_graphs(era, hidden_full=upstream.hides_full(vllm_config))


def _static_gauges(vllm_config: Any, settings: config.Settings) -> Mapping[str, float]:
    """The gauges that follow from the configuration, by payload key."""
    transfer_config = vllm_config.kv_transfer_config
    era = upstream.Seams.detect().era
    placement = Placement.GATE if settings.guard != "report" else place(settings.barrier, era)
    timeouts = upstream.deadlines(transfer_config.kv_connector_extra_config)
    graphs, _ = upstream.cudagraph_mode(vllm_config)
    info = {
        "role": str(transfer_config.kv_role),
        "mode": upstream.mode_name(transfer_config),
        "cudagraph_mode": graphs,
        "barrier": settings.barrier,
        "guard": settings.guard,
        "vllm_version": upstream.vllm_version(),
        "mori_version": upstream.mori_version(),
        "version": __version__,
    }
    gauges = {
        make_key("config_info", tuple(info[name] for name in CATALOG["config_info"].labels)): 1.0,
        "transfer_timeout_seconds": timeouts.transfer_timeout,
        "recv_abort_timeout_seconds": timeouts.recv_abort_timeout,
        "defer_timeout_seconds": timeouts.defer_timeout,
    }
    protected = _full_graphs_protected(vllm_config, placement, era)
    if protected is not None and upstream.is_read_consumer(transfer_config):
        gauges["full_graph_protected"] = float(protected)
    return gauges


MoRIIOConnector = ObservedMoRIIOConnector
"""For whoever keeps upstream's name and only adds our module path: ours is what they mean."""

register()
