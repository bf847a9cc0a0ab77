"""A status whose end a test decides, and a clock that moves when a test says so."""

from __future__ import annotations

from collections.abc import Callable


class FakeStatus:
    def __init__(self) -> None:
        self.state = "in flight"
        self.looks = 0

    def land(self) -> None:
        if self.state == "in flight":
            self.state = "landed"

    def fail(self) -> None:
        if self.state == "in flight":
            self.state = "failed"

    def Succeeded(self) -> bool:  # noqa: N802
        self.looks += 1
        return self.state == "landed"

    def Failed(self) -> bool:  # noqa: N802
        return self.state == "failed"

    def Code(self) -> str:  # noqa: N802
        return "ERR_RDMA_OP"

    def Message(self) -> str:  # noqa: N802
        return "the link went down"


class FakeClock:
    """Seconds that pass only when told, or slept; `at` runs something at a moment."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._due: list[tuple[float, Callable[[], None]]] = []

    def __call__(self) -> float:
        return self.now

    def at(self, delay_s: float, action: Callable[[], None]) -> None:
        self._due.append((self.now + delay_s, action))

    def sleep(self, seconds: float) -> None:
        # Even to yield takes some time.
        self.now += max(seconds, 1e-6)
        for entry in sorted(self._due, key=lambda due: due[0]):
            if entry[0] <= self.now:
                self._due.remove(entry)
                entry[1]()
