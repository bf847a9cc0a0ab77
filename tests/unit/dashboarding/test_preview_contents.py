"""What a preview asks, and what it hands to the page."""

import json
import math
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl

import pytest

from moriio_observed.dashboarding.errors import DashboardsError
from moriio_observed.dashboarding.preview.contents import Asker, spans
from moriio_observed.dashboarding.preview.prometheus import Prometheus
from moriio_observed.dashboarding.preview.window import Window
from moriio_observed.demo.ports import HOST


class Answering:
    """Something that answers every query alike, and notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, str]] = []
        self.status = 200
        self.answer: Any = {"data": {"result": []}}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                words = self.rfile.read(int(self.headers["Content-Length"])).decode()
                outer.asked.append({"path": self.path, **dict(parse_qsl(words))})
                self.send_response(outer.status)
                self.end_headers()
                self.wfile.write(json.dumps(outer.answer).encode())

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer((HOST, 0), Handler)
        self.url = f"http://{HOST}:{self.server.server_port}"


@pytest.fixture
def answering() -> Iterator[Answering]:
    answering = Answering()
    thread = threading.Thread(target=answering.server.serve_forever)
    thread.start()
    yield answering
    answering.server.shutdown()
    thread.join()
    answering.server.server_close()


def dashboard(*targets: dict[str, Any], width: int = 24, **more: Any) -> dict[str, Any]:
    panel = {"id": 7, "title": "It", "type": "stat", "gridPos": {"w": width}, "targets": targets}
    row = {"id": 1, "title": "Row", "type": "row", "panels": []}
    return {"panels": [row, panel], **more}


def asker(answering: Answering, window: Window | None = None, **choices: list[str]) -> Asker:
    return Asker(Prometheus(answering.url), window or Window(0, 3600), choices)


def test_a_query_over_time_is_asked_for_every_point_of_the_window(answering) -> None:
    asker(answering).contents(dashboard({"refId": "A", "expr": "rate(a[$__rate_interval])"}))
    assert answering.asked == [
        {
            "path": "/api/v1/query_range",
            "query": "rate(a[60s])",
            "start": "0.0",
            "end": "3600.0",
            "step": "15.0",
        }
    ]


def test_a_narrow_panel_is_asked_for_fewer_points(answering) -> None:
    target = {"refId": "A", "expr": "a"}
    asker(answering, Window(0, 36000)).contents(dashboard(target, width=6))
    assert answering.asked[0]["step"] == "90.0"


def test_a_query_over_the_range_is_asked_once_at_its_end(answering) -> None:
    asker(answering).contents(
        dashboard({"refId": "A", "expr": "increase(a[$__range])", "instant": True})
    )
    assert answering.asked == [
        {"path": "/api/v1/query", "query": "increase(a[3600s])", "time": "3600"}
    ]


def test_everything_is_chosen_unless_something_is(answering) -> None:
    target = {"refId": "A", "expr": 'a{engine=~"$engine", job=~"$job"}'}
    asker(answering, engine=["0"]).contents(dashboard(target))
    assert answering.asked[0]["query"] == 'a{engine=~"0", job=~".+"}'


def test_several_choices_are_one_expression_for_just_these_values(answering) -> None:
    target = {"refId": "A", "expr": 'a{instance=~"$instance"}'}
    asker(answering, instance=["a.b:1", "c"]).contents(dashboard(target))
    assert answering.asked[0]["query"] == 'a{instance=~"(a\\\\.b:1|c)"}'


def test_the_page_is_told_what_is_chosen_of_the_variables_that_the_dashboard_has(answering) -> None:
    having = {"templating": {"list": [{"name": "engine"}, {"name": "target"}]}}
    told = asker(answering, engine=["0"], job=["d"]).contents(dashboard(**having))
    assert told["choices"] == {"engine": ["0"], "target": ()}


def test_a_choice_of_no_variable_is_named_with_those_there_are(answering) -> None:
    with pytest.raises(DashboardsError, match="no variable is called layer: it is one of engine,"):
        asker(answering, layer=["1"])


@pytest.mark.parametrize(
    ("form", "columns"),
    [("table", ["Time", "le", "Value"]), ("time_series", ["Time", "Value"])],
)
def test_frames_have_the_form_that_the_panel_asks_for(answering, form, columns) -> None:
    answering.answer["data"]["result"] = [{"metric": {"le": "1"}, "value": [3600, "2"]}]
    target = {"refId": "A", "expr": "a", "instant": True, "format": form}
    (frame,) = asker(answering).contents(dashboard(target))["panels"]["7"]["frames"]
    assert [field["name"] for field in frame["fields"]] == columns


def test_buckets_are_asked_for_as_a_heatmap(answering) -> None:
    answering.answer["data"]["result"] = [{"metric": {"le": "1"}, "values": [[15, "2"]]}]
    target = {"refId": "A", "expr": "a", "format": "heatmap"}
    (frame,) = asker(answering).contents(dashboard(target))["panels"]["7"]["frames"]
    assert [field["name"] for field in frame["fields"]] == ["Time", "1"]


def test_a_refused_query_is_a_matter_of_its_panel(answering) -> None:
    answering.status, answering.answer = 400, {"status": "error", "error": "parse error: x"}
    contents = asker(answering).contents(dashboard({"refId": "A", "expr": "a{"}))
    assert contents["panels"]["7"] == {"frames": [], "refused": "parse error: x"}


def test_events_are_from_when_to_when_there_was_a_series(answering) -> None:
    points = [[moment, "1"] for moment in (15, 30, 45, 300, 315)]
    answering.answer["data"]["result"] = [{"metric": {"alertname": "It"}, "values": points}]
    annotation = {
        "name": "Alerts",
        "iconColor": "red",
        "titleFormat": "{{alertname}}",
        "target": {"expr": "ALERTS", "interval": "15s"},
    }
    shown = dashboard(annotations={"list": [{"builtIn": 1}, annotation]})
    assert asker(answering).contents(shown)["events"] == [
        {"title": "It", "colour": "red", "from": 15000, "to": 45000},
        {"title": "It", "colour": "red", "from": 300000, "to": 315000},
    ]


def test_without_points_there_is_no_span() -> None:
    assert list(spans([], 15)) == []


def test_where_nothing_answers_the_address_is_named(answering) -> None:
    answering.server.server_close()
    with pytest.raises(DashboardsError, match=rf"no Prometheus answers at {answering.url}: "):
        Prometheus(answering.url).now("up", 1)


def series(**said: Any) -> dict[str, Any]:
    return {"data": {"result": [said]}}


@pytest.mark.parametrize(
    "answer",
    [
        *({"status": "green"}, [], "hello", {"data": {"result": "up"}}, {"data": {"result": 7}}),
        *(series(metric={}), series(value=[1, "2"]), series(metric=[], value=[1, "2"])),
        *(series(metric={}, value=moment) for moment in ([1], ["x", "1"], [1, "x"], [1e300, "1"])),
        series(metric={}, values=[[math.nan, "1"]]),
    ],
)
def test_what_answers_and_is_no_prometheus_is_told(answering, answer) -> None:
    answering.answer = answer
    with pytest.raises(DashboardsError, match=rf"what answers at {answering.url} is no Prometheus"):
        Prometheus(answering.url).now("up", 1)


def test_a_server_that_refuses_without_a_reason_is_told_with_its_status(answering) -> None:
    answering.status, answering.answer = 403, "forbidden"
    with pytest.raises(
        DashboardsError, match=rf"no Prometheus answers at {answering.url}: HTTP 403"
    ):
        Prometheus(answering.url).now("up", 1)


@pytest.mark.parametrize("url", ["localhost:9090", "file:///etc/passwd", ""])
def test_what_is_no_address_of_a_prometheus_is_told_with_the_right_form(url) -> None:
    with pytest.raises(DashboardsError, match=f"{url!r} is no address: write it like http://HOST"):
        Prometheus(url).now("up", 1)
