"""The hooks on one worker and its wrapper: what they tell, and how they are put there and taken."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from moriio_observed.barrier import Era, Outcome, Placement
from moriio_observed.containment import Containment
from moriio_observed.guard import Guard
from moriio_observed.log import get_logger
from moriio_observed.observer import ReadObserver
from moriio_observed.telemetry.aggregate import Aggregate
from moriio_observed.telemetry.catalog import PEER_FAILURE_REASONS
from moriio_observed.upstream.facts import layer_index, reads
from moriio_observed.upstream.mixins import ObservedProducer, ObservedWorker, ObservedWrapper
from moriio_observed.upstream.moriio import TransferError
from moriio_observed.upstream.posting import Posting, each_status
from moriio_observed.upstream.seams import Seams

logger = get_logger(__name__)

_BY_REQUEST = (
    "_recving_transfers",
    "_recving_transfers_start",
    "_recving_transfers_callback_addr",
    "_recving_local_blocks",
)
"""What upstream's worker keeps of a request that reads; the last from 0.31."""

_PEER_FAILURES_PER_STEP = 16
_FALLBACK_POLL_S = 0.001


class Hooks:
    """The hooks on one worker and its wrapper; `install` and `uninstall` are symmetric.

    Args:
        worker: Upstream's ``MoRIIOConnectorWorker``.
        seams: What this release offers.
        aggregate: Where what happens outside forward steps is counted.

    Attributes:
        news: Whether something was counted outside the forward steps that should leave with the
            next one.
        containment: Calls the observer; once it is broken, upstream's own barrier is in force.
        after_forward: Whether loads are being started after the forward has ended. What upstream
            waits for then is left to it.
        posted: Where reads are noted, see `Posting`, while upstream posts those of a request.
        watch: The observer; None where nothing is read.
        cleans_up_nothing: Whether cleaning up does nothing while no transfer is tracked.
    """

    def __init__(self, worker: Any, seams: Seams, aggregate: Aggregate) -> None:
        self.worker = worker
        self.seams = seams
        self.containment = Containment(
            aggregate,
            "upstream's own READ barrier is in force and reads are no longer observed.",
            self._give_up,
        )
        self.tell = self.containment.tell
        self.news = False
        self.after_forward = False
        self.posted: list[tuple[Any, Any]] | None = None
        self.watch: ReadObserver | None = None
        self.cleans_up_nothing = seams.cleans_up_transfers_only(worker)
        self._aggregate = aggregate
        self._guard: Guard | None = None
        # Whether no request is run before its reads have landed.
        self._guarded = False
        self._fails_steps = False
        self._tracked: dict[str, Any] = {}
        self._installed: list[tuple[Any, type]] = []
        # In READ mode each of these is moved by one thread only.
        self._send_queue_full = aggregate.counter("send_queue_full_total")
        self._notify_failures = aggregate.counter("notify_failures_total")
        self._releases = aggregate.counter("releases_total")
        self._handshakes = aggregate.histogram("handshake_seconds")
        self._handshake_failures = aggregate.counter("handshake_failures_total")

    @property
    def observer(self) -> ReadObserver:
        """The observer of a decode worker in READ mode."""
        if self.watch is None:
            raise RuntimeError("only a decode worker in READ mode has an observer")
        return self.watch

    @property
    def broken(self) -> bool:
        """Whether an error of ours made us step back: upstream's own barrier is in force."""
        return self.containment.broken

    @property
    def bypass(self) -> bool:
        """Whether upstream's own waits are ours to do, or nobody's."""
        if self._guarded:
            return True
        if self.watch is None or self.containment.broken:
            return False
        placement = self.watch.placement
        return placement.ours and not (self.after_forward and placement.waits)

    def install(
        self,
        observer: ReadObserver | None,
        guard: Guard | None = None,
        *,
        fails_steps: bool = False,
    ) -> None:
        """Put the hooks in front of upstream's methods; a second call does nothing.

        Args:
            observer: Of a decode worker in READ mode.
            guard: Who decides whether its requests are run.
            fails_steps: Whether a step must fail whose reads have not all landed.
        """
        if self._installed:
            return
        self.watch = observer
        self._guard = guard
        self._guarded = guard is not None and guard.waits
        self._fails_steps = fails_steps
        if self._guarded:
            self.containment.consequence = (
                "reads are no longer observed; the guard still goes by them, and further prompts "
                "are computed here."
            )
        self._put(self.worker, ObservedWorker if observer is not None else ObservedProducer)
        self._put(self.worker.moriio_wrapper, ObservedWrapper)

    def uninstall(self) -> None:
        """Take the hooks away: upstream's objects are as they were built."""
        for target, base in self._installed:
            target.__class__ = base
            del target._moriio_observed
        self._installed.clear()
        self.watch = self._guard = None
        self._guarded = False

    def _put(self, target: Any, mixin: type) -> None:
        base = type(target)
        if issubclass(base, (ObservedProducer, ObservedWrapper)):
            raise ValueError(f"a {base.__name__} is hooked already")  # noqa: TRY004  (not a type error)
        # Before the class: another thread may call a hook at any moment.
        target._moriio_observed = self
        target.__class__ = type(base.__name__, (mixin, base), {})
        self._installed.append((target, base))

    def _give_up(self) -> None:
        """Let every layer's hook reach upstream's again, unless nothing is run on unlanded KV."""
        if self.watch is None:
            return
        self.watch.idle = False
        if not self._guarded:
            self.watch.armed = True

    # Called by the mixins.

    def start_posting(self) -> Posting:
        """Upstream is about to post the reads of one request."""
        posting = Posting(time.perf_counter())
        self.posted = posting.posted
        if self.watch is not None and self.watch.idle:
            self.tell(self._wake, posting.started_at)
        return posting

    def end_posting(self, posting: Posting, read_blocks: Any, args: Any, kwargs: Any) -> None:
        """It has posted them, or failed to."""
        self.posted = None
        post_s = time.perf_counter() - posting.started_at
        # First: an error of ours in what follows would leave them uncounted.
        self._see(self._count_rejected, posting)
        found = self._see(self._find, posting, read_blocks, args, kwargs)
        if found is not None:
            self.tell(self.observer.posted, *found, posting.started_at, post_s)

    def posted_elsewhere(self) -> None:
        """A read was posted, and nobody has said for which request."""
        if self.watch is not None and not self.containment.broken:
            self.containment.step_back(RuntimeError("vLLM posts reads outside _read_blocks"))

    def _wake(self, at: float) -> None:
        self.observer.wake(at, after_forward=self.after_forward)

    def _find(
        self,
        posting: Posting,
        read_blocks: Callable[..., Any],
        args: tuple[Any, ...],
        call: dict[str, Any],
    ) -> tuple[str, str, list[tuple[int, str, Any]], int] | None:
        """Find what was posted, and tell the guard.

        Returns the request, the remote engine, the reads and their bytes; None if nothing was.
        """
        if args:
            call = inspect.signature(read_blocks).bind(*args, **call).arguments
        request_id = call["request_id"]
        with self.worker.moriio_wrapper.lock:
            by_layer = dict(self.worker._recving_transfers.get(request_id) or {})
        found, nbytes = posting.reads_in(by_layer)
        if not by_layer:
            return None
        self._tracked[request_id] = self.worker._recving_transfers_callback_addr.get(request_id)
        if self._guard is not None:
            self._guard.posted(request_id, [(layer, status) for layer, _, status in found])
        return request_id, str(call["dst_engine_id"]), found, nbytes

    def _see(self, event: Callable[..., Any], *args: Any) -> Any:
        """Call what a guard goes by: as `tell`, but also after an error of ours."""
        if not self._guarded:
            return self.tell(event, *args)
        try:
            return event(*args)
        except Exception as error:  # noqa: BLE001  (what the guard cannot see it gives up)
            self.containment.step_back(error)
            return None

    def _count_rejected(self, posting: Posting) -> None:
        if rejected := posting.rejected:
            self._send_queue_full.inc(rejected)

    def upstream_covers(self, statuses: Any) -> None:
        """Upstream starts a wait for these statuses."""
        if self.watch is not None and statuses is not None:
            self.tell(self.watch.upstream_covers, statuses)

    def before_clean_up(self) -> int:
        """The forward has ended; upstream is about to drop what is terminal or too old."""
        self.tell(self.observer.end_forward)
        return len(self.worker._recving_transfers)

    def after_clean_up(self, before: int) -> None:
        """Upstream may have dropped requests; `before` is how many it tracked."""
        dropped: dict[str, Any] = {}
        if len(self.worker._recving_transfers) != before:
            dropped = self._see(self._take_dropped) or {}
        self.tell(self._settle, dropped)

    def _take_dropped(self) -> dict[str, Any]:
        """Forget the requests that upstream has dropped, and tell the guard; gives their P."""
        live = self.worker._recving_transfers
        dropped = {
            request_id: self._tracked.pop(request_id)
            for request_id in list(self._tracked)
            if request_id not in live
        }
        if self._guard is not None:
            self._guard.dropped(dropped)
        return dropped

    def _settle(self, dropped: Mapping[str, Any]) -> None:
        for request_id in self.observer.settle(dropped, recovers=self._recovers):
            if self._guard is not None:
                self._guard.released(request_id)
            # Unlike after a completion or a failure, upstream tells P nothing.
            self._release(dropped[request_id])

    @property
    def _recovers(self) -> bool:
        """Whether requests whose reads did not land are reported to vLLM, by it or by the guard."""
        if self._guarded:
            return True
        return self.seams.load_errors and not getattr(self.worker, "_has_mamba", False)

    def abandon(self, request_id: str) -> None:
        """Have upstream wait no more for a request's reads; P gets its blocks back."""
        worker = self.worker
        address = self._tracked.pop(request_id, None)
        with worker.moriio_wrapper.lock:
            for name in _BY_REQUEST:
                getattr(worker, name, {}).pop(request_id, None)
        self._release(address)
        self.tell(partial(self.observer.settle, recovers=True), [request_id])

    def _release(self, address: Any) -> None:
        """Tell P, as upstream does, that a transfer's blocks are not read any more."""
        if address is None:
            return
        host, ports, transfer_id = address
        worker = self.worker
        with worker.moriio_wrapper.lock:
            for port in (ports,) if isinstance(ports, str) else ports:
                try:
                    worker.moriio_wrapper.send_notify(
                        transfer_id,
                        host,
                        port,
                        message_type="release",
                        message_fields={"consumer_tp_size": worker.world_size},
                    )
                except Exception:
                    # Counted by the hook on it; P's blocks then wait out their timeout.
                    logger.exception("Cannot release transfer %s on %s", transfer_id, host)

    def drain_upstream_lists(self) -> None:
        """Forget what upstream's own step barrier would have waited for."""
        self.worker._reads_issued_this_step = []
        if hasattr(self.worker, "_mamba_reads_this_step"):
            self.worker._mamba_reads_this_step = []

    @contextmanager
    def handshake(self) -> Iterator[None]:
        """Around one handshake with a prefill rank; runs on upstream's handshake thread."""
        started = time.perf_counter()
        try:
            yield
        except Exception:
            self._handshake_failures.inc()
            self.news = True
            raise
        self._handshakes.observe(time.perf_counter() - started)
        self.news = True

    def notify_failed(self) -> None:
        """A release could not be sent."""
        self._notify_failures.inc()
        self.news = True

    def released(self) -> None:
        """A decode engine has released blocks; runs on upstream's notify thread."""
        self._releases.inc()
        self.news = True

    # Called by the connector.

    def hookless_layers(self, target_layers: int) -> tuple[str, ...]:
        """Layers whose hook vLLM never calls, or not before the target's forward has ended.

        Recurrent state has none; a draft model's layers, numbered behind the target's or named
        ``draft_model.``, may run after the target's forward has been judged.

        Args:
            target_layers: How many layers the target model has, 0 if unknown.
        """
        is_mamba = getattr(self.worker, "_is_mamba_layer", None)
        return tuple(
            name
            for position, name in enumerate(self.worker.kv_caches)
            if (is_mamba is not None and is_mamba(name))
            or name.startswith("draft_model.")
            or 0 < target_layers <= layer_index(name, position)
        )

    def installed(self) -> dict[str, bool]:
        """Each hook that this worker should have, and whether it is in force."""
        wanted = self.seams.hooks if reads(self.worker) else self.seams.producer_hooks
        in_force = bool(self._installed) and not self.broken
        return {name: there and in_force for name, there in wanted.items()}

    def wait_all(self) -> Any:
        """``IOEngine.wait_all`` of the mori in use, or None."""
        return getattr(self.worker.moriio_engine, "wait_all", None)

    def peer_failures(self) -> list[str]:
        """The reasons of peer failures mori has seen since the last call."""
        pop = getattr(self.worker.moriio_engine, "pop_peer_failure", None)
        reasons: list[str] = []
        if pop is None:
            return reasons
        while len(reasons) < _PEER_FAILURES_PER_STEP:
            event = pop()
            if event is None:
                break
            name = str(getattr(event.reason, "name", event.reason))
            reasons.append(name if name in PEER_FAILURE_REASONS else "UNKNOWN")
            logger.warning(
                "mori reports a peer failure: %s from %s (%s)",
                name,
                event.remote_engine_key,
                event.detail,
            )
        return reasons

    def refuse_incomplete(self, site: str, outcome: Outcome) -> None:
        """Fail the step where upstream would: a forward on these reads must not run.

        Args:
            site: ``layer`` or ``step``, or ``between`` for a wait on reads of earlier steps.
            outcome: How the wait ended.

        Raises:
            TransferError: On 0.33 while reads are in flight after its step barrier, or after the
                layer barriers that stand in its place; for hybrid models whenever a read has not
                landed, since their load errors cannot be recovered.
        """
        if not (outcome.in_flight or outcome.failed):
            return
        hybrid = self._fails_steps or (
            self.seams.era is not Era.LAYER and getattr(self.worker, "_has_mamba", False)
        )
        in_its_place = site == "layer" and self.observer.placement is Placement.EVIDENCE
        fails_step = self.seams.era is Era.STEP and (site == "step" or in_its_place)
        if hybrid or (fails_step and outcome.in_flight):
            raise TransferError(
                f"MoRIIO READ barrier ({site}): {outcome.in_flight} reads in flight after "
                f"{outcome.waited_s:.1f} s, {outcome.failed} failed; failing the step."
            )

    def wait_for_everything(self, site: str) -> None:
        """Wait for every read upstream knows, without any of our own bookkeeping: it has failed.

        Raises:
            TransferError: Where upstream would, see `refuse_incomplete`.
        """
        with self.worker.moriio_wrapper.lock:
            pending = [
                status
                for by_layer in self.worker._recving_transfers.values()
                for kept in by_layer.values()
                for status in each_status(kept)
            ]
        started = time.monotonic()
        failed = 0
        while True:
            pending = [status for status in pending if not status.Succeeded()]
            in_flight = [status for status in pending if not status.Failed()]
            failed += len(pending) - len(in_flight)
            pending = in_flight
            waited_s = time.monotonic() - started
            if not pending or waited_s > self.worker.moriio_config.transfer_timeout:
                break
            time.sleep(_FALLBACK_POLL_S)
        self.refuse_incomplete(site, Outcome(waited_s, 0, failed, len(pending)))
