"""The handle of one transfer, and waiting for one or many of them.

A poll is two attribute loads and takes no lock. A waiter is one lock that the last landing
releases, so waiting for a thousand statuses wakes one thread once.
"""

import threading
import time
from collections.abc import Sequence

from moriio_observed.loopback.enums import StatusCode

# One lock for all statuses: held for a few instructions, and never while calling out.
_transitions = threading.Lock()


class _Waiter:
    """Wakes its thread when `remaining` statuses have become terminal."""

    __slots__ = ("gate", "remaining")

    def __init__(self, remaining: int) -> None:
        self.remaining = remaining
        self.gate = threading.Lock()
        self.gate.acquire()

    def count_down(self) -> None:
        """Note one landing or failure; the caller holds `_transitions`."""
        self.remaining -= 1
        if self.remaining == 0:
            self.gate.release()


class TransferStatus:
    """mori's transfer handle: a code and a message, and an error is sticky."""

    __slots__ = ("__weakref__", "_code", "_message", "_waiters")

    def __init__(self) -> None:
        self._code = StatusCode.INIT
        self._message = ""
        self._waiters: list[_Waiter] = []

    def __repr__(self) -> str:
        return f"<TransferStatus {self._code.name} {self._message!r}>"

    def Code(self) -> StatusCode:  # noqa: N802 (mori's names)
        """Return the current code."""
        return self._code

    def Message(self) -> str:  # noqa: N802
        """Return the message that came with the code."""
        return self._message

    def Init(self) -> bool:  # noqa: N802
        """Tell whether nothing has been posted yet."""
        return self._code is StatusCode.INIT

    def InProgress(self) -> bool:  # noqa: N802
        """Tell whether the transfer is in flight."""
        return self._code is StatusCode.IN_PROGRESS

    def Succeeded(self) -> bool:  # noqa: N802
        """Tell whether the transfer has landed."""
        return self._code is StatusCode.SUCCESS

    def Failed(self) -> bool:  # noqa: N802
        """Tell whether the transfer has failed."""
        return self._code.is_error

    def SetCode(self, code: StatusCode) -> None:  # noqa: N802
        """Set the code, unless an error is there already."""
        with _transitions:
            if not self._code.is_error:
                self._become(code)

    def SetMessage(self, message: str) -> None:  # noqa: N802
        """Set the message; the code stays."""
        self._message = message

    def Update(self, code: StatusCode, message: str) -> None:  # noqa: N802
        """Set code and message together, unless an error is there already."""
        with _transitions:
            if not self._code.is_error:
                # The message first: who sees the error may read it at once.
                self._message = message
                self._become(code)

    def Wait(self) -> None:  # noqa: N802
        """Wait until the transfer is terminal, however long that takes."""
        wait_for_all((self,), -1)

    def WaitFor(self, timeout_ms: int = -1) -> StatusCode:  # noqa: N802
        """Wait until the transfer is terminal and return the code then.

        Args:
            timeout_ms: Milliseconds; 0 only looks, a negative number waits for ever.
        """
        wait_for_all((self,), timeout_ms)
        return self._code

    def _become(self, code: StatusCode) -> None:
        self._code = code
        if code.is_terminal and self._waiters:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                waiter.count_down()


def wait_for_all(statuses: Sequence[TransferStatus], timeout_ms: int) -> StatusCode:
    """Wait until every status is terminal or the time is over; a failure does not end it early.

    The GIL is free while waiting.

    Args:
        statuses: The transfers to wait for.
        timeout_ms: Milliseconds; 0 only looks, a negative number waits for ever.

    Returns:
        The code of the first failed status in the order given; else `IN_PROGRESS` if one is
        not terminal yet; else `SUCCESS`.
    """
    if timeout_ms != 0:
        _block(statuses, None if timeout_ms < 0 else time.monotonic() + timeout_ms / 1000)
    verdict = StatusCode.SUCCESS
    for status in statuses:
        code = status._code
        if code is not StatusCode.SUCCESS:
            if code.is_error:
                return code
            verdict = StatusCode.IN_PROGRESS
    return verdict


def _block(statuses: Sequence[TransferStatus], deadline: float | None) -> None:
    with _transitions:
        pending = [status for status in statuses if not status._code.is_terminal]
        if not pending:
            return
        waiter = _Waiter(len(pending))
        for status in pending:
            status._waiters.append(waiter)
    woken = False
    try:
        if deadline is None:
            woken = waiter.gate.acquire()
        else:
            remaining = max(0.0, deadline - time.monotonic())
            woken = waiter.gate.acquire(timeout=min(remaining, threading.TIMEOUT_MAX))
    finally:
        # Woken, no status holds the waiter any more, and the thread that woke us still has the
        # lock. Otherwise a hung status, waited for again and again, would collect dead waiters.
        if not woken:
            with _transitions:
                for status in pending:
                    if waiter in status._waiters:
                        status._waiters.remove(waiter)
