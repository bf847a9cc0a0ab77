"""What is recorded of steps and reads for their spans, and what is not."""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import count

import pytest

from moriio_observed.barrier import Placement
from moriio_observed.containment import Containment
from moriio_observed.observer import StepNotes
from moriio_observed.reads import Exposure
from moriio_observed.telemetry.aggregate import Aggregate, Counter
from moriio_observed.telemetry.hold_recorder import HoldRecorder
from moriio_observed.telemetry.recorder import StepRecorder
from moriio_observed.telemetry.records import (
    HoldRecord,
    ReadRecord,
    SpanContext,
    StepRecord,
    parse_traceparent,
)
from moriio_observed.telemetry.span_queue import Records, Sampler, SpanQueue
from tests.unit.fakes import FakeClock
from tests.unit.stepping import LAYERS, Worker, land

TRACE = 0xABC
CALLER = 0x77
SAMPLED = f"00-{TRACE:032x}-{CALLER:016x}-01"
UNSAMPLED = f"00-{TRACE:032x}-{CALLER:016x}-00"
SLOW_S = 0.1


class Traced(Worker):
    """A worker whose steps are recorded."""

    def __init__(self, ratio: float = 0.0, placement: Placement = Placement.EVIDENCE) -> None:
        def recorder(clock: FakeClock, aggregate: Aggregate) -> StepRecorder:
            dropped = aggregate.counter("telemetry_dropped_total", signal="traces")
            self.woken: list[bool] = []
            self.queue = SpanQueue(100, dropped, wake=lambda: self.woken.append(True))
            return StepRecorder(
                self.queue,
                Sampler(ratio),
                slow_wait_s=SLOW_S,
                containment=Containment(aggregate, "nothing is traced.", signal="traces"),
                clock=clock,
            )

        super().__init__(placement, spans=recorder)

    def healthy(self, request: str, traceparent: str | None = None) -> None:
        """A step whose reads have landed before they are looked at."""
        self.begin(request, traceparents={request: traceparent} if traceparent else None)
        land(self.post(request))
        self.step(request)
        self.observer.settle([request], recovers=False)

    def slow(self, request: str, traceparent: str | None = None, after_s: float = 0.2) -> None:
        self.begin(request, traceparents={request: traceparent} if traceparent else None)
        self.post_slow(request, after_s)
        self.step(request)
        self.observer.settle([request], recovers=False)

    def recorded(self) -> list[Records]:
        return self.queue.take(1000)

    def steps(self) -> list[StepRecord]:
        return [record for record in self.recorded() if isinstance(record, StepRecord)]

    def reads(self) -> list[ReadRecord]:
        return [record for record in self.recorded() if isinstance(record, ReadRecord)]

    def both(self) -> tuple[StepRecord, ReadRecord]:
        step, read = self.recorded()
        assert isinstance(step, StepRecord)
        assert isinstance(read, ReadRecord)
        return step, read


def test_what_is_unremarkable_is_not_queued() -> None:
    worker = Traced(ratio=0)
    worker.healthy("r")
    assert worker.recorded() == []


def test_a_wait_of_the_limit_is_kept_with_the_step_and_the_read_that_it_was_for() -> None:
    worker = Traced(ratio=0)
    worker.slow("r")
    step, read = worker.both()
    [barrier] = step.barriers
    assert (barrier.site, barrier.layer, barrier.reads) == ("step", None, 3)
    assert barrier.waited_s == pytest.approx(0.2, abs=0.01)
    assert step.blocked_s == barrier.waited_s
    assert (step.requests, step.links) == (1, (read.context,))
    assert (read.outcome, read.layers, read.nbytes) == ("landed", 3, 300)
    assert read.steps == (step.context,)


def test_an_idle_step_that_is_woken_after_its_forward_has_not_failed() -> None:
    worker = Traced(ratio=0)
    worker.observer.begin_idle_step(StepNotes({"r": 1}, loads_before_forward=False), "NONE")
    worker.clock.sleep(1.0)
    worker.observer.wake(worker.clock(), after_forward=True)
    land(worker.post("r"))
    worker.end("r")
    [step] = worker.steps()
    assert step.exposed == ("r",)
    assert not step.failed
    assert step.started_at == step.ended_at


def test_a_wait_below_the_limit_is_not_kept() -> None:
    worker = Traced(ratio=0)
    worker.slow("r", after_s=0.05)
    assert worker.recorded() == []


def test_a_read_ends_when_a_barrier_has_seen_it_land_not_when_its_account_is_closed() -> None:
    worker = Traced()
    worker.begin("r")
    worker.post_slow("r", 0.2)
    worker.step("r")
    worker.clock.sleep(5)
    worker.observer.settle(["r"], recovers=False)
    step, read = worker.both()
    [barrier] = step.barriers
    assert read.ended_at == pytest.approx(barrier.started_at + barrier.waited_s)


def test_a_read_ends_with_the_last_of_the_short_waits_for_it() -> None:
    worker = Traced(ratio=1)
    worker.learn_hooks()
    worker.recorded()
    worker.begin("r")
    started = worker.clock()
    for status, delay in zip(worker.post("r"), (0.001, 0.003, 0.006), strict=True):
        worker.clock.at(delay, status.land)
    worker.observer.before_forward("NONE")
    worker.layers()
    worker.clock.sleep(5)
    worker.end("r")
    [read] = worker.reads()
    assert read.ended_at - started == pytest.approx(0.006, abs=1e-3)


def test_what_lands_after_the_last_wait_does_not_end_with_it_though_its_request_has_finished() -> (
    None
):
    worker = Traced(ratio=1)
    worker.learn_hooks()
    worker.recorded()
    # Who has finished is not known when the step begins.
    worker.observer.begin_step(StepNotes(), "NONE")
    first, *others = worker.post("r")
    worker.clock.at(0.001, first.land)
    worker.observer.before_forward("NONE")
    worker.layers(LAYERS[:1])
    worker.clock.sleep(5)
    land(others)
    worker.observer.finish(["r"])
    worker.end("r")
    [read] = worker.reads()
    assert read.ended_at == worker.clock()


def test_barriers_of_layers_name_their_layer() -> None:
    worker = Traced()
    worker.learn_hooks()
    worker.slow("r")
    step, _ = worker.both()
    assert [(barrier.site, barrier.layer) for barrier in step.barriers] == [
        ("layer", 0),
        ("layer", 1),
        ("layer", 2),
    ]


def test_a_request_that_carried_a_trace_context_is_read_in_that_trace_and_so_is_its_step() -> None:
    worker = Traced()
    worker.slow("r", SAMPLED)
    step, read = worker.both()
    assert step.parent == read.parent == SpanContext(TRACE, CALLER, sampled=True)
    assert step.context.trace_id == read.context.trace_id == TRACE
    assert len({step.context.span_id, read.context.span_id, CALLER}) == 3


def test_without_a_trace_context_a_read_and_its_step_are_roots() -> None:
    worker = Traced()
    worker.slow("r")
    step, read = worker.both()
    assert step.parent is read.parent is None
    assert step.context.trace_id != read.context.trace_id


def test_a_step_of_several_requests_links_to_each_and_is_in_the_trace_of_one_that_is_kept() -> None:
    worker = Traced()
    other = f"00-{0xDEF:032x}-{1:016x}-00"
    worker.begin("a", "b", traceparents={"a": other, "b": SAMPLED})
    land(worker.post("a"))
    land(worker.post("b"))
    worker.step("a")
    worker.observer.settle(["a", "b"], recovers=False)
    step, read = worker.both()
    assert step.context.trace_id == TRACE
    # The read of one that is not kept has no span.
    assert step.links == (SpanContext(0xDEF, 1, sampled=False), read.context)
    assert read.request_id == "b"


@pytest.mark.parametrize(("traceparent", "kept"), [(SAMPLED, True), (UNSAMPLED, False)])
def test_the_callers_decision_is_followed_whatever_the_ratio(traceparent: str, kept: bool) -> None:
    for ratio in (0.0, 1.0):
        worker = Traced(ratio)
        worker.healthy("r", traceparent)
        assert bool(worker.recorded()) is kept


def test_what_its_caller_does_not_keep_is_kept_all_the_same_if_it_was_slow() -> None:
    worker = Traced()
    worker.slow("r", UNSAMPLED)
    assert len(worker.recorded()) == 2


def test_traces_without_a_caller_are_kept_by_the_low_bits_of_their_id_alone() -> None:
    assert Sampler(0.5, lambda _: 1 << 63).child(None).sampled is False
    assert Sampler(0.5, lambda _: (1 << 63) - 1).child(None).sampled is True
    assert Sampler(1.0, lambda bits: (1 << bits) - 1).child(None).sampled is True
    assert Sampler(0.0, lambda _: 1).child(None).sampled is False


def test_two_processes_that_vllm_has_seeded_alike_give_different_ids(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("random.getrandbits", lambda _: 4)
    assert Sampler(1).child(None) != Sampler(1).child(None)


def test_an_exposed_request_is_kept_with_why_and_what_became_of_it() -> None:
    worker = Traced(placement=Placement.OFF)
    worker.begin("r")
    worker.post("r")
    worker.observer.before_forward("NONE")
    worker.end("r", recovers=True)
    step, read = worker.both()
    assert (step.exposed, step.cause) == (("r",), "no_barrier")
    assert read.exposure == Exposure("r", "no_barrier", certain=True, layers=(0, 1, 2))
    assert (read.action, read.outcome, read.missing) == ("recomputed", "aborted", (0, 1, 2))


def test_a_failed_read_is_kept_with_moris_code_and_its_layer() -> None:
    worker = Traced()
    worker.begin("r")
    statuses = worker.post("r")
    statuses[1].fail()
    land(statuses)
    worker.step("r")
    worker.observer.settle(["r"], recovers=False)
    _, read = worker.both()
    assert (read.outcome, read.errors, read.missing) == ("failed", ("ERR_RDMA_OP",), (1,))


def test_a_step_that_vllm_failed_leaves_at_once() -> None:
    worker = Traced()
    worker.begin("r")
    worker.post("r")
    worker.observer.before_forward("NONE")
    worker.woken.clear()
    worker.observer.fail_step()
    assert worker.woken
    [step] = worker.steps()
    assert step.failed
    assert step.barriers[0].in_flight == 3
    worker.clock.sleep(100)
    worker.begin("r")
    assert worker.recorded() == []


def test_a_step_that_ended_in_an_error_of_another_is_recorded_with_the_next() -> None:
    worker = Traced()
    worker.begin("r")
    worker.post_slow("r")
    worker.observer.before_forward("NONE")
    worker.begin("r")
    [step] = worker.steps()
    assert step.failed


def test_a_forward_that_ran_before_its_own_reads_were_posted_is_a_step_with_its_cause() -> None:
    worker = Traced()
    worker.begin("r", before=False)
    worker.observer.end_forward()
    worker.post("r")
    worker.observer.settle([], recovers=False)
    [step] = worker.steps()
    assert (step.cause, step.exposed) == ("no_barrier", ("r",))


def test_reads_posted_after_the_forward_belong_to_the_step_that_waits_for_them() -> None:
    worker = Traced(ratio=1)
    worker.healthy("earlier")
    worker.recorded()
    worker.begin("other", before=False)
    worker.observer.end_forward()
    worker.post_slow("r")
    worker.observer.settle([], recovers=False)
    assert worker.recorded() == []
    worker.begin("r")
    worker.step("r")
    [step] = worker.steps()
    assert step.requests == 1


def test_that_an_exposed_request_decodes_on_is_no_step_of_its_own() -> None:
    worker = Traced(placement=Placement.OFF)
    worker.begin("r")
    worker.post("r")
    worker.step("r")
    assert len(worker.steps()) == 1
    worker.begin("r")
    worker.step("r")
    assert worker.steps() == []


def test_a_read_that_lands_after_its_barrier_gave_up_ends_when_it_was_seen_to() -> None:
    worker = Traced(placement=Placement.STEP)
    worker.begin("r")
    statuses = worker.post("r")
    worker.step("r")
    worker.clock.sleep(10)
    land(statuses)
    worker.observer.settle(["r"], recovers=False)
    [read] = worker.reads()
    assert read.ended_at - read.started_at >= 40
    assert (read.outcome, read.missing) == ("landed", ())


def test_all_ranks_give_the_reads_of_a_request_one_trace() -> None:
    contexts = [Sampler(0).child(None, "r") for _ in range(2)]
    assert contexts[0].trace_id == contexts[1].trace_id
    assert contexts[0].span_id != contexts[1].span_id


def test_a_step_is_recorded_once() -> None:
    worker = Traced()
    worker.slow("r")
    worker.observer.settle([], recovers=False)
    worker.begin("r")
    assert len(worker.steps()) == 1


def test_reads_that_are_posted_again_end_the_span_of_the_first() -> None:
    worker = Traced()
    worker.begin("r")
    worker.post("r")
    worker.clock.sleep(1)
    again_at = worker.clock()
    land(worker.post("r"))
    worker.step("r")
    [first] = worker.reads()
    assert (first.outcome, first.ended_at) == ("superseded", again_at)


def test_missing_of_reads_that_are_posted_again_is_what_was_in_flight_then() -> None:
    worker = Traced(placement=Placement.GATE)
    worker.begin("others")
    earlier = worker.post("r")
    worker.end()
    worker.begin("others")
    worker.post("r")
    land(earlier)
    worker.end()
    worker.observer.settle(["r"], recovers=False)
    first, _ = worker.reads()
    assert (first.outcome, first.missing) == ("superseded", (0, 1, 2))


def test_with_a_guard_the_wait_before_a_request_is_run_is_what_counts() -> None:
    worker = Traced(placement=Placement.GATE)
    for request, after_s in (("slow", SLOW_S), ("fast", 0.01)):
        worker.begin("others")
        statuses = worker.post(request)
        worker.clock.sleep(after_s)
        land(statuses)
        # vLLM drops what has landed before the guard looks.
        worker.undecided.add(request)
        worker.end(request)
        worker.observer.let_run([request])
        worker.undecided.clear()
        worker.observer.close_spans()
        worker.clock.sleep(1)
    [read] = worker.reads()
    assert read.request_id == "slow"
    assert read.ended_at - read.started_at == pytest.approx(SLOW_S)


def test_what_a_guard_has_given_up_says_so() -> None:
    worker = Traced(placement=Placement.GATE)
    worker.begin("others")
    worker.post("r")
    worker.undecided.add("r")
    worker.end("r", recovers=True)
    assert worker.recorded() == []
    worker.observer.given_up("r", "timeout", (0, 2))
    worker.undecided.clear()
    worker.observer.close_spans()
    [read] = worker.reads()
    assert read.exposure == Exposure("r", "timeout", certain=True, layers=(0, 2))
    assert read.action == "recomputed"
    assert read.missing == (0, 1, 2)


def test_a_guard_leaves_nothing_behind_of_requests_that_are_over() -> None:
    worker = Traced(placement=Placement.GATE)
    for number in range(50):
        worker.begin("others")
        land(worker.post(f"r{number}"))
        worker.observer.before_forward("NONE")
        worker.end(f"r{number}")
    worker.begin("x")
    spans = worker.observer._spans
    assert spans is not None
    assert not spans._in_step
    assert not spans._open


def test_the_context_of_a_request_that_is_gone_before_it_is_read_is_forgotten() -> None:
    worker = Traced()
    worker.begin("r", traceparents={"r": SAMPLED})
    worker.observer.finish(["r"])
    worker.slow("r")
    _, read = worker.both()
    assert read.parent is None


def test_the_context_of_a_request_that_is_gone_once_it_is_read_is_still_its_own() -> None:
    worker = Traced()
    worker.begin("other", before=False, traceparents={"r": SAMPLED})
    worker.observer.end_forward()
    statuses = worker.post("r")
    worker.observer.finish(["r"])
    land(statuses)
    worker.observer.settle(["r"], recovers=False)
    [read] = worker.reads()
    assert read.parent == parse_traceparent(SAMPLED)


def test_a_kept_request_that_waited_is_the_waits_exemplar() -> None:
    worker = Traced()
    worker.slow("r")
    _, read = worker.both()
    exemplars = worker.aggregate.histogram("barrier_wait_seconds", site="step").exemplars
    [exemplar] = exemplars.values()
    assert (exemplar.trace_id, exemplar.span_id) == (read.context.trace_id, read.context.span_id)


def test_what_is_not_kept_is_no_exemplar() -> None:
    worker = Traced()
    worker.slow("r", after_s=0.05)
    assert worker.aggregate.histogram("barrier_wait_seconds", site="step").exemplars == {}


def test_an_error_of_the_recorder_ends_recording_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker = Traced()
    monkeypatch.setattr(worker.queue, "put", lambda _: 1 / 0)
    worker.slow("a")
    worker.slow("b")
    assert worker.counted("telemetry_errors_total", signal="traces") == 1
    assert worker.counted("reads_landed_total") == 6
    assert worker.recorded() == []


def queue_of(limit: int, wake: Callable[[], None] = lambda: None) -> tuple[SpanQueue, Counter]:
    dropped = Counter()
    return SpanQueue(limit, dropped, wake), dropped


def hold_record(number: int) -> HoldRecord:
    return HoldRecord(SpanContext(1, number, sampled=True), None, "r", 1, 0.0, 1.0, "released")


def test_a_full_queue_keeps_what_it_has_and_counts_what_it_does_not_take() -> None:
    queue, dropped = queue_of(2)
    for number in range(5):
        queue.put(hold_record(number))
    assert [record.context.span_id for record in queue.take(10)] == [0, 1]
    assert dropped.value == 3


def test_a_queue_that_is_half_full_wakes_whoever_empties_it() -> None:
    woken: list[int] = []
    queue, _ = queue_of(4, lambda: woken.append(len(queue)))
    queue.put(hold_record(0))
    assert woken == []
    queue.put(hold_record(1))
    assert woken == [2]


def test_a_queue_is_emptied_by_the_batch() -> None:
    queue, _ = queue_of(10)
    for number in range(3):
        queue.put(hold_record(number))
    assert [len(queue.take(2)) for _ in range(3)] == [2, 1, 0]


class Holder:
    def __init__(self, ratio: float) -> None:
        self.clock = FakeClock()
        self.queue, _ = queue_of(10)
        containment = Containment(Aggregate(source="scheduler"), "nothing.", signal="traces")
        self.holds = HoldRecorder(
            self.queue, Sampler(ratio), containment=containment, clock=self.clock
        )

    def hold(self, traceparent: str | None, ended: Collection[str], outcome: str) -> list[Records]:
        self.holds.held("r", traceparent, 4)
        self.clock.sleep(2)
        self.holds.ended(ended, outcome)
        return self.queue.take(10)


def test_blocks_are_held_until_they_are_released() -> None:
    [record] = Holder(0).hold(SAMPLED, ["r", "unknown"], "released")
    assert isinstance(record, HoldRecord)
    assert record.parent == SpanContext(TRACE, CALLER, sampled=True)
    assert (record.blocks, record.ended_at - record.started_at) == (4, 2)


def test_blocks_whose_time_has_run_out_are_always_kept() -> None:
    [record] = Holder(0).hold(None, ["r"], "expired")
    assert isinstance(record, HoldRecord)
    assert record.outcome == "expired"
    assert Holder(0).hold(None, ["r"], "released") == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "garbage",
        f"00-{0:032x}-{1:016x}-01",
        f"00-{1:032x}-{0:016x}-01",
        f"ff-{1:032x}-{1:016x}-01",
        f"00-{1:032x}-{1:016x}-01-more",
        f"00-{1:032X}-{1:016x}-0G",
        f"00-{TRACE:032x}-{CALLER:016x}",
    ],
)
def test_what_is_no_traceparent_counts_as_none(text: str) -> None:
    assert parse_traceparent(text) is None


def test_a_traceparent_of_a_later_version_is_read_as_far_as_it_is_known() -> None:
    context = SpanContext(TRACE, CALLER, sampled=True)
    assert parse_traceparent(SAMPLED) == context
    assert parse_traceparent(f"01-{TRACE:032x}-{CALLER:016x}-03-later") == context


def test_ids_are_never_zero() -> None:
    numbers = count()
    context = Sampler(0, lambda _: 0 * next(numbers)).child(None)
    assert context.trace_id != 0 != context.span_id
