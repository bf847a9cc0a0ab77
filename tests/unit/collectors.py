"""OTLP collectors that behave as badly as told, over gRPC and HTTP, and keep what they took.

What a collector does is decided call by call by its `manner`, which a test may change at any time.
"""

import http.server
import socket
import socketserver
import threading
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Self

import grpc
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

SIGNALS = {
    "traces": (ExportTraceServiceRequest, ExportTraceServiceResponse, "rejected_spans"),
    "metrics": (
        ExportMetricsServiceRequest,
        ExportMetricsServiceResponse,
        "rejected_data_points",
    ),
}


@dataclass(frozen=True)
class Manner:
    """How a collector treats a call.

    Attributes:
        holds: Whether it answers only once `Collector.release` is set.
        status: What it answers over HTTP.
        code: What it answers over gRPC.
        retry_after_s: When the sender may come again, if it says so.
        rejects: How many items it refuses though it says all is well.
        closes: Whether it closes the connection instead of answering.
        garbage: Whether it answers with bytes that mean nothing.
        unreadable: Whether, over HTTP, only the body of its answer means nothing.
    """

    holds: bool = False
    status: HTTPStatus = HTTPStatus.OK
    code: grpc.StatusCode = grpc.StatusCode.OK
    retry_after_s: int | None = None
    rejects: int = 0
    closes: bool = False
    garbage: bool = False
    unreadable: bool = False

    @property
    def takes(self) -> bool:
        return self.status == HTTPStatus.OK and not self.closes and not self.garbage


WELL = Manner()


class Collector:
    """What both protocols share: the manner, the calls, and what was taken."""

    protocol: str
    endpoint: str

    def __init__(self, manner: Manner) -> None:
        self.manner = manner
        self.release = threading.Event()
        self.called = threading.Semaphore(0)
        self.in_call = 0
        self._arrived = threading.Condition()
        self._taken: dict[str, list[Any]] = {signal: [] for signal in SIGNALS}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release.set()
        self.stop()

    def stop(self) -> None:
        raise NotImplementedError

    def taken(self, signal: str, at_least: int = 1) -> list[Any]:
        """The requests taken, once there are so many; pytest's own timeout ends the waiting."""
        with self._arrived:
            self._arrived.wait_for(lambda: len(self._taken[signal]) >= at_least)
            return list(self._taken[signal])

    def treat(self, signal: str, body: bytes) -> Manner:
        manner = self.manner
        with self._arrived:
            self.in_call += 1
        self.called.release()
        if manner.holds:
            self.release.wait()
        with self._arrived:
            self.in_call -= 1
        if manner.takes:
            with self._arrived:
                self._taken[signal].append(SIGNALS[signal][0].FromString(body))
                self._arrived.notify_all()
        return manner


def response(signal: str, manner: Manner) -> Any:
    _, answer, rejected = SIGNALS[signal]
    return answer(partial_success={rejected: manner.rejects} if manner.rejects else None)


def _serve(server: socketserver.BaseServer) -> None:
    # Looks every so often whether it shall stop.
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()


class HttpCollector(Collector):
    protocol = "http/protobuf"

    def __init__(self, manner: Manner = WELL, port: int = 0) -> None:
        super().__init__(manner)
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", port), self._handler())
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        _serve(self._server)

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = zlib.decompress(body, wbits=31)
                signal = self.path.removeprefix("/v1/")
                manner = collector.treat(signal, body)
                if manner.closes or manner.garbage:
                    self.wfile.write(b"\x00\xff nothing\r\n" if manner.garbage else b"")
                    self.close_connection = True
                    return
                answer = response(signal, manner).SerializeToString()
                if manner.unreadable:
                    answer = b"<html>"
                self.send_response(manner.status)
                if manner.retry_after_s is not None:
                    self.send_header("Retry-After", str(manner.retry_after_s))
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        return Handler


class GrpcCollector(Collector):
    protocol = "grpc"

    def __init__(self, manner: Manner = WELL, port: int = 0) -> None:
        super().__init__(manner)
        self._server = grpc.server(
            ThreadPoolExecutor(4),
            # Otherwise a second server may listen on the port, and a test not notice.
            options=[("grpc.so_reuseport", 0)],
        )
        for signal, service in (("traces", "trace"), ("metrics", "metrics")):
            name = f"opentelemetry.proto.collector.{service}.v1.{service.capitalize()}Service"
            handler = grpc.unary_unary_rpc_method_handler(self._answering(signal))
            self._server.add_generic_rpc_handlers(
                [grpc.method_handlers_generic_handler(name, {"Export": handler})]
            )
        bound = self._server.add_insecure_port(f"127.0.0.1:{port}")
        self.endpoint = f"http://127.0.0.1:{bound}"
        self._server.start()

    def stop(self) -> None:
        self._server.stop(None).wait()

    def _answering(self, signal: str) -> Any:
        def answer(body: bytes, context: grpc.ServicerContext) -> bytes:
            manner = self.treat(signal, body)
            if manner.closes:
                # Ends the call without waiting for it.
                self._server.stop(None)
                context.abort(grpc.StatusCode.UNAVAILABLE, "closing")
            if manner.code is not grpc.StatusCode.OK:
                if manner.retry_after_s is not None:
                    delay = RetryInfo(retry_delay=Duration(seconds=manner.retry_after_s))
                    context.set_trailing_metadata(
                        [("google.rpc.retryinfo-bin", delay.SerializeToString())]
                    )
                context.abort(manner.code, "as told")
            if manner.garbage:
                return b"\xff\xff nothing"
            answered: bytes = response(signal, manner).SerializeToString()
            return answered

        return answer


COLLECTORS: dict[str, type[GrpcCollector | HttpCollector]] = {
    each.protocol: each for each in (GrpcCollector, HttpCollector)
}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def raw_server(answer: bytes, port: int) -> Iterator[None]:
    """Listens, answers whatever comes with these bytes, and closes: no collector at all."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(answer)

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True
        daemon_threads = True

    with Server(("127.0.0.1", port), Handler) as server:
        _serve(server)
        try:
            yield
        finally:
            server.shutdown()
