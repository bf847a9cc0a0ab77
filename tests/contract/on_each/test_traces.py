"""A request's trace context on its way through one version, and the spans that come of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from moriio_observed import upstream
from moriio_observed.demo.faults import FaultFile
from moriio_observed.upstream import TransferError
from tests.contract.on_each.decode import Decode
from tests.contract.on_each.expected import FAILS_STEP
from tests.unit.collectors import Collector, HttpCollector

GetDecode = Callable[..., Decode]

TRACE, CALLER = f"{0xABC:032x}", f"{0x77:016x}"
SAMPLED = f"00-{TRACE}-{CALLER}-01"
PROMPTS = [list(range(start, start + 40)) for start in (10, 20)]
SLOW = {"rules": [{"latency_s": 0.3}]}
ERROR = 2


@pytest.fixture(autouse=True)
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """Takes the spans of the engine that is made next, as vLLM's own option would name it."""
    with HttpCollector() as collector:
        endpoint = f"{collector.endpoint}/v1/traces"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", endpoint)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", collector.protocol)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        yield collector


def spans_in(requests: list[Any]) -> Iterator[Any]:
    for request in requests:
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                yield from scope.spans


def spans_of(collector: Collector, *names: str) -> dict[str, list[Any]]:
    """The spans of our trace by name, once there is one of each of these names."""
    taken = 0
    while True:
        found: dict[str, list[Any]] = {}
        for span in spans_in(collector.taken("traces", taken)):
            if span.trace_id.hex() == TRACE:
                found.setdefault(span.name, []).append(span)
        if found.keys() >= set(names):
            return found
        taken += 1


def attributes(span: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}


def test_read_step_and_barrier_stand_in_the_requests_trace(
    decode: GetDecode, faults: FaultFile, collector: Collector
) -> None:
    d = decode()
    faults.set(SLOW)
    asked = d.ask(PROMPTS[0], traceparent=SAMPLED)
    d.serve()
    spans = spans_of(collector, "moriio.read", "moriio.step", "moriio.barrier")
    [read], [step] = spans["moriio.read"], spans["moriio.step"]
    assert {read.parent_span_id.hex(), step.parent_span_id.hex()} == {CALLER}
    assert {span.parent_span_id for span in spans["moriio.barrier"]} == {step.span_id}
    assert [link.span_id for link in step.links] == [read.span_id]
    assert attributes(read)["moriio.request_id"] == asked.request_id


@pytest.mark.parametrize("guard", ["recompute", "fail"])
def test_with_a_guard_the_read_says_how_long_its_request_was_held_back(
    decode: GetDecode, faults: FaultFile, collector: Collector, guard: str
) -> None:
    d = decode(guard=guard)
    faults.set(SLOW)
    d.ask(PROMPTS[0], traceparent=SAMPLED)
    d.serve()
    [read] = spans_of(collector, "moriio.read")["moriio.read"]
    assert read.parent_span_id.hex() == CALLER
    assert attributes(read)["moriio.outcome"] == "landed"


def test_with_a_guard_a_read_that_failed_says_what_became_of_its_request(
    decode: GetDecode, faults: FaultFile, collector: Collector
) -> None:
    d = decode(guard="recompute")
    faults.set({"reset_ordinals": True, "rules": [{"requests": [0], "layers": [1], "fail": True}]})
    d.ask(PROMPTS[0], traceparent=SAMPLED)
    d.serve()
    [read] = spans_of(collector, "moriio.read")["moriio.read"]
    told = attributes(read)
    assert read.status.code == ERROR
    assert (told["moriio.outcome"], told["moriio.exposure.action"]) == ("failed", "recomputed")


def test_a_barrier_that_gave_up_is_told_even_where_vllm_fails_the_step(
    decode: GetDecode, faults: FaultFile, collector: Collector
) -> None:
    d = decode(deadline_s=2)
    faults.set({"reset_ordinals": True, "rules": [{"requests": [0], "layers": [2], "hang": True}]})
    d.ask(PROMPTS[0], max_tokens=1, traceparent=SAMPLED)
    with pytest.raises(TransferError) if FAILS_STEP else contextlib.nullcontext():
        d.serve()
    spans = spans_of(collector, "moriio.step", "moriio.barrier")
    assert [span.status.code for span in spans["moriio.step"]] == [ERROR]
    assert ERROR in [span.status.code for span in spans["moriio.barrier"]]


def test_the_engine_has_the_label_it_has_on_the_metrics_page(decode: GetDecode) -> None:
    config = decode().engine.config
    config.parallel_config.data_parallel_index = 3
    assert upstream.metric_labels(config)["engine"] == "3"
