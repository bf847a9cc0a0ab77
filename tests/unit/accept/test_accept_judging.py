"""What holds of every verdict, whatever was seen."""

from __future__ import annotations

import io
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from moriio_observed.accept.facts import Facts, Side, Watched
from moriio_observed.accept.interval import interval, student_t
from moriio_observed.accept.plan import Plan
from moriio_observed.accept.privacy import Privacy
from moriio_observed.accept.report import Report, lines, markdown
from moriio_observed.accept.throughput import Runs
from moriio_observed.accept.verdicts import Verdict
from moriio_observed.canary.metrics import Result
from moriio_observed.doctor.exposition import Page
from moriio_observed.telemetry.catalog import CATALOG, PREFIX
from tests.unit.accept.engines import (
    CAUSE,
    INFO,
    STAND_IN,
    Key,
    facts,
    one,
    probes,
    seen,
)

COUNTED = (
    one("requests_total"),
    one("reads_posted_total"),
    one("reads_landed_total"),
    one("reads_failed_total", error_type="ERR_RDMA_OP"),
    one("reads_failed_total", error_type="other"),
    one("reads_aborted_total"),
    one("reads_in_flight", tp_rank="0"),
    one("exposed_requests_total", **CAUSE),
    one("stale_reads_total"),
    one("barrier_timeouts_total", site="step"),
    one("barrier_wait_seconds_count", site="step", tp_rank="0"),
    one("full_graph_skips_total", protected="false"),
    one("telemetry_overhead_seconds_total"),
    one("telemetry_errors_total", signal="metrics"),
)
many = settings(max_examples=40, deadline=None)
numbers = st.one_of(st.integers(0, 200).map(float), st.floats(0))
rates = st.lists(st.tuples(st.floats(0.1, 1e6), st.floats(0.1, 1e6)), max_size=12)


@st.composite
def anything(draw: st.DrawFn, info: dict[str, str]) -> Facts:
    """A run of which anything may have been seen."""
    keys: list[Key] = draw(st.lists(st.sampled_from(COUNTED), unique=True))
    pairs = draw(rates)
    return facts(
        {key: draw(numbers) for key in keys},
        before={key: draw(numbers) for key in keys[:2]},
        info=info,
        probes=probes(draw(st.integers(0, 21)), result=draw(st.sampled_from(list(Result)))),
        runs=Runs(tuple(a for a, _ in pairs), tuple(b for _, b in pairs)),
        seconds=draw(st.floats(0, 100)),
        apart=draw(st.sampled_from([True, False, None])),
        routed=draw(st.booleans()),
        ended=draw(st.sampled_from(["", "interrupted"])),
    )


NAMES = [f"{PREFIX}{name}{end}" for name in CATALOG for end in ("", "_sum", "_count", "_bucket")]
LABELS = ["tp_rank", "layer", "le", "engine", "hook", *INFO]
pages = st.lists(
    st.tuples(
        st.sampled_from(NAMES),
        st.dictionaries(
            st.sampled_from(LABELS), st.text(max_size=5) | st.sampled_from("01"), max_size=4
        ),
        st.floats(),
    ),
    max_size=30,
).map(lambda samples: Page((("moriio_config_info", dict(INFO), 1.0), *samples)))


@st.composite
def strange(draw: st.DrawFn) -> Facts:
    """Servers that show whatever they like."""
    sides = [
        Side((Watched(name, seen(draw(pages)), seen(draw(st.none() | pages))),))
        for name in ("decode", "prefill")
    ]
    return Facts(*sides, probes=probes(draw(st.integers(0, 3))), settled=True, seconds=1.0)


def report(found: Facts) -> Report:
    return Report(found, Plan("m"), Privacy({}, hosts=False))


@many
@given(anything(STAND_IN))
def test_the_loopback_neither_proves_nor_refutes_what_needs_hardware(found: Facts) -> None:
    needing = [judged for judged in report(found).judged if judged.claim.needs_hardware]
    assert needing
    assert {judged.ruling.verdict for judged in needing} == {Verdict.NOT_PROVEN}


@many
@given(anything(INFO))
def test_every_verdict_has_a_reason_and_the_exit_status_follows_from_them(found: Facts) -> None:
    told = report(found)
    judged = told.judged
    assert all(one.ruling.reason for one in judged)
    refuted = any(one.ruling.verdict is Verdict.REFUTED for one in judged)
    assert told.exit_status == (1 if refuted else 2 if found.ended else 0)


@many
@given(anything(INFO))
def test_wrong_answers_that_nothing_tells_of_prove_no_answer_right(found: Facts) -> None:
    wrong = any(probe.result in (Result.DIVERGED, Result.SWAPPED) for probe in found.probes)
    verdicts = {one.claim.name: one.ruling.verdict for one in report(found).judged}
    if wrong:
        assert Verdict.PROVEN not in (verdicts["answers"], verdicts["visible"])


@many
@given(anything(INFO) | strange())
def test_every_report_is_json_and_can_be_shown(found: Facts) -> None:
    told = report(found).as_dict()
    again = json.loads(json.dumps(told, allow_nan=False))
    assert again == told
    assert list(lines(told))
    table = [line for line in markdown(told).splitlines() if line.startswith("| ")]
    assert len(table) >= len(told["claims"])


def test_what_was_no_number_before_the_first_probe_is_told_as_text() -> None:
    info = ("moriio_config_info", dict(INFO), 1.0)
    before = Page((info, ("moriio_barrier_wait_seconds_sum", {}, -math.inf)))
    decode = Side((Watched("decode", seen(before), seen(Page((info,)))),))
    prefill = Side((Watched("prefill", seen(Page((info,)))),))
    told = report(Facts(decode, prefill, probes=probes(3), settled=True, seconds=1.0)).as_dict()
    evidence = [number for claim in told["claims"] for number in claim["evidence"]]
    assert "-inf" in [number.get("before") for number in evidence]


def test_what_several_claims_are_not_proven_for_is_told_once() -> None:
    told = report(Facts()).as_dict()
    stated = [claim | {"verdict": "not proven here"} for claim in told["claims"][:3]]
    for claim, reason in zip(stated, ("no answer", "no card", "no answer"), strict=True):
        claim["reason"] = reason
    console = Console(width=200, record=True, file=io.StringIO())
    for line in lines(told | {"claims": stated}):
        console.print(line)
    text = console.export_text()
    assert (text.count("no answer"), text.count("no card")) == (1, 1)
    assert all(claim["name"] in text for claim in stated)


@many
@given(st.lists(st.floats(1, 1e3), min_size=10, max_size=40), st.floats(0.5, 2))
def test_the_interval_of_a_constant_ratio_is_that_ratio(bare: list[float], ratio: float) -> None:
    found = interval([ratio * one for one in bare], bare)
    assert found == pytest.approx((ratio, ratio, ratio))


def test_the_interval_holds_what_a_table_of_students_t_says() -> None:
    assert student_t(10) >= 2.262
    assert student_t(30) >= 2.045
    logs = [math.exp(x) for x in (-0.1, 0.1) * 5]
    found = interval(logs, [1.0] * 10)
    # Ten samples of ±0.1: a deviation of 0.1054, so 0.0333 of the mean.
    assert math.log(found.high) == pytest.approx(2.27 * 0.10541 / math.sqrt(10), rel=1e-3)
    assert found.low == pytest.approx(1 / found.high)
