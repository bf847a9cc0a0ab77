"""docs/traces.md has every span, and every attribute on the spans that carry it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from opentelemetry.sdk.resources import Resource

from moriio_observed.reads import Exposure
from moriio_observed.telemetry.destination import Identity, resource
from moriio_observed.telemetry.records import (
    BarrierRecord,
    HoldRecord,
    ReadRecord,
    SpanContext,
    StepRecord,
)
from moriio_observed.telemetry.span_queue import Sampler
from moriio_observed.telemetry.tracing import SpanBuilder

TEXT = (Path(__file__).parents[3] / "docs" / "traces.md").read_text()
CONTEXT = SpanContext(1, 2, sampled=True)

# As much as can be said of each.
EXPOSURE = Exposure("r", "timeout", certain=True, layers=(3,))
BARRIER = BarrierRecord(1.0, 0.5, "layer", 3, reads=2, failed=1, in_flight=1)
RECORDS = (
    StepRecord(
        *(CONTEXT, None, (), 1, 1.0, 2.0, "FULL", 1, 0.5, (BARRIER,), ("r",), "timeout"),
        failed=True,
    ),
    ReadRecord(
        *(CONTEXT, None, (), "r", "remote", 8, 4, 1.0, 2.0, "failed"),
        errors=("ERR_RDMA_OP",),
        missing=(3,),
        exposure=EXPOSURE,
        action="reported",
    ),
    HoldRecord(CONTEXT, None, "r", 4, 1.0, 2.0, "expired"),
)


def rows(head: str) -> Iterator[list[str]]:
    """The cells of each row of the table that begins so."""
    _, _, rest = TEXT.partition(f"\n| {head} |")
    assert rest, head
    for line in rest.splitlines()[2:]:
        if not line.startswith("|"):
            return
        yield [cell.strip() for cell in line.strip("|").split("|")]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def carried() -> set[tuple[str, str]]:
    """Every span with each of its attributes."""
    builder = SpanBuilder(Resource({}), hash_ids=False, sampler=Sampler(0))
    return {
        (span.name, attribute)
        for record in RECORDS
        for span in builder.build(record)
        for attribute in span.attributes or ()
    }


def test_every_span_has_its_row_and_no_other() -> None:
    assert {name for span, *_ in rows("span") for name in names(span)} == {
        span for span, _ in carried()
    }


def test_every_attribute_stands_on_the_spans_that_carry_it_and_on_no_other() -> None:
    told = {
        (f"moriio.{span}", attribute)
        for attributes, spans, _ in rows("attribute")
        for attribute in names(attributes)
        for span in spans.split(", ")
    }
    assert told == carried()


def test_every_attribute_of_the_resource_is_told() -> None:
    who = Identity(
        role="kv_consumer",
        tp_rank="0",
        engine="0",
        model="m",
        vllm_version="0.32.0",
        mori_version="1.2.4",
        version="0.1.0",
    )
    ours = {name for name in resource(who).attributes if name.startswith("moriio.")}
    assert ours
    assert [name for name in ours if f"`{name}`" not in TEXT] == []
