"""A picture as lines of a terminal, and for machines."""

from __future__ import annotations

import functools
import io
import json
import math
import re

import pytest
from rich.console import Console, Group

from moriio_observed.top.alerts import Alert, Alerts
from moriio_observed.top.as_json import as_json
from moriio_observed.top.draw import lines
from moriio_observed.top.history import History
from moriio_observed.top.picture import Picture, picture
from moriio_observed.top.words import number, seconds
from tests.unit.top.pages import AT, blocked, healthy, info, line, recorded, seen, shown, steps

HOSTILE = "\x1b[2J[bold red]x[/] \x07\u202e\r\n{}"


def text(seen: Picture, width: int = 80, height: int | None = None) -> str:
    """What stands on a terminal without colours."""
    file = io.StringIO()
    console = Console(file=file, width=width, height=height or 200, highlight=False)
    console.print(Group(*lines(seen, width, height)), soft_wrap=height is None)
    return file.getvalue()


@functools.cache
def incident() -> History:
    return seen(recorded("decode", -2), recorded("decode", -1), every_s=5.0)


# For people


def test_a_row_has_the_figures_that_matter_most() -> None:
    drawn = text(shown(incident(), now=5.0))
    head, row = drawn.splitlines()[1:3]
    assert head.split() == [
        *("ENGINE", "EXPOSED/s", "UNPROT/s", "WAIT", "p50", "p99", "READS", "OLDEST", "REQ/s"),
    ]
    figures = ("22.4", "17.6", "-", "-", "312", "746.9", "ms", "22.4")
    assert row.split() == ["✖", "decode.example:8000", *figures]


def test_below_stands_all_about_an_engine() -> None:
    drawn = text(shown(incident(), now=5.0))
    assert "model tiny, engine 0" in drawn
    assert "decode, read, graphs FULL, barrier upstream, guard report\n" in drawn
    assert "full_graph 22.4/s (5.9k)" in drawn
    assert "steps: certain 17.6/s (3.8k), possible 0/s (1.7k)" in drawn
    assert "vLLM 0.30.0, mori 0+loopback, moriio-observed 0.1.0" in drawn
    assert "312 in flight, oldest 746.9 ms of 30.00 s" in drawn
    assert "see alerts/runbooks/MoriioUnprotectedSteps.md" in drawn


def test_ranks_are_told_the_one_that_waits_longest_first() -> None:
    pages = [
        healthy()
        + "".join(blocked(each * done, done, str(rank)) for rank, each in enumerate((0.01, 0.09)))
        for done in (0, 10)
    ]
    assert "waited per step: 1 90.0 ms, 0 10.0 ms" in text(shown(seen(*pages)))


def test_a_prefill_engine_has_what_it_holds_instead() -> None:
    page = info(role="kv_producer") + line("deferred_sends", 7) + line("releases_total", 1)
    drawn = text(shown(seen(page, page)))
    assert "prefill: holds blocks of 7 requests, 0/s released" in drawn
    assert "exposed  " not in drawn


def test_a_server_that_says_nothing_is_a_row_that_says_so() -> None:
    drawn = text(shown(History("http://down").missed("does not answer: [Errno 111] refused")))
    assert "✖ down          does not answer: [Errno 111] refused" in drawn


def test_an_engine_that_was_started_again_says_so() -> None:
    assert "restarted 3 s ago" in text(shown(seen(healthy(5), healthy(1)), now=5.0))


@pytest.mark.parametrize("engines", [1, 2, 40])
@pytest.mark.parametrize("height", [24, 10, 3, 1])
@pytest.mark.parametrize("width", [80, 40])
def test_nothing_is_wider_or_higher_than_the_terminal(
    width: int, height: int, engines: int
) -> None:
    histories = [incident() for _ in range(engines)]
    alerts = Alerts("http://p", tuple([Alert("MoriioX", "firing", "page", "i", "s" * 200, "")] * 9))
    drawn = text(picture(histories, 5.0, AT, alerts), width, height).splitlines()
    assert len(drawn) <= height
    assert max(map(len, drawn)) <= width


def test_what_does_not_fit_is_counted_and_is_not_the_worst() -> None:
    many = [seen(healthy(1), healthy(2), url=f"http://fine-{n}") for n in range(40)]
    drawn = text(shown(*many, incident(), now=5.0), height=24)
    assert "✖ decode.example:8000" in drawn
    assert "and 31 more, none of them worse" in drawn
    assert "full_graph 22.4/s" in drawn


def test_what_others_wrote_is_shown_harmless_and_is_no_markup() -> None:
    page = info(barrier=HOSTILE, engine=HOSTILE, model_name=HOSTILE) + line(
        "exposed_requests_total",
        1,
        cause=HOSTILE,
        action="reported",
        engine=HOSTILE,
        model_name=HOSTILE,
    )
    alerts = Alerts("http://p", (Alert(f"Moriio{HOSTILE}", "firing", "page", "", HOSTILE, ""),))
    for height in (24, None):
        drawn = text(picture([seen(page, page)], 2.0, AT, alerts), 300, height)
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202e]", drawn)
        assert "[bold red]x[/]" in drawn
        assert r"\x1b[2J" in drawn


def test_alerts_stand_first_and_a_prometheus_that_does_not_tell_says_so() -> None:
    firing = Alert("MoriioPhantomHits", "firing", "page", "d:1", "answers from memory", "")
    pending = Alert("MoriioRankSlow", "pending", "ticket", "d:1", "waits", "")
    drawn = text(picture([], 2.0, AT, Alerts("http://p", (firing, pending)))).splitlines()
    assert drawn[1:4] == [
        "alerts: 1 firing, 1 pending",
        "  page   MoriioPhantomHits  answers from memory",
        "  ticket MoriioRankSlow  waits",
    ]
    broken = Alerts("http://p", trouble="http://p does not answer")
    assert "alerts: http://p does not answer" in text(picture([], 2.0, AT, broken))


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (None, "-"),
        (math.nan, "?"),
        (math.inf, "?"),
        (0, "0"),
        (0.001, "<0.1"),
        (0.05, "0.1"),
        (3, "3"),
        (3.46, "3.5"),
        (999.4, "999"),
        (999.96, "1.0k"),
        (12345, "12.3k"),
        (123456, "123k"),
        (5.5e6, "5.5M"),
        (7e9, "7.0G"),
    ],
)
def test_a_number_is_short_and_what_is_not_0_does_not_look_it(
    value: float | None, told: str
) -> None:
    assert number(value) == told


@pytest.mark.parametrize(
    ("value", "told"),
    [(None, "-"), (math.nan, "?"), (0, "0 s"), (5e-5, "50.0 µs"), (12, "12.00 s")],
)
def test_a_time_has_its_unit(value: float | None, told: str) -> None:
    assert seconds(value) == told


# For machines


def test_a_machine_gets_every_figure_by_its_name() -> None:
    told = json.loads(as_json(shown(incident(), now=5.0)))
    assert told["at"] == "2026-11-30T12:00:00+00:00"
    assert told["alerts"] is None
    [row] = told["rows"]
    assert (row["url"], row["state"]) == ("http://decode.example:8000", "critical")
    engine = row["engine"]
    assert engine["key"] == {"model_name": "tiny", "engine": "0"}
    assert engine["exposed"]["full_graph"] == {"gained": 112, "total": 5899, "per_s": 22.4}
    assert set(engine["waits"]) == {"all", "layer", "step"}
    assert row["signs"][0]["severity"] == "critical"


def test_what_an_engine_does_not_know_is_null_for_a_machine() -> None:
    page = healthy() + line("reads_in_flight", math.nan, tp_rank="0")
    [row] = json.loads(as_json(shown(seen(page))))["rows"]
    assert row["engine"]["in_flight"] is None
    assert row["engine"]["requests"]["per_s"] is None


def test_a_machines_page_cannot_steer_a_terminal_and_keeps_what_others_wrote() -> None:
    page = info(barrier=HOSTILE) + steps(1)
    told = as_json(shown(seen(page)))
    assert told.isascii()
    assert "\x1b" not in told
    assert json.loads(told)["rows"][0]["engine"]["info"]["barrier"] == HOSTILE
