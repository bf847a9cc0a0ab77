"""The connector in a worker's process: the hooks of a step, in the order vLLM calls them."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from moriio_observed import upstream
from moriio_observed.barrier import Placement
from moriio_observed.guard import Guard, Turn
from moriio_observed.observer import NO_NOTES, ReadObserver

__all__ = ["AlwaysArmed", "NeverArmed", "WorkerSide"]


class AlwaysArmed:
    """Stands in for an observer where upstream's layer hook must run untouched."""

    armed = True


class NeverArmed:
    """Stands in for an observer where upstream's layer hook has nothing to do."""

    armed = False


class WorkerSide(upstream.MoRIIOConnector):
    """What ours does in front of upstream's worker side."""

    # What was made but never initialised, as upstream's own tests do, steps as upstream's.
    _hooks: upstream.Hooks | None = None
    _observer: ReadObserver | None = None
    _guard: Guard
    _turn: Turn | None = None
    _step_notes = NO_NOTES
    _target_layers = 0
    _saves = True
    _watch: Any = AlwaysArmed

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
        # Nothing was posted in the step before, and all was at rest then.
        if observer.idle and self._begin_idle_step(hooks, observer, connector_metadata):
            return
        observer.idle = False
        guarded = self._guard.waits
        if guarded:
            # Not contained: the scheduler waits to be told of these requests.
            self._announce(connector_metadata)
        if hooks.containment.broken:
            return
        try:
            if not guarded:
                self._announce(connector_metadata)
            notes = self._step_notes
            mode = upstream.bound_mode(notes)
            rests = observer.at_rest and not self._guard and self._turn is None
            if rests and not notes.tells:
                observer.begin_idle_step(notes, mode)
                return
            outcome = observer.begin_step(notes, mode)
        except Exception as error:  # noqa: BLE001  (whatever it is, serving goes on)
            self._step_back("between", hooks, observer, error)
            return
        if outcome is not None and observer.placement.waits:
            hooks.refuse_incomplete("between", outcome)

    def _begin_idle_step(
        self, hooks: upstream.Hooks, observer: ReadObserver, metadata: Any
    ) -> bool:
        """Begin one more step at rest, unless the scheduler side has something to tell."""
        try:
            notes = upstream.quiet_notes(metadata)
            if notes is None:
                return False
            self._step_notes = notes
            observer.begin_idle_step(notes, upstream.bound_mode(notes))
        except Exception as error:  # noqa: BLE001  (whatever it is, serving goes on)
            self._step_back("between", hooks, observer, error)
            # The guard must still be told of what is to be read.
            return False
        return True

    def _announce(self, metadata: Any) -> None:
        """Note what the scheduler side knows of the step; the guard is told what is to be read."""
        notes = self._step_notes = upstream.read_notes(metadata)
        reading = upstream.reading_from(metadata)
        if reading:
            self._guard.announce(reading, notes.lease_left_at(time.time()))

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """As upstream; before the forward, what no layer hook will wait for is waited for.

        Raises:
            TransferError: Where upstream fails the step rather than run its forward.
        """
        try:
            self._start_load(forward_context, **kwargs)
        except upstream.TransferError:
            if self._observer is not None:
                self._observer.fail_step()
            raise

    def _start_load(self, forward_context: Any, **kwargs: Any) -> None:
        hooks, observer = self._hooks, self._observer
        if observer is None or hooks is None or hooks.containment.broken:
            super().start_load_kv(forward_context, **kwargs)
            return
        notes = self._step_notes
        if notes.loads_before_forward is False:
            if not observer.idle:
                hooks.tell(observer.end_forward)
            hooks.after_forward = True
            try:
                super().start_load_kv(forward_context, **kwargs)
            finally:
                hooks.after_forward = False
            return
        super().start_load_kv(forward_context, **kwargs)
        if hooks.broken:
            return
        try:
            mode = upstream.runtime_mode(forward_context, kwargs, notes)
            outcome = observer.before_forward(mode)
        except Exception as error:  # noqa: BLE001  (whatever it is, serving goes on)
            self._step_back("step", hooks, observer, error)
            return
        if outcome is not None and observer.placement.waits:
            hooks.refuse_incomplete("step", outcome)

    @staticmethod
    def _step_back(
        site: str, hooks: upstream.Hooks, observer: ReadObserver, error: Exception
    ) -> None:
        """Our own wait before the forward has failed: wait without any bookkeeping."""
        hooks.containment.step_back(error)
        if observer.placement.waits:
            hooks.wait_for_everything(site)

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

    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """As upstream, which on a decode engine asks at each layer what it is, and does nothing."""
        if self._saves:
            super().save_kv_layer(layer_name, kv_layer, attn_metadata, **kwargs)

    def _at_layer(self, layer_name: str) -> None:
        hooks, observer = self._hooks, self._observer
        if observer is None or hooks is None or hooks.broken:
            super().wait_for_layer_load(layer_name)
            return
        if observer.placement is Placement.UPSTREAM:
            if layer_name not in observer.ledger.open_by_layer:
                super().wait_for_layer_load(layer_name)
                return
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
        if outcome is not None:
            hooks.refuse_incomplete("layer", outcome)

    def get_finished(self, finished_req_ids: set[str]) -> Any:
        """As upstream; also the requests that the scheduler need not wait for any longer."""
        if finished_req_ids:
            self._finish(finished_req_ids)
        sent, received = super().get_finished(finished_req_ids)
        if self._observer is None or self._observer.idle:
            return sent, received
        arrived = self._take_turn()
        return sent, {*(received or ()), *arrived} if arrived else received

    # The base's calls `get_finished`; from 0.33 upstream has its own, which does not.
    if upstream.HAS_TRANSFER_RESULTS:

        def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
            """As upstream; also the requests that the scheduler need not wait for any longer."""
            if finished_req_ids:
                self._finish(finished_req_ids)
            results = super().get_transfer_results(finished_req_ids)
            if arrived := self._take_turn():
                results.finished_recving = {*(results.finished_recving or ()), *arrived}
            return results

    def _finish(self, request_ids: set[str]) -> None:
        if self._observer is not None and self._hooks is not None:
            self._guard.finished(request_ids)
            self._hooks.tell(self._observer.finish, request_ids)

    def _take_turn(self) -> set[str]:
        """Let the guard look at what has landed; return for whom the scheduler need not wait."""
        hooks, observer = self._hooks, self._observer
        if observer is None or hooks is None or observer.idle or not self._guard:
            return set()
        if self._guard.waits:
            # It decides what is served, so an error of its own is not contained.
            turn = self._guard.turn(idle=not self._step_notes.runs_forward)
        else:
            turn = hooks.tell(self._guard.turn) or Turn()
        self._turn = turn
        if turn.landed:
            hooks.tell(observer.let_run, turn.landed)
        for given_up in turn.given_up:
            hooks.tell(observer.given_up, given_up.request_id, given_up.cause, given_up.layers)
            # Whatever upstream has seen of it: it shall neither report nor release it once more.
            hooks.abandon(given_up.request_id)
        if self._guard.waits:
            hooks.tell(observer.close_spans)
        return turn.arrived

    def get_block_ids_with_load_errors(self) -> Any:
        """As upstream, and the blocks of requests the guard gives up; they are counted."""
        blocks = super().get_block_ids_with_load_errors()
        if self._observer is None or (self._observer.idle and not blocks):
            return blocks
        if self._guard.waits:
            # Upstream's come with the first failure, when others of the request are in flight.
            blocks = set() if self._turn is None else self._turn.invalid
        if blocks and self._hooks is not None:
            self._hooks.tell(self._observer.metrics.load_errors, len(blocks))
        return blocks

    def build_connector_worker_meta(self) -> upstream.WorkerReport | None:
        """What the scheduler side must know of the reads' ends."""
        hooks, observer = self._hooks, self._observer
        if observer is not None and observer.idle:
            return None
        turn, self._turn = self._turn or Turn(), None
        report = upstream.WorkerReport(
            settled=Counter(turn.settled),
            overdue=set(turn.overdue),
            broken=hooks is not None and observer is not None and hooks.broken,
        )
        if observer is not None:
            report.exposed = observer.take_exposed()
        return report or None

    def shutdown(self) -> None:
        """As upstream; the hooks are taken away."""
        try:
            super().shutdown()
        finally:
            if self._hooks is not None:
                self._hooks.uninstall()
            self._watch, self._observer = AlwaysArmed, None
