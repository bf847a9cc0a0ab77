"""The spans made of what was recorded, and their way out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import SpanKind, StatusCode

from moriio_observed.reads import Exposure
from moriio_observed.telemetry.aggregate import Counter
from moriio_observed.telemetry.records import (
    BarrierRecord,
    HoldRecord,
    ReadRecord,
    SpanContext,
    StepRecord,
)
from moriio_observed.telemetry.span_queue import Sampler, SpanQueue
from moriio_observed.telemetry.tracing import SpanBuilder, TraceOutlet

EPOCH_NS = 1_700_000_000_000_000_000
CALLER = SpanContext(0xABC, 1, sampled=True)
STEP = SpanContext(0xABC, 2, sampled=True)
READ = SpanContext(0xABC, 3, sampled=True)
BARRIER = BarrierRecord(10.0, 0.5, "layer", 7, 4, 0, 0)
NOT_EXPOSED = (None, None)
RESOURCE = Resource({"service.name": "vllm"})


def step(**changes: Any) -> StepRecord:
    whole = StepRecord(
        STEP,
        CALLER,
        (READ,),
        12,
        9.5,
        11.0,
        "PIECEWISE",
        1,
        0.5,
        (BARRIER,),
        (),
        None,
        failed=False,
    )
    return whole._replace(**changes)


def read(**changes: Any) -> ReadRecord:
    whole = ReadRecord(
        READ,
        CALLER,
        (STEP,),
        "r-1",
        "10.0.0.1:7301",
        300,
        3,
        9.0,
        10.5,
        "landed",
        (),
        (),
        None,
        None,
    )
    return whole._replace(**changes)


def hold(**changes: Any) -> HoldRecord:
    return HoldRecord(READ, CALLER, "r-1", 4, 1.0, 3.0, "released")._replace(**changes)


def spans_of(*records: Any, hash_ids: bool = False) -> list[ReadableSpan]:
    builder = SpanBuilder(
        RESOURCE, hash_ids=hash_ids, sampler=Sampler(0), offset_ns=lambda: EPOCH_NS
    )
    return [span for record in records for span in builder.build(record)]


EXPOSURE = Exposure("r-1", "timeout", certain=False, layers=(3, 4))


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_a_step_is_a_child_of_its_request_and_links_to_the_reads() -> None:
    span, _ = spans_of(step())
    assert (span.name, span.kind, span.resource) == ("moriio.step", SpanKind.INTERNAL, RESOURCE)
    assert span.parent is not None
    assert (span.context.trace_id, span.context.span_id, span.parent.span_id) == (0xABC, 2, 1)
    assert [link.context.span_id for link in span.links] == [3]
    assert attributes(span) == {
        "moriio.step.number": 12,
        "moriio.runtime_mode": "PIECEWISE",
        "moriio.requests": 1,
        "moriio.reads": 4,
        "moriio.blocked_s": 0.5,
        "moriio.exposed": 0,
    }


def test_a_barrier_is_a_child_of_its_step_with_the_times_of_the_wait() -> None:
    _, span = spans_of(step())
    assert span.parent is not None
    assert (span.name, span.parent.span_id, span.context.trace_id) == ("moriio.barrier", 2, 0xABC)
    assert span.context.span_id not in (0, 1, 2, 3)
    assert span.start_time == EPOCH_NS + 10_000_000_000
    assert span.end_time == EPOCH_NS + 10_500_000_000
    assert attributes(span) == {
        "moriio.site": "layer",
        "moriio.layer": 7,
        "moriio.reads": 4,
        "moriio.reads.failed": 0,
        "moriio.reads.in_flight": 0,
        "moriio.outcome": "landed",
    }


def test_a_read_is_a_call_to_the_remote_engine_in_the_requests_trace() -> None:
    [span] = spans_of(read())
    assert span.parent is not None
    assert (span.name, span.kind, span.parent.span_id) == ("moriio.read", SpanKind.CLIENT, 1)
    assert [link.context.span_id for link in span.links] == [2]
    assert span.status.status_code is StatusCode.UNSET
    assert attributes(span) == {
        "moriio.request_id": "r-1",
        "moriio.remote": "10.0.0.1:7301",
        "moriio.bytes": 300,
        "moriio.layers": 3,
        "moriio.outcome": "landed",
    }


def test_held_blocks_are_a_span_of_the_prefill_engine() -> None:
    [span] = spans_of(hold())
    assert (span.name, attributes(span)["moriio.blocks"]) == ("moriio.hold", 4)
    assert (span.end_time or 0) - (span.start_time or 0) == 2_000_000_000


def test_a_root_has_no_parent() -> None:
    assert spans_of(read(parent=None))[0].parent is None


@pytest.mark.parametrize(
    ("record", "error"),
    [
        (step(cause="full_graph"), "full_graph"),
        (step(failed=True), "step_failed"),
        (step(barriers=(BARRIER._replace(in_flight=1),)), "timeout"),
        (read(outcome="failed", errors=("ERR_RDMA_OP",)), "ERR_RDMA_OP"),
        (read(outcome="aborted"), "aborted"),
        (read(exposure=EXPOSURE, action="reported"), "timeout"),
        (read(outcome="failed", errors=("ERR_RDMA_OP",), exposure=EXPOSURE), "ERR_RDMA_OP"),
        (hold(outcome="expired"), "expired"),
    ],
)
def test_what_went_wrong_is_an_error_with_its_type(record: Any, error: str) -> None:
    span = spans_of(record)[0]
    assert span.status.status_code is StatusCode.ERROR
    assert attributes(span)["error.type"] == error


def test_a_barrier_that_gave_up_or_saw_a_failure_is_an_error() -> None:
    barriers = (BARRIER._replace(in_flight=1), BARRIER._replace(failed=1), BARRIER)
    _, *made = spans_of(step(barriers=barriers))
    assert [attributes(span).get("error.type") for span in made] == ["timeout", "failed", None]


def test_an_exposure_says_why_how_certain_and_what_became_of_it() -> None:
    [span] = spans_of(read(exposure=EXPOSURE, action="recomputed", missing=(3,)))
    given = attributes(span)
    assert given["moriio.exposure.cause"] == "timeout"
    assert given["moriio.exposure.certainty"] == "possible"
    assert given["moriio.exposure.layers"] == (3, 4)
    assert given["moriio.exposure.action"] == "recomputed"
    assert given["moriio.layers.missing"] == (3,)


def test_request_ids_are_cut_and_escaped() -> None:
    [span] = spans_of(read(request_id="a\n\x1b[31m" + "x" * 10_000))
    shown = attributes(span)["moriio.request_id"]
    assert shown.startswith("a\\n\\x1b[31mxxx")
    assert shown.isprintable()
    assert len(shown) < 600


def test_a_step_names_who_was_first_exposed_in_it() -> None:
    span, *_ = spans_of(step(exposed=tuple(f"r-{n}" for n in range(30))))
    assert attributes(span)["moriio.exposed"] == 30
    named = attributes(span)["moriio.exposed.request_ids"]
    assert (len(named), named[:2]) == (16, ("r-0", "r-1"))


def test_request_ids_are_hashed_on_demand_alike_in_every_span() -> None:
    spans = spans_of(read(), hold(), hash_ids=True)
    first, second = (attributes(span)["moriio.request_id"] for span in spans)
    assert first == second
    assert "r-1" not in first
    assert "r-1" not in str([span.to_json() for span in spans])


class Exporter(SpanExporter):
    def __init__(self, *results: SpanExportResult | Exception) -> None:
        self.batches: list[Sequence[ReadableSpan]] = []
        self.results = list(results)
        self.closed = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.batches.append(spans)
        result = self.results.pop(0) if self.results else SpanExportResult.SUCCESS
        if isinstance(result, Exception):
            raise result
        return result

    def shutdown(self) -> None:
        self.closed = True


def outlet(exporter: Exporter, records: int) -> TraceOutlet:
    queue = SpanQueue(100, Counter(), lambda: None)
    ids = count(1)
    for _ in range(records):
        queue.put(hold(context=SpanContext(1, next(ids), sampled=True)))
    builder = SpanBuilder(RESOURCE, hash_ids=False, sampler=Sampler(0))
    return TraceOutlet(queue, builder, lambda: exporter, interval_s=5, batch=2)


def test_what_waits_is_sent_by_the_batch() -> None:
    exporter = Exporter()
    assert outlet(exporter, 5).flush() == 0
    assert [len(batch) for batch in exporter.batches] == [2, 2, 1]


def test_nothing_is_sent_where_nothing_waits() -> None:
    exporter = Exporter()
    assert outlet(exporter, 0).flush() is None
    assert exporter.batches == []


@pytest.mark.parametrize("failure", [SpanExportResult.FAILURE, RuntimeError("no")])
def test_spans_that_could_not_be_sent_are_told_and_the_others_go_on_waiting(
    failure: SpanExportResult | Exception,
) -> None:
    exporter = Exporter(SpanExportResult.SUCCESS, failure)
    out = outlet(exporter, 6)
    assert out.flush() == 2
    assert len(exporter.batches) == 2
    assert out.flush() == 0
    assert len(exporter.batches) == 3


def test_no_export_holds_more_spans_than_a_batch() -> None:
    exporter = Exporter()
    out = outlet(exporter, 1)
    out._queue.put(step(barriers=(BARRIER,) * 10))
    assert out.flush() == 0
    assert [len(batch) for batch in exporter.batches] == [2] * 6


def test_a_record_of_which_no_span_can_be_made_is_told_and_those_before_it_are_sent() -> None:
    exporter = Exporter()
    out = outlet(exporter, 1)
    out._queue.put(read(nbytes=1, layers="\udcff", remote=None))
    assert out.flush() == 1
    assert [len(batch) for batch in exporter.batches] == [1]


def test_an_exporter_is_closed_if_it_was_ever_made() -> None:
    exporter = Exporter()
    out = outlet(exporter, 1)
    out.close(1.0)
    assert not exporter.closed
    out.flush()
    out.close(1.0)
    assert exporter.closed
