import gzip
import http.client
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor

import pytest
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk._logs.export import LogRecordExportResult
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    InMemoryMetricReader,
    MetricExportResult,
)

from moriio_observed.traces import sink as sinks
from moriio_observed.traces.errors import TracesError
from moriio_observed.traces.sink import Sink
from moriio_observed.traces.spans import Link, Span
from moriio_observed.traces.store import NEWEST, SpanStore
from tests.unit.otel_spans import (
    CLIENT,
    EPOCH_NS,
    MS,
    OTHER_TRACE,
    TRACE,
    line_of,
    send_llm_request,
)

PROTOBUF = {"Content-Type": "application/x-protobuf"}
JSON = {"Content-Type": "application/json"}
TYPE = b"Content-Type: application/json\r\n"


@pytest.fixture
def said():
    return []


@pytest.fixture
def sink(tmp_path, said):
    with Sink(tmp_path / "traces", say=said.append) as running:
        yield running


def kept(sink) -> list[Span]:
    return SpanStore([sink._folder]).spans([TRACE])


def post(sink, body, headers, path="/v1/traces"):
    connection = http.client.HTTPConnection(sink.url.removeprefix("http://"), timeout=30)
    connection.request("POST", path, body, headers)
    answer = connection.getresponse()
    return answer.status, answer.read()


def raw(sink, *pieces: bytes) -> bytes:
    """What comes back for these bytes, until the sink closes."""
    host, port = sink.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as client:
        for piece in pieces:
            client.sendall(piece)
        return b"".join(iter(lambda: client.recv(65536), b""))


@pytest.mark.parametrize("compression", list(Compression))
def test_takes_what_the_sdks_exporter_sends(sink, compression):
    send_llm_request(sink.url, compression)
    [span] = kept(sink)
    assert (span.name, span.kind, span.parent_id) == ("llm_request", "SERVER", CLIENT)
    assert (span.start_ns, span.took_ns) == (EPOCH_NS, 1520 * MS)
    assert span.attributes == {"gen_ai.request.id": "cmpl-7", "gen_ai.usage.prompt_tokens": 384}
    assert span.resource == {"service.name": "vllm", "vllm.process_id": "7"}
    assert span.scope == "vllm.llm_engine"
    assert span.links == (Link(OTHER_TRACE, f"{5:016x}", {}),)
    assert sink.received == 1


def test_takes_json(sink):
    status, body = post(sink, json.dumps(line_of()), JSON)
    assert (status, json.loads(body)) == (200, {})
    assert [span.name for span in kept(sink)] == ["moriio.read"]


def test_takes_metrics_and_logs_without_keeping_them(sink):
    reader = InMemoryMetricReader()
    MeterProvider([reader]).get_meter("m").create_counter("c").add(1)
    exporter = OTLPMetricExporter(endpoint=f"{sink.url}/v1/metrics")
    assert exporter.export(reader.get_metrics_data()) is MetricExportResult.SUCCESS
    logs = OTLPLogExporter(endpoint=f"{sink.url}/v1/logs")
    assert logs.export([]) is LogRecordExportResult.SUCCESS
    assert sink.received == 0
    assert (sink._folder / NEWEST).read_bytes() == b""


def test_a_request_without_spans_is_fine_and_nothing_is_kept_of_it(sink):
    assert post(sink, b"", PROTOBUF)[0] == 200
    assert (sink._folder / NEWEST).read_bytes() == b""


def test_takes_a_body_in_chunks(sink):
    body = json.dumps(line_of()).encode()
    status, _ = post(sink, iter([body[:9], body[9:]]), JSON)
    assert status == 200
    assert len(kept(sink)) == 1


def test_loses_none_of_many_posts_at_a_time(sink):
    bodies = [json.dumps(line_of(span_id=number)) for number in range(1, 101)]
    with ThreadPoolExecutor(16) as pool:
        statuses = [*pool.map(lambda body: post(sink, body, JSON)[0], bodies)]
    assert statuses == [200] * 100
    assert len(kept(sink)) == 100


def test_asks_to_come_again_when_too_many_are_there(sink):
    host, port = sink.url.removeprefix("http://").split(":")
    busy = [socket.create_connection((host, int(port))) for _ in range(sinks.CONNECTIONS)]
    answer = raw(sink)
    for client in busy:
        client.close()
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"Retry-After" in answer


def test_lets_go_of_a_client_that_dawdles(tmp_path, monkeypatch, said):
    monkeypatch.setattr(sinks, "DEADLINE_S", 0.05)
    with Sink(tmp_path, say=said.append) as sink:
        head = b"POST /v1/traces HTTP/1.1\r\nContent-Length: 9\r\n\r\n"
        assert raw(sink, head, b"half").startswith(b"HTTP/1.1 408 ")
        assert raw(sink, b"POST /v1/tra") == b""
        assert raw(sink) == b""


def test_the_deadline_is_for_all_pieces_together():
    left, right = socket.socketpair()
    right.sendall(b"early")
    with left, right:
        slow = sinks._Deadline(left, 0.0)
        with pytest.raises(TimeoutError):
            slow.readinto(bytearray(9))


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"\xff\xff garbage", PROTOBUF, 400),
        (b"not json", JSON, 400),
        (b"[" * 100_000, JSON, 400),
        (b"[]", JSON, 400),
        (b'{"resourceSpans": 7}', JSON, 400),
        (b'{"resourceSpans": [7]}', JSON, 400),
        (b"{}", {"Content-Type": "text/plain"}, 415),
        (b"{}", {}, 415),
        (b"{}", {**JSON, "Content-Encoding": "br"}, 415),
        (b"{}", {**JSON, "Content-Encoding": "gzip"}, 400),
        (gzip.compress(b"{}")[:-9], {**JSON, "Content-Encoding": "gzip"}, 400),
        (b"", {**JSON, "Content-Length": "-1"}, 400),
        (b"", {**JSON, "Content-Length": "many"}, 411),
    ],
)
def test_refuses_garbage_and_goes_on(sink, said, body, headers, status):
    assert post(sink, body, headers)[0] == status
    assert len(said) == 1
    send_llm_request(sink.url)
    assert len(kept(sink)) == 1


def test_refuses_a_body_that_is_too_large(sink):
    assert post(sink, b" " * (sinks.MAX_BODY + 1), JSON)[0] == 413


def test_refuses_chunks_that_are_too_large_together(sink):
    pieces = (b" " * 2**20 for _ in range(5))
    assert post(sink, pieces, JSON)[0] == 413


def test_refuses_a_body_that_is_too_large_once_decompressed(sink):
    bomb = zlib.compress(b" " * 64 * 2**20)
    assert len(bomb) < sinks.MAX_BODY
    assert post(sink, bomb, {**JSON, "Content-Encoding": "deflate"})[0] == 413


def test_keeps_what_is_good_and_says_how_many_were_not(sink):
    data = line_of()
    spans = data["resourceSpans"][0]["scopeSpans"][0]["spans"]
    good = spans[0]
    spans += [
        {**good, "traceId": "0" * 32},
        {**good, "spanId": "beef"},
        {**good, "startTimeUnixNano": "-5"},
        {**good, "startTimeUnixNano": 2**70},
        {**good, "name": 5},
        {**good, "attributes": [{"value": {}}]},
        {**good, "attributes": 5},
        "a span",
        None,
    ]
    status, body = post(sink, json.dumps(data), JSON)
    assert status == 200
    assert json.loads(body)["partialSuccess"]["rejectedSpans"] == "9"
    assert len(kept(sink)) == 1


def test_tells_a_protobuf_sender_how_many_were_not_good(sink):
    # One resource, one scope, one span without any field.
    status, body = post(sink, b"\x0a\x04\x12\x02\x12\x00", PROTOBUF)
    assert status == 200
    assert ExportTraceServiceResponse.FromString(body).partial_success.rejected_spans == 1


def test_a_wrong_path_is_told_where_spans_go(sink, said):
    status, body = post(sink, json.dumps(line_of()), JSON, path="/")
    assert status == 404
    assert b"/v1/traces" in body
    assert "/v1/traces" in said[0]


def test_what_is_refused_often_is_said_once(sink, said):
    for number in range(3):
        raw(sink, b"POST /\x7f%d HTTP/1.1\r\nContent-Length: 2\r\n" % number, TYPE, b"\r\n{}")
    assert len(said) == 1
    assert "\x7f" not in said[0]


def test_a_grpc_exporter_is_told_apart(sink, said):
    raw(sink, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    assert "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf" in said[0]


@pytest.mark.parametrize(
    "noise", [b"\x00\xff\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\r\n", b"A" * 70_000]
)
def test_noise_is_answered_and_harms_nobody(sink, noise):
    raw(sink, noise)
    send_llm_request(sink.url)
    assert len(kept(sink)) == 1


def test_an_error_of_our_own_is_said(sink, said, monkeypatch):
    monkeypatch.setattr(sinks.otlp, "spans_of", lambda data: 1 / 0)
    with pytest.raises((http.client.HTTPException, OSError)):
        post(sink, b"{}", JSON)
    assert "ZeroDivisionError" in said[0]


def test_a_client_that_goes_away_is_not_worth_a_word(sink, said):
    host, port = sink.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as client:
        client.sendall(b"POST /v1/traces HTTP/1.1\r\nContent-Length: 9\r\n\r\n")
        # Closing then is a reset instead of an end.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    send_llm_request(sink.url)
    sink.stop()
    assert said == []


def test_a_get_says_that_somebody_is_there(sink):
    send_llm_request(sink.url)
    assert b"1 spans received" in raw(sink, b"GET / HTTP/1.1\r\n\r\n")


def test_listens_on_the_loopback_address_only(sink):
    assert sink.url.startswith("http://127.0.0.1:")


def test_a_port_in_use_is_a_clear_error(sink, tmp_path):
    port = int(sink.url.rpartition(":")[2])
    second = Sink(tmp_path / "elsewhere", port=port)
    with pytest.raises(TracesError, match=f"127.0.0.1:{port}.*give another port"):
        second.start()
    Sink(tmp_path / "elsewhere").start()


def test_a_folder_in_use_is_a_clear_error(sink):
    with pytest.raises(TracesError, match="another sink"):
        Sink(sink._folder).start()


def test_a_full_disk_is_told_to_the_sender_and_said_once_until_it_is_better(tmp_path, said):
    (tmp_path / NEWEST).symlink_to("/dev/full")
    with Sink(tmp_path, say=said.append) as sink:
        for _ in range(2):
            status, body = post(sink, json.dumps(line_of()), JSON)
            assert (status, b"No space left" in body) == (507, True)
        assert len(said) == 1
        (tmp_path / NEWEST).unlink()
        assert post(sink, json.dumps(line_of()), JSON)[0] == 200
        assert len(kept(sink)) == 1
        (tmp_path / NEWEST).unlink()
        (tmp_path / NEWEST).symlink_to("/dev/full")
        post(sink, json.dumps(line_of()), JSON)
        assert len(said) == 2


def test_stops_for_good_and_can_be_stopped_again(tmp_path):
    sink = Sink(tmp_path)
    sink.start()
    url = sink.url
    sink.stop()
    sink.stop()
    with pytest.raises(ConnectionRefusedError):
        http.client.HTTPConnection(url.removeprefix("http://")).connect()
    with pytest.raises(TracesError, match="not running"):
        _ = sink.url
    with Sink(tmp_path):
        pass


def test_stopping_finishes_what_has_begun(sink, monkeypatch):
    begun, closed = threading.Event(), threading.Event()
    from_json, server_close = sinks.otlp.from_json, sink._server.server_close

    def held(body):
        begun.set()
        closed.wait(30)
        return from_json(body)

    def close():
        server_close()
        closed.set()

    monkeypatch.setattr(sinks.otlp, "from_json", held)
    monkeypatch.setattr(sink._server, "server_close", close)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(post, sink, json.dumps(line_of()), JSON)
        assert begun.wait(30)
        sink.stop()
        assert len(kept(sink)) == 1
        assert answer.result()[0] == 200


KILLED = """
import sys, threading
from pathlib import Path
from moriio_observed.traces.sink import Sink
sink = Sink(Path(sys.argv[1]))
sink.start()
print(sink.url, flush=True)
threading.Event().wait()
"""


def test_a_killed_sink_leaves_what_it_had_and_frees_its_folder(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as child:
        send_llm_request(child.stdout.readline().strip())
        os.kill(child.pid, signal.SIGKILL)
    with (tmp_path / NEWEST).open("ab") as file:
        file.write(b'{"resourceSpans": [{"sco')
    with Sink(tmp_path) as sink:
        post(sink, json.dumps(line_of()), JSON)
        assert [span.name for span in kept(sink)] == ["llm_request", "moriio.read"]
