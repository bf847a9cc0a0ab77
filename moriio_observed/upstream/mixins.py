"""The methods that stand in front of upstream's, on the objects that `Hooks` has hooked.

In them `super()` is a class of upstream's that a type checker cannot see: hence each
`type: ignore[misc]`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moriio_observed.upstream.hooks import Hooks


class ObservedProducer:
    """In front of a ``MoRIIOConnectorWorker`` that reads nothing: only its handshakes are seen."""

    _moriio_observed: Hooks

    def _moriio_handshake(self, *args: Any, **kwargs: Any) -> Any:
        with self._moriio_observed.handshake():
            return super()._moriio_handshake(*args, **kwargs)  # type: ignore[misc]


class ObservedWorker(ObservedProducer):
    """In front of the ``MoRIIOConnectorWorker`` of a decode engine in READ mode."""

    _recving_transfers: dict[str, Any]

    def _read_blocks(self, *args: Any, **kwargs: Any) -> Any:
        hooks = self._moriio_observed
        read_blocks = super()._read_blocks  # type: ignore[misc]
        posting = hooks.start_posting()
        try:
            return read_blocks(*args, **kwargs)
        finally:
            hooks.end_posting(posting, read_blocks, args, kwargs)

    def _pop_done_transfers(self, *args: Any, **kwargs: Any) -> Any:
        hooks = self._moriio_observed
        watch = hooks.watch
        if watch is not None and watch.idle and not self._recving_transfers:
            hooks.tell(watch.end_idle_step)
            # Upstream's would go through the transfers, and there is none.
            if hooks.cleans_up_nothing:
                return set()
            return super()._pop_done_transfers(*args, **kwargs)  # type: ignore[misc]
        before = hooks.before_clean_up()
        try:
            return super()._pop_done_transfers(*args, **kwargs)  # type: ignore[misc]
        finally:
            hooks.after_clean_up(before)

    def _await_reads_issued_this_step(self, *args: Any, **kwargs: Any) -> Any:
        hooks = self._moriio_observed
        wait = super()._await_reads_issued_this_step  # type: ignore[misc]
        watch = hooks.watch
        if watch is not None and watch.idle:
            return wait(*args, **kwargs)
        if hooks.bypass:
            hooks.drain_upstream_lists()
            return None
        if not hooks.observer.ledger:
            return wait(*args, **kwargs)
        hooks.tell(hooks.observer.upstream_starts_step_wait)
        started = time.perf_counter()
        try:
            return wait(*args, **kwargs)
        finally:
            waited_s = time.perf_counter() - started
            hooks.tell(hooks.observer.upstream_waited_before_forward, waited_s)


class ObservedWrapper:
    """In front of ``MoRIIOWrapper``. ``send_notify`` may run with its lock held: take it never."""

    _moriio_observed: Hooks

    def read_remote_data(self, transfer_size_byte: Any, *args: Any, **kwargs: Any) -> Any:
        """As upstream; what was posted is noted, with no call of ours: it happens for each read."""
        hooks = self._moriio_observed
        status = super().read_remote_data(  # type: ignore[misc]
            transfer_size_byte, *args, **kwargs
        )
        posted = hooks.posted
        if posted is None:
            hooks.posted_elsewhere()
        else:
            posted.append((status, transfer_size_byte))
        return status

    def waiting_for_transfer_complete(
        self, transfer_statuses: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        """As upstream; what it is about to wait for is told."""
        self._moriio_observed.upstream_covers(transfer_statuses)
        return super().waiting_for_transfer_complete(  # type: ignore[misc]
            transfer_statuses, *args, **kwargs
        )

    def send_notify(self, *args: Any, **kwargs: Any) -> Any:
        """As upstream; that it failed is told."""
        hooks = self._moriio_observed
        try:
            return super().send_notify(*args, **kwargs)  # type: ignore[misc]
        except Exception:
            hooks.notify_failed()
            raise

    def _handle_release_message(self, *args: Any, **kwargs: Any) -> Any:
        hooks = self._moriio_observed
        result = super()._handle_release_message(*args, **kwargs)  # type: ignore[misc]
        hooks.released()
        return result
