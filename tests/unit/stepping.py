"""A decode worker's observer, driven through steps in upstream's order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from moriio_observed.barrier import Era, Outcome, Placement, Waiter
from moriio_observed.observer import ReadObserver, StepNotes
from moriio_observed.reads import ReadLedger
from moriio_observed.telemetry.aggregate import Aggregate
from moriio_observed.telemetry.read_metrics import ReadMetrics
from moriio_observed.telemetry.recorder import StepRecorder
from tests.unit.fakes import FakeClock, FakeStatus

LAYERS = [f"model.layers.{i}.attn" for i in range(3)]


class Worker:
    """An observer and what a test needs to drive it through steps."""

    def __init__(
        self,
        placement: Placement = Placement.EVIDENCE,
        era: Era = Era.LAYER_AND_STEP,
        hookless: Iterable[str] = (),
        *,
        spans: Callable[[FakeClock, Aggregate], StepRecorder] | None = None,
    ) -> None:
        self.clock = FakeClock()
        self.undecided: set[str] = set()
        self.aggregate = Aggregate(source="rank 0", clock=self.clock)
        ledger = ReadLedger()
        self.observer = ReadObserver(
            placement=placement,
            era=era,
            ledger=ledger,
            waiter=Waiter(ledger, 30.0, clock=self.clock, sleep=self.clock.sleep),
            metrics=ReadMetrics(self.aggregate, max_remotes=2, per_layer=True),
            action="recomputed",
            hookless=tuple(hookless),
            clock=self.clock,
            spans=None if spans is None else spans(self.clock, self.aggregate),
            decided=lambda request_id: request_id not in self.undecided,
        )
        self.requests: list[str] = []

    def begin(
        self,
        *requests: str,
        before: bool | None = True,
        mode: str = "NONE",
        traceparents: Mapping[str, str] | None = None,
    ) -> None:
        self.requests = list(requests)
        notes = StepNotes(dict.fromkeys(requests, 1), before, traceparents=traceparents or {})
        self.observer.begin_step(notes, mode)

    def post(self, request: str, remote: str = "10.0.0.1:7301") -> list[FakeStatus]:
        statuses = [FakeStatus() for _ in LAYERS]
        self.observer.posted(
            request,
            remote,
            [
                (i, name, status)
                for i, (name, status) in enumerate(zip(LAYERS, statuses, strict=True))
            ],
            nbytes=300,
            started_at=self.clock(),
            post_s=0.001,
        )
        return statuses

    def layers(self, names: Iterable[str] = LAYERS) -> list[Outcome | None]:
        return [self.observer.at_layer(name) for name in names if self.observer.armed]

    def end(self, *dropped: str, recovers: bool = False) -> None:
        self.observer.end_forward()
        self.observer.settle(dropped, recovers=recovers)

    def step(self, request: str, *, mode: str = "NONE", layers: Iterable[str] = LAYERS) -> None:
        """A whole step of one request whose reads were posted beforehand."""
        self.observer.before_forward(mode)
        self.layers(layers)
        self.end()

    def learn_hooks(self) -> None:
        """A healthy step in which every layer's hook is seen to fire."""
        self.begin("a")
        land(self.post("a"))
        self.step("a")

    def post_slow(self, request: str, after_s: float = 0.2) -> list[FakeStatus]:
        """Post reads that land after a while of waiting."""
        statuses = self.post(request)
        self.clock.at(after_s, lambda: land(statuses))
        return statuses

    def counted(self, name: str, **labels: str) -> float:
        return self.aggregate.counter(name, **labels).value

    def unprotected(self) -> dict[str, float]:
        payload = self.aggregate.cumulative()["counters"]
        return {
            key: value
            for key, value in payload.items()
            if key.startswith("unprotected_steps_total") and value
        }


def land(statuses: Iterable[FakeStatus]) -> None:
    for status in statuses:
        status.land()
