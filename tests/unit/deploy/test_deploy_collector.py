"""The Collector's example, held against the spans that we send. It is not run: none is at hand."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import jsonschema
import pytest
import yaml
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan

from moriio_observed.config import Otlp
from moriio_observed.doctor.versions import DEADLINES
from moriio_observed.reads import Exposure
from moriio_observed.telemetry.records import (
    BarrierRecord,
    HoldRecord,
    ReadRecord,
    SpanContext,
    StepRecord,
)
from moriio_observed.telemetry.span_queue import Sampler
from moriio_observed.telemetry.tracing import SpanBuilder
from tests.unit.deploy.manifests import DEPLOY

EXAMPLE: dict[str, Any] = yaml.safe_load((DEPLOY / "collector" / "otelcol.yaml").read_text())
SAMPLING = EXAMPLE["processors"]["tail_sampling"]
SEND_DELAY_S = 5
"""OpenTelemetry's default of OTEL_BSP_SCHEDULE_DELAY."""
CONTEXT = SpanContext(0xABC, 1, sampled=True)
SLOW_S = Otlp().slow_wait_s


def closed(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


DURATION = {"type": "string", "pattern": r"^\d+(ms|s|m)$"}
COUNT = {"type": "integer", "minimum": 1}
TEXT = {"type": "string"}
POLICY = {
    **closed(
        name=TEXT,
        type={"enum": ["status_code", "ottl_condition", "probabilistic"]},
        status_code=closed(status_codes={"items": {"enum": ["OK", "ERROR", "UNSET"]}}),
        ottl_condition=closed(
            error_mode={"enum": ["ignore", "silent", "propagate"]},
            span={"type": "array", "items": TEXT},
        ),
        probabilistic=closed(sampling_percentage={"type": "number", "minimum": 0}),
    ),
    "required": ["name", "type"],
}
# What of each component is used here, as the components' config.schema.yaml and README had it in
# 2026 (the Collector 0.150 and contrib's).
COMPONENTS = closed(
    receivers=closed(
        otlp=closed(protocols=closed(grpc=closed(endpoint=TEXT), http=closed(endpoint=TEXT))),
        prometheus=closed(config=closed(scrape_configs={"type": "array"})),
    ),
    processors=closed(
        memory_limiter=closed(
            check_interval=DURATION, limit_percentage=COUNT, spike_limit_percentage=COUNT
        ),
        tail_sampling=closed(
            decision_wait=DURATION,
            num_traces=COUNT,
            decision_cache=closed(sampled_cache_size=COUNT),
            policies={"type": "array", "items": POLICY},
        ),
    ),
    exporters=closed(
        otlp=closed(endpoint=TEXT, tls=closed(insecure={"type": "boolean"})),
        prometheusremotewrite=closed(endpoint=TEXT),
    ),
    service=closed(pipelines={"type": "object"}),
)
CONDITION = re.compile(
    r'name == "(?P<name>[\w.]+)" and end_time_unix_nano - start_time_unix_nano >= (?P<ns>\d+)'
)


def barrier(seconds: float = 0.5, failed: int = 0, in_flight: int = 0) -> BarrierRecord:
    return BarrierRecord(10.0, seconds, "layer", 7, 4, failed, in_flight)


def step(*barriers: BarrierRecord, cause: str | None = None, failed: bool = False) -> StepRecord:
    exposed = () if cause is None else ("r-1",)
    times = (9.5, 11.0)
    waits = (0.5, barriers)
    return StepRecord(
        CONTEXT, None, (), 12, *times, "PIECEWISE", 1, *waits, exposed, cause, failed=failed
    )


def read(outcome: str = "landed", seconds: float = 0.01, **more: Any) -> ReadRecord:
    told = {"errors": (), "missing": (), "exposure": None, "action": None, **more}
    places = ("r-1", "10.0.0.1:7301", 300, 3)
    return ReadRecord(CONTEXT, None, (), *places, 9.0, 9.0 + seconds, outcome, **told)


def hold(outcome: str) -> HoldRecord:
    return HoldRecord(CONTEXT, None, "r-1", 4, 1.0, 3.0, outcome)


def spans_of(record: Any) -> list[ReadableSpan]:
    return SpanBuilder(Resource({}), hash_ids=False, sampler=Sampler(0)).build(record)


def keeps(policy: Mapping[str, Any], span: ReadableSpan) -> bool:
    """Whether a policy keeps a span's trace; what is kept by chance is not."""
    match policy["type"]:
        case "status_code":
            return span.status.status_code.name in policy["status_code"]["status_codes"]
        case "ottl_condition":
            conditions = [CONDITION.fullmatch(each) for each in policy["ottl_condition"]["span"]]
            assert all(conditions)
            took = (span.end_time or 0) - (span.start_time or 0)
            return any(
                (each["name"], True) == (span.name, took >= int(each["ns"]))
                for each in conditions
                if each
            )
        case _:
            return False


def is_kept(record: Any) -> bool:
    return any(keeps(policy, span) for span in spans_of(record) for policy in SAMPLING["policies"])


def test_every_key_is_one_that_its_component_knows() -> None:
    jsonschema.validate(EXAMPLE, COMPONENTS)
    for policy in SAMPLING["policies"]:
        assert set(policy) == {"name", "type", policy["type"]}


def test_the_pipelines_use_every_component_and_no_other() -> None:
    for kind in ("receivers", "processors", "exporters"):
        used = {name for one in EXAMPLE["service"]["pipelines"].values() for name in one[kind]}
        assert used == set(EXAMPLE[kind])


def test_memory_is_limited_before_anything_else() -> None:
    for pipeline in EXAMPLE["service"]["pipelines"].values():
        assert pipeline["processors"][0] == "memory_limiter"


EXPOSED = {"exposure": Exposure("r-1", "timeout", certain=True, layers=(3,))}


@pytest.mark.parametrize(
    "record",
    [
        step(barrier(in_flight=1), cause="timeout"),
        step(barrier(0.01), cause="full_graph"),
        step(barrier(0.01, failed=1)),
        step(barrier(0.01), failed=True),
        read("failed", errors=("ERR_RDMA_OP",)),
        read("aborted", missing=(3,)),
        read(**EXPOSED, action="reported"),
        read(**EXPOSED, action="recomputed"),
        hold("expired"),
    ],
    ids=[
        "timeout",
        "unprotected",
        "failed in a barrier",
        "failed step",
        "failed read",
        "aborted read",
        "exposed",
        "recomputed",
        "expired hold",
    ],
)
def test_every_error_and_exposure_is_kept(record: Any) -> None:
    assert is_kept(record)


def test_a_wait_that_the_engine_always_keeps_is_kept_and_a_shorter_one_left_to_chance() -> None:
    assert is_kept(step(barrier(SLOW_S)))
    assert is_kept(read(seconds=SLOW_S + 0.001))
    assert not is_kept(step(barrier(SLOW_S * 0.9)))
    assert not is_kept(read(seconds=SLOW_S * 0.9))
    assert not is_kept(hold("released"))


def test_the_decision_waits_for_the_span_of_a_read_that_upstream_has_given_up() -> None:
    waits = int(SAMPLING["decision_wait"].removesuffix("s"))
    assert waits > DEADLINES["recv_abort_timeout"] + SEND_DELAY_S


def test_a_late_error_of_a_trace_that_was_not_kept_is_looked_at_anew() -> None:
    assert "non_sampled_cache_size" not in SAMPLING["decision_cache"]
    assert SAMPLING["decision_cache"]["sampled_cache_size"] >= 10 * SAMPLING["num_traces"]
