"""Asking real servers: all at once, and whatever becomes of them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from moriio_observed.doctor.read import Address
from moriio_observed.top.board import Board
from moriio_observed.top.live import once
from moriio_observed.top.picture import Picture, State
from tests import monitoring
from tests.tools import needs
from tests.unit.doctor.patients import serving as serving_pages
from tests.unit.top.pages import healthy, line, recorded
from tests.unit.top.servers import Engine, dripping, hanging, serving

SOON_S = 0.05
RULES = """\
groups: [{name: g, rules: [
  {alert: MoriioPhantomHits, expr: vector(1), labels: {severity: page, instance: "d:1"},
   annotations: {summary: answers from memory}},
  {alert: MoriioRankSlow, expr: vector(1), for: 1h, labels: {severity: ticket}},
  {alert: Somebodys, expr: vector(1)},
  {alert: MoriioStaleReads, expr: vector(1), labels: {severity: ticket}}]}]
"""


def look(board: Board) -> Picture:
    """One look at every server."""
    board.begin()
    while not board.settled:
        time.sleep(SOON_S)
    board.collect()
    return board.picture()


def states(picture: Picture) -> dict[str, State]:
    return {row.name: row.state for row in picture.rows}


def test_two_looks_make_rates() -> None:
    with serving(lambda n: healthy() + line("requests_total", 10 * n)) as engine:
        [row] = once(Board([Address(engine.url)], None, 5.0), SOON_S).rows
        assert engine.looks == 2
    assert row.engine is not None
    assert row.engine.requests.gained == 10
    assert row.engine.requests.per_s is not None
    assert row.engine.requests.per_s > 0


def test_a_server_that_is_started_again_is_seen_down_and_then_from_0() -> None:
    engine = Engine(healthy(90))
    board = Board([Address(engine.url)], None, 5.0)
    assert states(look(board)) == {engine.name: State.OK}
    engine.stop()
    [row] = look(board).rows
    assert row.state is State.SILENT
    assert row.trouble.startswith("does not answer: ")
    assert "refused" in row.trouble
    again = Engine(healthy(5) + line("requests_total", 3), engine.port)
    try:
        [row] = look(board).rows
    finally:
        again.stop()
    assert row.state is State.OK
    assert row.engine is not None
    assert row.engine.restarted_s is not None
    assert row.engine.requests.gained == 3


def test_a_server_that_hangs_is_told_and_keeps_nobody_else_waiting() -> None:
    with hanging() as slow, serving(healthy()) as fine:
        found = look(Board([Address(slow.url), Address(fine.url)], None, 0.3))
        assert states(found) == {slow.name: State.SILENT, fine.name: State.OK}
        [trouble] = [row.trouble for row in found.rows if row.name == slow.name]
        assert "answer" in trouble


def test_a_server_that_sends_byte_after_byte_is_late_and_is_asked_once_at_a_time() -> None:
    with dripping() as (url, asked):
        board = Board([Address(url)], None, 0.3)
        for _ in range(3):
            [row] = look(board).rows
    assert row.state is State.SILENT
    assert row.trouble.startswith("has not answered for 0 s")
    assert asked == ["/metrics"]


def test_what_is_no_page_of_metrics_is_a_row_that_says_so() -> None:
    with serving("<html>{}</html>") as engine:
        [row] = look(Board([Address(engine.url)], None, 5.0)).rows
        assert "something else than Prometheus' text format" in row.trouble
    with serving_pages() as url:
        [row] = look(Board([Address(url)], None, 5.0)).rows
        assert row.trouble == "answers HTTP 404"
    with serving("python_info 1\n") as engine:
        assert states(look(Board([Address(engine.url)], None, 5.0))) == {
            engine.name: State.UNOBSERVED
        }


def test_that_a_server_is_still_late_is_news_once_a_second() -> None:
    now = [0.0]
    with hanging() as engine:
        board = Board([Address(engine.url)], None, 1.0, clock=lambda: now[0])
        board.begin()
        assert not board.collect()
        now[0] = 1.2
        assert board.collect()
        now[0] = 1.3
        assert not board.collect()
        now[0] = 2.4
        assert board.collect()


def test_a_real_engines_page_is_read() -> None:
    with serving(lambda n: recorded("decode", n - 2)) as engine:
        [row] = once(Board([Address(engine.url)], None, 5.0), SOON_S).rows
    assert row.state is State.CRITICAL
    assert row.engine is not None
    assert row.engine.exposed["full_graph"].gained == 112


@needs("prometheus")
def test_our_alerts_come_from_a_real_prometheus_pages_first(tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(RULES)
    config = {
        "global": {"evaluation_interval": "1s"},
        "rule_files": [str(tmp_path / "rules.yml")],
    }
    with monitoring.prometheus(tmp_path, config) as url, serving(healthy()) as engine:
        board = Board([Address(engine.url)], Address(url), 5.0)

        def told() -> list[tuple[str, str]]:
            alerts = look(board).alerts
            assert alerts is not None
            assert alerts.trouble == ""
            return [(alert.name, alert.state) for alert in alerts.active]

        found = monitoring.eventually(lambda: told() if len(told()) == 3 else [], "three alerts")
        alerts = look(board).alerts
    assert found == [
        ("MoriioPhantomHits", "firing"),
        ("MoriioStaleReads", "firing"),
        ("MoriioRankSlow", "pending"),
    ]
    assert alerts is not None
    assert alerts.active[0].summary == "answers from memory"
    assert alerts.active[0].instance == "d:1"


def test_a_prometheus_that_does_not_tell_its_alerts_says_why() -> None:
    odd = ["[]", "{}", '{"status": "success", "data": {"alerts": [3, {"labels": 4}]}}']
    for page in odd:
        with serving_pages(api_v1_alerts=page) as url, serving(healthy()) as engine:
            alerts = look(Board([Address(engine.url)], Address(url), 5.0)).alerts
        assert alerts is not None
        assert alerts.active == ()
        assert bool(alerts.trouble) == ("success" not in page)
    with hanging() as prometheus, serving(healthy()) as engine:
        found = look(Board([Address(engine.url)], Address(prometheus.url), 0.3))
    assert found.alerts is not None
    assert "answer" in found.alerts.trouble
    assert found.rows[0].state is State.OK


@pytest.mark.parametrize(
    "url", ["http://nowhere.example:1", "http://[::1]:1", "http://127.0.0.1:1"]
)
def test_an_address_without_a_server_is_a_row(url: str) -> None:
    [row] = look(Board([Address(url)], None, 5.0)).rows
    assert row.state is State.SILENT
    assert row.trouble
