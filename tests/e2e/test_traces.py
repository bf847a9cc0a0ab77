"""A user's request as one trace: the client, vLLM, and the read and the barrier that was slow."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, count
from typing import Any

import pytest
from prometheus_client.utils import floatToGoString

from moriio_observed.demo.client import Answer
from moriio_observed.demo.measure import Observation
from moriio_observed.demo.metrics import Scrape, scrape
from moriio_observed.demo.model import LAYERS
from moriio_observed.demo.pair import Fleet, Pair
from moriio_observed.demo.phases import HUNG_READ
from moriio_observed.demo.server import ServerSettings, transfer_config
from moriio_observed.demo.workload import prompts
from tests.e2e import otlp_collector
from tests.unit.collectors import Collector, GrpcCollector

SLOW_LAYER = 2
SLOW_S = 0.6
ONE_SLOW_LAYER = {"rules": [{"layers": [SLOW_LAYER], "latency_s": SLOW_S}]}
WAIT_S = 60.0
CLIENT = "client"


@dataclass(frozen=True)
class Span:
    """A span as the sink got it.

    Attributes:
        name: Its name.
        trace: Its trace.
        span: Its id.
        parent: Its parent's.
        start: When it began, seconds since the epoch.
        end: When it ended.
        attributes: Its attributes.
        links: The spans it links to.
        error: Whether it is an error.
        resource: The attributes of whoever sent it.
    """

    name: str
    trace: str
    span: str
    parent: str
    start: float
    end: float
    attributes: Mapping[str, Any]
    links: tuple[str, ...]
    error: bool
    resource: Mapping[str, Any]


def plain(attributes: Any) -> dict[str, Any]:
    return {
        one.key: getattr(one.value, one.value.WhichOneof("value") or "string_value")
        for one in attributes
    }


def spans_in(sink: Collector) -> Iterator[Span]:
    for request in sink.taken("traces", 0):
        for resource in request.resource_spans:
            sender = plain(resource.resource.attributes)
            for scope in resource.scope_spans:
                for span in scope.spans:
                    yield Span(
                        span.name,
                        span.trace_id.hex(),
                        span.span_id.hex(),
                        span.parent_span_id.hex(),
                        span.start_time_unix_nano / 1e9,
                        span.end_time_unix_nano / 1e9,
                        plain(span.attributes),
                        tuple(link.span_id.hex() for link in span.links),
                        span.status.code == 2,
                        sender,
                    )


@dataclass(frozen=True)
class Traced:
    """A pair whose telemetry ends in a sink of ours."""

    pair: Pair
    sink: Collector

    def ask(self, asked: Sequence[str], max_tokens: int = 8) -> list[Answer]:
        return replace(self.pair.client, traced=True).ask(asked, max_tokens)

    def trace(self, trace_id: str, names: Sequence[str]) -> dict[str, list[Span]]:
        """The spans of a trace by name, once there are those of all names, a name twice for two."""
        deadline = time.monotonic() + WAIT_S
        while True:
            found: dict[str, list[Span]] = {}
            for span in spans_in(self.sink):
                if span.trace == trace_id:
                    found.setdefault(span.name, []).append(span)
            if Counter(names) <= Counter({name: len(spans) for name, spans in found.items()}):
                return found
            assert time.monotonic() < deadline, f"{trace_id} has only {sorted(found)}"
            time.sleep(0.2)


@pytest.fixture(scope="module")
def sink() -> Iterator[Collector]:
    with GrpcCollector() as sink:
        yield sink


@pytest.fixture(scope="module")
def collector(fleet: Fleet, sink: Collector, tmp_path_factory: pytest.TempPathFactory) -> str:
    return otlp_collector.start(
        fleet, sink.endpoint, tmp_path_factory.mktemp("rotel") / "rotel.log"
    )


@pytest.fixture
def traced(pair: Callable[..., Pair], sink: Collector, collector: str) -> Traced:
    env = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector,
        "OTEL_EXPORTER_OTLP_INSECURE": "true",
        "OTEL_BSP_SCHEDULE_DELAY": "200",
        "OTEL_METRIC_EXPORT_INTERVAL": "500",
    }
    flags = ("--otlp-traces-endpoint", collector)
    observed = {"otlp": {"sample_ratio": 0}}
    return Traced(
        pair(
            ServerSettings(transfer_config("kv_consumer", observed=observed), env, flags),
            ServerSettings(transfer_config("kv_producer", observed=observed), env, flags),
        ),
        sink,
    )


OURS = ("moriio.read", "moriio.step", "moriio.barrier", "moriio.hold")
VLLM = "llm_request"


@pytest.fixture
def slowed(traced: Traced) -> tuple[Answer, dict[str, list[Span]]]:
    """One request whose layer 2 was slow."""
    traced.ask(prompts(800, 2))
    traced.pair.faults.set(ONE_SLOW_LAYER)
    [answer] = traced.ask(prompts(801, 1))
    traced.pair.faults.clear()
    assert answer.error is None
    # vLLM has one of its own in each engine.
    return answer, traced.trace(answer.trace_id, [*OURS, VLLM, VLLM])


def test_one_trace_has_vllms_spans_and_ours_as_children_of_the_clients(
    slowed: tuple[Answer, dict[str, list[Span]]],
) -> None:
    answer, spans = slowed
    client = answer.trace_id[-16:]
    for name in (VLLM, "moriio.read", "moriio.step", "moriio.hold"):
        assert {span.parent for span in spans[name]} == {client}
    [step] = spans["moriio.step"]
    assert {span.parent for span in spans["moriio.barrier"]} == {step.span}


def test_the_slow_barrier_is_that_of_the_layer_which_was_slow(
    slowed: tuple[Answer, dict[str, list[Span]]],
) -> None:
    _, spans = slowed
    slow = [span for span in spans["moriio.barrier"] if span.end - span.start >= SLOW_S / 2]
    assert [span.attributes.get("moriio.layer") for span in slow] == [SLOW_LAYER]


def test_the_read_and_the_step_link_to_each_other(
    slowed: tuple[Answer, dict[str, list[Span]]],
) -> None:
    _, spans = slowed
    [read], [step] = spans["moriio.read"], spans["moriio.step"]
    assert (read.links, step.links) == ((step.span,), (read.span,))


def test_our_spans_are_within_the_requests_as_vllm_has_it(
    slowed: tuple[Answer, dict[str, list[Span]]],
) -> None:
    _, spans = slowed
    decode = max(spans[VLLM], key=lambda span: span.end)
    for name in ("moriio.read", "moriio.step", "moriio.barrier"):
        for span in spans[name]:
            assert decode.start <= span.start <= span.end <= decode.end


def test_a_read_says_from_where_how_much_and_how_it_ended(
    slowed: tuple[Answer, dict[str, list[Span]]],
) -> None:
    answer, spans = slowed
    [read] = spans["moriio.read"]
    assert read.attributes["moriio.outcome"] == "landed"
    assert read.attributes["moriio.layers"] == LAYERS
    assert read.attributes["moriio.bytes"] > 0
    assert read.attributes["moriio.remote"]
    assert answer.is_known_as(read.attributes["moriio.request_id"])
    assert read.end - read.start == pytest.approx(SLOW_S, rel=0.5)
    assert read.resource["moriio.role"] == "kv_consumer"


def test_the_prefill_engine_says_for_how_long_it_has_held_the_blocks(
    slowed: tuple[Answer, dict[str, list[Span]]],
) -> None:
    _, spans = slowed
    [hold], [read] = spans["moriio.hold"], spans["moriio.read"]
    assert hold.attributes["moriio.outcome"] == "released"
    assert hold.resource["moriio.role"] == "kv_producer"
    assert hold.start <= read.start
    assert hold.end >= read.end


def test_an_exposed_request_is_an_error_in_its_own_trace(traced: Traced) -> None:
    observation = Observation(traced.pair.decode)
    traced.pair.faults.set(HUNG_READ)
    answers = traced.ask(prompts(802, 8))
    _, [event] = observation.settled(8)
    [exposed] = [answer for answer in answers if answer.is_known_as(event["request_id"])]
    [read] = traced.trace(exposed.trace_id, ["moriio.read"])["moriio.read"]
    assert read.error
    assert read.attributes["error.type"] == "timeout"
    assert read.attributes["moriio.exposure.certainty"] == "certain"
    others = {answer.trace_id for answer in answers} - {exposed.trace_id}
    reads = [span for span in spans_in(traced.sink) if span.name == "moriio.read"]
    assert not any(span.error for span in reads if span.trace in others)


def test_no_span_holds_a_prompt_or_an_answer(traced: Traced) -> None:
    [asked] = prompts(803, 1)
    [answer] = traced.ask([asked])
    spans = traced.trace(answer.trace_id, OURS)
    ours = str([span for name in OURS for span in spans[name]])
    assert asked not in ours
    assert answer.text.strip()
    assert answer.text.strip() not in ours


Key = tuple[str, tuple[tuple[str, str], ...]]


def key_of(name: str, labels: Mapping[str, str]) -> Key:
    return name, tuple(sorted(labels.items()))


def on_page(have: Scrape) -> dict[Key, float]:
    """What a metrics page shows of ours."""
    return {
        key_of(name, dict(labels)): value
        for (name, labels), value in have.samples.items()
        if name.startswith("moriio_")
    }


def translated(metric: Any) -> str:
    """The name Prometheus gives a metric that comes by OTLP."""
    name: str = metric.name.replace(".", "_")
    suffix = {"s": "_seconds", "By": "_bytes", "": ""}[metric.unit]
    name = name if name.endswith(suffix) else name + suffix
    return f"{name}_total" if metric.WhichOneof("data") == "sum" else name


def samples_of(metric: Any) -> Iterator[tuple[Key, float]]:
    """The samples Prometheus makes of a metric."""
    name, kind = translated(metric), metric.WhichOneof("data")
    for point in getattr(metric, kind).data_points:
        labels = {key: str(value) for key, value in plain(point.attributes).items()}
        if kind != "histogram":
            yield key_of(name, labels), point.as_double or float(point.as_int)
            continue
        bounds = [floatToGoString(bound) for bound in (*point.explicit_bounds, math.inf)]
        for bound, below in zip(bounds, accumulate(point.bucket_counts), strict=True):
            yield key_of(f"{name}_bucket", {**labels, "le": bound}), below
        yield key_of(f"{name}_sum", labels), point.sum
        yield key_of(f"{name}_count", labels), point.count


def sent_by(sink: Collector, role: str) -> dict[Key, float]:
    """What the latest points of all senders of an engine come to."""
    latest: dict[tuple[str, Key], float] = {}
    for request in sink.taken("metrics", 0):
        for resource in request.resource_metrics:
            sender = plain(resource.resource.attributes)
            if sender["moriio.role"] == role:
                for scope in resource.scope_metrics:
                    for metric in scope.metrics:
                        for key, value in samples_of(metric):
                            latest[sender["service.instance.id"], key] = value
    together: dict[Key, float] = {}
    for (_, key), value in latest.items():
        together[key] = together.get(key, 0.0) + value
    return together


def test_metrics_over_otlp_are_those_of_the_metrics_page_name_by_name_and_value_by_value(
    traced: Traced,
) -> None:
    traced.ask(prompts(804, 4))
    deadline = time.monotonic() + WAIT_S
    for seed in count(900):
        # Steps without reads are told of with the next one that has some.
        traced.ask(prompts(seed, 1), max_tokens=1)
        page = on_page(scrape(traced.pair.decode.ports.url))
        time.sleep(1)
        sent = sent_by(traced.sink, "kv_consumer")
        assert page.keys() == sent.keys()
        different = {key for key in page if page[key] != pytest.approx(sent[key], abs=0.01)}
        if not different:
            break
        assert time.monotonic() < deadline, {key: (page[key], sent[key]) for key in different}
    assert sent[key_of("moriio_requests_total", {"engine": "0", "model_name": "tiny"})] >= 4
