"""Ways into what is watched: servers, a Prometheus, traces."""

from __future__ import annotations

import atexit
import json
import shutil
import socket
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from datetime import UTC, datetime
from functools import cache
from io import BytesIO, StringIO
from pathlib import Path
from unittest.mock import patch

from rich.console import Console, Group

from moriio_observed.cli import main
from moriio_observed.dashboarding.errors import DashboardsError
from moriio_observed.dashboarding.preview import prometheus as preview
from moriio_observed.dashboarding.preview.contents import Asker
from moriio_observed.dashboarding.preview.window import Window, at, in_seconds
from moriio_observed.demo import metrics
from moriio_observed.doctor import prometheus, read
from moriio_observed.doctor.checks import scrape
from moriio_observed.doctor.exposition import NotMetricsError
from moriio_observed.top import alerts
from moriio_observed.top.as_json import as_json
from moriio_observed.top.draw import lines
from moriio_observed.top.history import History
from moriio_observed.top.picture import Picture, picture
from moriio_observed.top.snapshot import snapshot
from moriio_observed.traces.sink import Sink
from tests.fuzz.door import NEXT, Door, text_of
from tests.fuzz.of_doctor import JSON_WORDS, PAGE, PAGE_WORDS, shown

AT = datetime(2026, 1, 1, tzinfo=UTC)
EVERY_S = 2.0
SERVER = read.Address("http://p")
MOST_PAGES = 4


def _pages(brought: bytes) -> None:
    """One look at a server after the other."""
    history = History("http://d")
    for look, text in enumerate(text_of(brought).split(NEXT)[:MOST_PAGES]):
        try:
            history = history.saw(snapshot(text, look * EVERY_S))
        except NotMetricsError as error:
            history = history.missed(str(error))
        _drawn(picture([history], look * EVERY_S, AT))


def _drawn(seen: Picture) -> None:
    for height in (None, 24, 1):
        console = Console(file=StringIO(), width=80, height=height or 500, highlight=False)
        console.print(Group(*lines(seen, 80, height)), soft_wrap=height is None)
    assert json.loads(as_json(seen))["rows"]


def _prometheus(brought: bytes) -> None:
    """What a Prometheus answers, whatever the doctor and top ask it."""
    with patch.object(read, "page", lambda *_: text_of(brought)):
        shown(scrape.check(prometheus.ask(SERVER, ["moriio_steps_total"]), []))
        told = alerts.ask(SERVER, 5.0)
    _drawn(picture([History("http://d")], 0.0, AT, told))


def _preview(brought: bytes) -> None:
    """What a Prometheus answers to a dashboard's queries of one moment, and over time."""
    one, _, other = brought.partition(NEXT.encode())

    def answer(address: str, *_: object, **__: object) -> BytesIO:
        return BytesIO(one if address.endswith("/query") else other)

    with patch.object(preview.urllib.request, "urlopen", answer):
        json.dumps(ASKER.contents(DRAWN))


def _window(brought: bytes) -> None:
    """Moments and durations on the command line."""
    begin, end, every = [*text_of(brought).split(NEXT), "", ""][:3]
    window = Window(at(begin), at(end), in_seconds(every))
    assert window.rate_interval(window.step(100)) > 0


def _scrape(brought: bytes) -> None:
    seen = metrics.parse(text_of(brought))
    seen.since(seen).total("moriio_steps_total")


@cache
def room() -> Path:
    """A folder of this process, gone with it."""
    folder = Path(tempfile.mkdtemp(prefix="front-doors-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _traces(brought: bytes) -> None:
    """A file of spans, through the whole command."""
    file = room() / "spans.jsonl"
    file.write_bytes(brought)
    for options in (["--list"], ["--verbose", "--all"], ["--request", "r"]):
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()) as said:
            status = main(["traces", "--from", str(file), *options])
        assert status == 0 or said.getvalue().startswith("moriio-observed traces: ")


@cache
def _sink() -> tuple[Sink, list[str]]:
    said: list[str] = []
    sink = Sink(room() / "sink", limit_bytes=2**20, say=said.append)
    sink.start()
    atexit.register(sink.stop)
    return sink, said


def _post(brought: bytes) -> None:
    """Any bytes at the sink's port."""
    sink, said = _sink()
    host, _, port = sink.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=10.0) as connection:
        connection.sendall(brought)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65536):
            pass
    assert not [line for line in said if line.startswith("an error of ours")], said


SPAN = {
    "traceId": "1" * 32,
    "spanId": "2" * 16,
    "parentSpanId": "3" * 16,
    "name": "moriio.read",
    "kind": 3,
    "startTimeUnixNano": "1700000000000000000",
    "endTimeUnixNano": 1700000000500000000,
    "status": {"code": 2, "message": "late"},
    "attributes": [
        {"key": "moriio.request_id", "value": {"stringValue": "r"}},
        {"key": "a", "value": {"arrayValue": {"values": [{"intValue": "1"}, {"doubleValue": 2}]}}},
    ],
    "events": [{"name": "e", "timeUnixNano": "1700000000400000000"}],
    "links": [{"traceId": "1" * 32, "spanId": "4" * 16}],
}
STEP = SPAN | {"spanId": "3" * 16, "parentSpanId": "", "name": "moriio.step"}
SPANS = json.dumps(
    {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": [SPAN, STEP]}]}]}
).encode()
SPAN_WORDS = (
    *(f'"{key}": ' for key in (*SPAN, "resourceSpans", "scopeSpans", "spans", "kvlistValue")),
    *("moriio.barrier", "moriio.hold", '"moriio.blocked_s"', "18446744073709551615", *JSON_WORDS),
)
PROTOBUF = b"\n\x1e\x12\x1c\x12\x1a\n\x10" + b"\x01" * 16 + b"*\x06moriio"


def _request(kind: str, body: bytes, *more: str) -> bytes:
    head = ("POST /v1/traces HTTP/1.1", f"Content-Type: {kind}", *more)
    return "\r\n".join((*head, f"Content-Length: {len(body)}", "", "")).encode() + body


ANSWERS = (
    {"status": "success", "data": {"result": [{"metric": {"__name__": "moriio_steps_total"}}]}},
    {"status": "success", "data": {"activeTargets": [{"scrapeUrl": "http://d", "health": "down"}]}},
    {"status": "success", "data": {"alerts": [{"labels": {"alertname": "MoriioX"}}]}},
    {"status": "error", "error": "no"},
)
ANSWER_WORDS = ('"metric": ', '"alertname": "Moriio', '"annotations": ', '"state": "firing"')

ASKER = Asker(preview.Prometheus("http://p"), Window(0, 3600), {})
DRAWN = {
    "panels": [
        {
            "id": 1,
            "title": "t",
            "type": "timeseries",
            "gridPos": {"w": 12},
            "targets": [
                {"refId": "A", "expr": "a", "legendFormat": "{{job}}"},
                {"refId": "B", "expr": "b", "format": "heatmap"},
                {"refId": "C", "expr": "c", "instant": True, "format": "table"},
                {"refId": "D", "expr": "d", "instant": True},
            ],
        }
    ]
}
VECTOR = {"metric": {"job": "d", "le": "+Inf"}, "value": [1.5, "1"]}
MATRIX = {"metric": {"job": "d", "le": "0.1"}, "values": [[0, "1"], [15, "NaN"]]}

DOORS = {
    "preview": Door(
        _preview,
        (DashboardsError,),
        (
            NEXT.join(
                json.dumps({"status": "success", "data": {"result": [one]}})
                for one in (VECTOR, MATRIX)
            ).encode(),
        ),
        ('"metric": ', '"values": ', '"value": ', '"le": ', *JSON_WORDS),
    ),
    "window": Door(
        _window,
        (DashboardsError,),
        (b"2026-11-30T09:00\x002026-11-30T10:00+01:30\x0015s", b"0\x001796029200.5\x001h30m"),
        (NEXT, "T", "Z", "-1", "nan", "inf", "1e9", "99999999999", "0s", "W01"),
    ),
    "top": Door(_pages, seeds=(PAGE, PAGE + NEXT.encode() + PAGE), words=(NEXT, *PAGE_WORDS)),
    "prometheus": Door(
        _prometheus,
        seeds=tuple(json.dumps(answer).encode() for answer in ANSWERS),
        words=(*ANSWER_WORDS, *JSON_WORDS),
    ),
    "scrape": Door(_scrape, (NotMetricsError,), (PAGE,), PAGE_WORDS),
    "traces": Door(_traces, seeds=(SPANS, SPANS + b"\n" + SPANS), words=SPAN_WORDS),
    "sink": Door(
        _post,
        (OSError,),
        (
            _request("application/json", SPANS),
            _request("application/x-protobuf", PROTOBUF),
            _request("application/json", b"", "Transfer-Encoding: chunked"),
            b"GET / HTTP/1.1\r\n\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        ),
        ("\r\n", "Content-Length: ", "Transfer-Encoding: chunked", "Content-Encoding: gzip"),
    ),
}
