"""What is wrong with an engine, and which comes first."""

from __future__ import annotations

import pytest

from moriio_observed.doctor.checks.counters import CAUGHT, COUNTED, Counted
from moriio_observed.doctor.findings import Severity
from moriio_observed.top.history import History
from moriio_observed.top.picture import State
from moriio_observed.top.signs import Sign
from tests.unit.doctor.patients import ROOT
from tests.unit.top.pages import healthy, info, line, only, recorded, rows, seen, steps


def signs(*pages: str, now: float = 2.0) -> list[Sign]:
    return [sign for sign in only(*pages, now=now).signs if sign.severity.matters]


def test_a_healthy_engine_has_none() -> None:
    row = only(healthy(1), healthy(2))
    assert (row.state, row.signs) == (State.OK, ())


@pytest.mark.parametrize("counted", COUNTED, ids=lambda counted: counted.metric)
def test_what_the_doctor_counts_is_a_sign_while_it_grows_and_a_note_when_it_is_over(
    counted: Counted,
) -> None:
    pages = [healthy() + line(counted.metric, count, **counted.labels) for count in (1, 3, 3)]
    [sign] = only(*pages[:2]).signs
    assert sign.severity is counted.severity
    assert sign.what == f"2 in 2.00 s, 3 since the start: {counted.what}"
    assert (ROOT / sign.see).exists()
    [note] = only(*pages).signs
    assert note.severity is Severity.NOTE
    assert note.what == f"3 since the start, none now: {counted.what}"


@pytest.mark.parametrize("metric", sorted(CAUGHT))
def test_what_a_guard_catches_is_a_warning(metric: str) -> None:
    pages = [info(guard="fail") + line(metric, count) for count in (0, 1)]
    assert only(*pages).state is State.WARNING


@pytest.mark.parametrize(
    ("certainty", "guard", "severity"),
    [
        ("certain", "report", Severity.CRITICAL),
        ("certain", "fail", Severity.WARNING),
        ("possible", "report", Severity.WARNING),
    ],
)
def test_unprotected_steps_are_a_sign_by_their_certainty(
    certainty: str, guard: str, severity: Severity
) -> None:
    pages = [
        info(guard=guard)
        + line("unprotected_steps_total", count, cause="timeout", certainty=certainty)
        for count in (0, 4)
    ]
    [sign] = signs(*pages)
    assert sign.severity is severity
    assert sign.what.startswith("4 forward steps ")
    assert (ROOT / sign.see).exists()


def aged(*seconds: float, guard: str = "report") -> list[str]:
    return [
        info(guard=guard)
        + line("transfer_timeout_seconds", 30)
        + line("oldest_read_age_seconds", age, tp_rank="0")
        for age in seconds
    ]


def test_a_read_past_half_of_its_deadline_is_critical_and_behind_a_guard_a_warning() -> None:
    [sign] = signs(*aged(14, 16))
    assert sign.severity is Severity.CRITICAL
    assert sign.what == "a read has been in flight for 16.00 s; its deadline is 30.00 s"
    [sign] = signs(*aged(14, 16, guard="recompute"))
    assert sign.severity is Severity.WARNING


def test_an_old_read_on_a_gauge_that_stands_still_is_no_sign() -> None:
    assert signs(*aged(16, 16)) == []
    assert signs(*aged(16)) == []
    assert signs(*aged(12, 14)) == []


def stalled(running: float, **changed: str) -> list[str]:
    page = info(**changed) + steps(9) + line("vllm:num_requests_running", running)
    return [page, page]


def test_requests_that_run_without_a_step_are_a_sign_that_grows_worse() -> None:
    assert signs(*stalled(3), now=4.0) == []
    [sign] = signs(*stalled(3), now=12.0)
    assert sign.severity is Severity.WARNING
    assert sign.what == "no forward step for 12.00 s, with 3 requests running"
    [sign] = signs(*stalled(3), now=60.0)
    assert sign.severity is Severity.CRITICAL


def test_an_idle_engine_and_a_prefill_engine_do_not_stall() -> None:
    assert signs(*stalled(0), now=60.0) == []
    assert signs(*stalled(3, role="kv_producer"), now=60.0) == []


def test_how_a_server_was_started_is_a_sign_as_the_doctor_has_it() -> None:
    assert [sign.severity for sign in signs(healthy() + line("full_graph_protected", 0))] == [
        Severity.CRITICAL
    ]
    assert "barrier 'off'" in signs(info(barrier="off"))[0].what
    assert "hooks" in signs(healthy() + line("hook_installed", 0, hook="x"))[0].what


def test_a_server_without_numbers_of_ours_is_told_why() -> None:
    row = only("vllm:num_requests_running 0\n")
    assert row.state is State.UNOBSERVED
    assert "vLLM's own connector runs there" in row.trouble
    assert "--disable-log-stats" in only("up 1\n").trouble


def test_the_real_incident_is_critical_for_the_reasons_it_had() -> None:
    row = only(recorded("decode", -2), recorded("decode", -1))
    assert row.state is State.CRITICAL
    told = " ".join(sign.what for sign in row.signs)
    assert "88 forward steps ran on reads that had not landed" in told
    assert "FULL CUDA graph steps wait for no read" in told


def test_the_worst_comes_first() -> None:
    exposed = {"cause": "timeout", "certainty": "certain", "action": "reported"}

    def salad(url: str, count: float) -> History:
        pages = (
            healthy() + line("exposed_requests_total", served, **exposed) for served in (0, count)
        )
        return seen(*pages, url=f"http://{url}")

    found = rows(
        seen(healthy(1), healthy(2), url="http://fine"),
        seen("up 1\n", url="http://foreign"),
        seen(info(), info() + line("notify_failures_total", 1), url="http://ticket"),
        History("http://down").missed("does not answer"),
        salad("some", 2),
        salad("many", 9),
    )
    assert [row.name for row in found] == ["many", "some", "down", "ticket", "foreign", "fine"]
    assert [row.state for row in found] == sorted(
        (row.state for row in found), key=lambda state: -state
    )


def test_a_server_that_is_gone_says_for_how_long_and_is_back_when_it_answers() -> None:
    history = seen(healthy(1), healthy(2)).missed("does not answer: refused")
    [row] = rows(history, now=9.0)
    assert (row.state, row.engine) == (State.SILENT, None)
    assert row.trouble == "does not answer: refused (last seen 7 s ago)"
    from moriio_observed.top.snapshot import snapshot

    [row] = rows(history.saw(snapshot(healthy(1), 10.0)), now=10.0)
    assert row.state is State.OK
    assert row.engine is not None
    assert row.engine.restarted_s == 0
