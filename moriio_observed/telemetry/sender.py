"""The one background thread of a process, on which everything leaves over the network.

Whatever a collector does, it does it to this thread. The hot path only puts a word into a queue
that never blocks, and a shutdown waits for the thread no longer than it is told to.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Protocol, Self

from moriio_observed.log import get_logger
from moriio_observed.telemetry.aggregate import Counter

logger = get_logger(__name__)

_EXPORTER_LOGGERS = (
    "opentelemetry.exporter.otlp.proto.grpc.exporter",
    "opentelemetry.exporter.otlp.proto.http.metric_exporter",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
)
_LONGEST_REASON = 500

FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0
"""How long nothing is sent after a first failure, and after many, seconds."""
_MOST_DOUBLINGS = 16


class Outlet(Protocol):
    """One signal's way out.

    Attributes:
        signal: ``traces`` or ``metrics``.
        interval_s: Between two flushes, seconds.
    """

    signal: str
    interval_s: float

    def flush(self) -> int | None:
        """Send what there is; may block until its own timeout, and may raise.

        Returns:
            How many items were lost, 0 if all went out; None if there was nothing to send.
        """
        ...

    def close(self, timeout_s: float) -> None:
        """Give the connection up within `timeout_s` seconds; the next flush makes a new one."""
        ...


class Sender:
    """Flushes outlets: at once, then every interval and when woken, and at shutdown.

    In a forked child the copy of a started sender does nothing: what it holds is the parent's to
    send.

    Args:
        outlets: At least one, at most one per signal.
        name: The thread's.
        rejected: Returns how much of a signal collectors took in but refused since last asked;
            counted as lost.
    """

    def __init__(
        self,
        outlets: Sequence[Outlet],
        *,
        name: str = "moriio-otlp",
        rejected: Callable[[str], int] = lambda signal: 0,  # noqa: ARG005
    ) -> None:
        self._outlets = {outlet.signal: outlet for outlet in outlets}
        self._rejected = rejected
        # Unlike an event's, its put takes no lock that this thread could hold.
        self._calls: SimpleQueue[str | None] = SimpleQueue()
        self._woken = dict.fromkeys(self._outlets, False)
        self._lost = {signal: Counter() for signal in self._outlets}
        self._errors = {signal: Counter() for signal in self._outlets}
        self._said: set[str] = set()
        self._failures = dict.fromkeys(self._outlets, 0)
        self._not_before = dict.fromkeys(self._outlets, 0.0)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._started = False
        self._ends_at: float | None = None

    def start(self) -> None:
        """Start the thread, unless it has been started."""
        if not self._started:
            self._started = True
            self._thread.start()

    def wake(self, signal: str) -> None:
        """Have a signal flushed soon. Never blocks; any thread may call it."""
        if not self._woken.get(signal, True):
            self._woken[signal] = True
            self._calls.put(signal)

    def take_lost(self, signal: str) -> int:
        """Return how many items of a signal were lost since last asked; from one thread only."""
        return _taken(self._lost, signal)

    def take_errors(self, signal: str) -> int:
        """Return how many flushes of a signal raised since last asked; from one thread only."""
        return _taken(self._errors, signal)

    def shutdown(self, timeout_s: float = 2.0) -> None:
        """Flush once more and end the thread, or leave it behind after `timeout_s` seconds."""
        if not self._started:
            return
        self._ends_at = time.monotonic() + timeout_s
        self._calls.put(None)
        # In a forked child the thread has already ended.
        self._thread.join(timeout_s)

    def _run(self) -> None:
        due = dict.fromkeys(self._outlets, 0.0)
        while self._ends_at is None:
            signal = min(due, key=due.__getitem__)
            try:
                called = self._calls.get(timeout=max(0.0, due[signal] - time.monotonic()))
            except Empty:
                self._flush(self._outlets[signal])
                next_s = time.monotonic() + self._outlets[signal].interval_s
                due[signal] = max(next_s, self._not_before[signal])
            else:
                if called is not None:
                    # Not before one that is overdue: else a full queue would keep all others back.
                    due[called] = min(due[called], max(time.monotonic(), self._not_before[called]))
        for outlet in self._outlets.values():
            if time.monotonic() < self._ends_at:
                self._flush(outlet)
        for outlet in self._outlets.values():
            self._close(outlet, self._ends_at - time.monotonic())

    def _flush(self, outlet: Outlet) -> None:
        signal = outlet.signal
        error: Exception | None = None
        lost: int | None = None
        # Lowered before the flush: who calls during it is not satisfied by it.
        self._woken[signal] = False
        with _Hearing() as hearing:
            try:
                lost = outlet.flush()
            except Exception as raised:  # noqa: BLE001 - whatever it is, the thread goes on
                error = raised
                self._errors[signal].inc()
        rejected = self._rejected(signal)
        self._lost[signal].inc((lost or 0) + rejected)
        if error is not None or lost:
            # gRPC's threads wake all the time, also for a connection that nobody can make.
            self._close(outlet, 0.0)
        if error is not None or lost or rejected:
            self._put_off(outlet)
            self._say(signal, hearing.reason(error, rejected))
        elif lost is not None and self._failures[signal]:
            self._failures[signal] = 0
            self._said.remove(signal)
            logger.info("OTLP %s go out again", signal)

    def _put_off(self, outlet: Outlet) -> None:
        """Try ever more seldom while it fails: what is made in vain takes time from the steps."""
        failures = self._failures[outlet.signal]
        self._failures[outlet.signal] = failures + 1
        wait_s = min(outlet.interval_s, FIRST_WAIT_S) * 2 ** min(failures, _MOST_DOUBLINGS)
        self._not_before[outlet.signal] = time.monotonic() + min(wait_s, LONGEST_WAIT_S)

    def _say(self, signal: str, reason: str) -> None:
        if signal not in self._said:
            self._said.add(signal)
            logger.warning(
                "OTLP %s do not go out: %s. Said again only after they have", signal, reason
            )

    def _close(self, outlet: Outlet, timeout_s: float) -> None:
        try:
            outlet.close(max(0.0, timeout_s))
        except Exception as error:  # noqa: BLE001 - nothing is lost by it any more
            logger.debug("OTLP %s could not be closed: %r", outlet.signal, error)


def _taken(counters: dict[str, Counter], signal: str) -> int:
    counter = counters.get(signal)
    return 0 if counter is None else int(counter.take())


class _Hearing(logging.Filter):
    """Keeps what exporters log on this thread out of the log, and remembers it.

    They log every attempt, so a collector that is away for a day would fill the log. What they log
    for others in this process, as for vLLM's own spans, is left alone.
    """

    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.get_ident()
        self._heard: dict[str, None] = {}

    def __enter__(self) -> Self:
        for name in _EXPORTER_LOGGERS:
            # Before a filter of their own, which lets each message through only once a minute.
            logging.getLogger(name).filters.insert(0, self)
        return self

    def __exit__(self, *_: object) -> None:
        for name in _EXPORTER_LOGGERS:
            logging.getLogger(name).removeFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        """Let only the records of other threads through."""
        if record.thread != self._thread:
            return True
        self._heard[record.getMessage()] = None
        return False

    def reason(self, error: Exception | None, rejected: int) -> str:
        """Return why a flush failed, as far as anybody has said."""
        reasons = list(self._heard)
        if error is not None:
            reasons.append(f"{type(error).__name__}: {error}")
        if rejected:
            reasons.append(f"the collector refused {rejected}")
        return "; ".join(reasons)[:_LONGEST_REASON] or "the exporter does not say why"
