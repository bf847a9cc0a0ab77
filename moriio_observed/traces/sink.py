"""A receiver of OTLP over HTTP on the loopback address, which keeps the spans on disk.

It stands in for a collector where there is none: for the demo, and on the machine where somebody
looks for a slow read. One connection carries one request and has a deadline, so that no client
can hold anything for long.
"""

from __future__ import annotations

import contextlib
import io
import socket
import sys
import threading
import time
import zlib
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any, Self

from moriio_observed.traces import otlp
from moriio_observed.traces.errors import TracesError
from moriio_observed.traces.store import LIMIT_BYTES, SpanWriter
from moriio_observed.traces.text import safe

HOST = "127.0.0.1"
PORT = 4318
"""Where exporters of OTLP over HTTP send by themselves."""

MAX_BODY = 4 * 2**20
"""Largest body, compressed and not, in bytes; an SDK's batch of 512 spans is a tenth of it."""
MOST_DISCARDED = 64 * 2**20
"""Of a larger body so much is read, so that its sender gets to see the answer."""
CONNECTIONS = 32
"""So many at a time; more are asked to come again, which exporters do."""
DEADLINE_S = 10.0
"""How long one request may take to arrive, in seconds."""
STOP_S = 2.0
"""How long stopping waits for requests that have begun, in seconds."""

TRACES = "/v1/traces"
IGNORED = ("/v1/metrics", "/v1/logs")
PROTOBUF, JSON = "application/x-protobuf", "application/json"
GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS


class Sink:
    """Receives spans until it is stopped.

    Args:
        folder: Where they are kept.
        port: Where to listen; 0 takes a free one.
        limit_bytes: How much may be kept.
        say: Is told, once for each kind, what goes wrong with those who send.

    Attributes:
        received: How many spans have come.
    """

    def __init__(
        self,
        folder: Path,
        *,
        port: int = 0,
        limit_bytes: int = LIMIT_BYTES,
        say: Callable[[str], object] = lambda _: None,
    ) -> None:
        self.received = 0
        self._folder = folder
        self._port = port
        self._limit_bytes = limit_bytes
        self._say = say
        self._said: set[str] = set()
        # One at a time: a body takes many times its size while it is decoded.
        self._decoding = threading.Lock()
        self._writer: SpanWriter | None = None
        self._server: _Server | None = None

    def start(self) -> None:
        """Listen.

        Raises:
            TracesError: When the port or the folder cannot be had.
        """
        self._writer = SpanWriter(self._folder, self._limit_bytes)
        try:
            self._server = _Server((HOST, self._port), self)
        except (OSError, OverflowError) as error:
            self._writer.close()
            raise TracesError(
                f"cannot listen on {HOST}:{self._port}: {error}; give another port, or 0 for a"
                " free one"
            ) from error
        threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="trace-sink", daemon=True
        ).start()

    def stop(self) -> None:
        """Finish what has begun, and free the port and the folder. Safe to call again."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server.drain(STOP_S)
            self._server = None
        if self._writer is not None:
            self._writer.close()

    @property
    def url(self) -> str:
        """What `OTEL_EXPORTER_OTLP_ENDPOINT` is to be, while it listens."""
        if self._server is None:
            raise TracesError("the sink is not running")
        return f"http://{HOST}:{self._server.server_port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def keep(self, body: bytes, *, is_json: bool) -> int:
        """Keep the spans of one request.

        Returns:
            How many entries were no spans.

        Raises:
            MalformedError: When it is not a request for traces.
            TracesError: When they cannot be kept.
        """
        if self._writer is None:
            raise TracesError("the sink is not running")
        with self._decoding:
            data = otlp.from_json(body) if is_json else otlp.from_protobuf(body)
            spans, rejected = otlp.spans_of(data)
            if spans:
                self._writer.append(data)
                self._said.discard(HTTPStatus.INSUFFICIENT_STORAGE.phrase)
            self.received += len(spans)
        return rejected

    def note(self, kind: str, message: str) -> None:
        """Say something unless that kind of thing was said before."""
        if kind not in self._said:
            self._said.add(kind)
            self._say(message)


class _Server(ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True

    def __init__(self, address: tuple[str, int], sink: Sink) -> None:
        self.sink = sink
        self._slots = threading.Semaphore(CONNECTIONS)
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._slots.acquire(blocking=False):
            super().process_request(request, client_address)
            return
        with contextlib.suppress(OSError):
            request.sendall(
                b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\n"
                b"Content-Length: 0\r\nConnection: close\r\n\r\n"
            )
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def server_bind(self) -> None:
        # Not HTTPServer's, which asks the DNS for our name.
        TCPServer.server_bind(self)
        self.server_port = self.socket.getsockname()[1]

    def handle_error(self, *_: object) -> None:
        """Say what is our fault; a client that goes away is not worth a word."""
        error = sys.exception()
        if not isinstance(error, OSError):
            self.sink.note("bug", f"an error of ours, and spans lost by it: {error!r}")

    def drain(self, timeout_s: float) -> None:
        """Wait until no request is being served, for so many seconds at most."""
        end = time.monotonic() + timeout_s
        for _ in range(CONNECTIONS):
            if not self._slots.acquire(timeout=max(0.0, end - time.monotonic())):
                return


class _Deadline(io.RawIOBase):
    """What a socket receives, up to one moment for all of it together."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._connection = connection
        self._end = time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError("too slow")
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


class _RefusedError(Exception):
    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    server_version = "moriio-observed"
    timeout = DEADLINE_S

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_Deadline(self.connection, DEADLINE_S))

    def log_message(self, *_: object) -> None:
        """A request is no news."""

    def send_error(
        self, code: int, message: str | None = None, _explain: str | None = None
    ) -> None:
        """Answer what is not HTTP/1.1."""
        if code == HTTPStatus.HTTP_VERSION_NOT_SUPPORTED:
            self.server.sink.note(
                "grpc",
                "somebody sends gRPC, which is not understood here: set"
                " OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf where vLLM is started",
            )
        self._answer(HTTPStatus(code), "text/plain", (message or HTTPStatus(code).phrase).encode())

    def do_GET(self) -> None:
        """Say that somebody is there."""
        text = f"moriio-observed traces: {self.server.sink.received} spans received\n"
        self._answer(HTTPStatus.OK, "text/plain", text.encode())

    def do_POST(self) -> None:
        """Take spans; metrics and logs are thanked for and thrown away."""
        sink = self.server.sink
        try:
            # Read first: a connection closed before its body was read is reset, answer and all.
            body = self._body()
            kind = self._content_type()
            rejected = 0 if self._path() in IGNORED else sink.keep(body, is_json=kind == JSON)
        except TimeoutError:
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, "the request came too slowly")
        except _RefusedError as refused:
            self._refuse(refused.status, str(refused))
        except otlp.MalformedError as error:
            self._refuse(HTTPStatus.BAD_REQUEST, str(error))
        except TracesError as error:
            self._refuse(HTTPStatus.INSUFFICIENT_STORAGE, str(error))
        else:
            self._answer(HTTPStatus.OK, kind, otlp.answer(rejected, is_json=kind == JSON))

    def _path(self) -> str:
        path = self.path.partition("?")[0]
        if path != TRACES and path not in IGNORED:
            raise _RefusedError(
                HTTPStatus.NOT_FOUND,
                f"nothing is at {safe(path, 80)}: spans go to {TRACES}, which a signal's own"
                " endpoint has to name in full",
            )
        return path

    def _content_type(self) -> str:
        kind = self.headers.get_content_type()
        if kind not in {PROTOBUF, JSON}:
            raise _RefusedError(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
                f"{safe(kind, 80)} is neither {PROTOBUF} nor {JSON}",
            )
        return kind

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            body = self._chunks()
        else:
            body = self._exactly(self._length(self.headers.get("Content-Length", ""), 10))
        encoding = self.headers.get("Content-Encoding", "identity").lower()
        if encoding == "identity":
            return body
        if encoding not in {"gzip", "deflate"}:
            raise _RefusedError(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
                f"{safe(encoding, 80)} is neither gzip nor deflate",
            )
        return _inflated(body)

    def _chunks(self) -> bytes:
        body = b""
        while size := self._length(
            self.rfile.readline(80).partition(b";")[0].decode("latin-1"), 16
        ):
            body += self._exactly(size)
            self.rfile.readline(80)
            if len(body) > MAX_BODY:
                raise _too_large()
        while self.rfile.readline(80).strip():
            pass  # trailers
        return body

    def _length(self, text: str, base: int) -> int:
        try:
            length = int(text.strip(), base)
        except ValueError:
            raise _RefusedError(HTTPStatus.LENGTH_REQUIRED, "the body has no length") from None
        if length < 0:
            raise _RefusedError(HTTPStatus.BAD_REQUEST, "the body has a length below zero")
        if length > MAX_BODY:
            self._discard(min(length, MOST_DISCARDED))
            raise _too_large()
        return length

    def _discard(self, length: int) -> None:
        while length > 0 and (piece := self.rfile.read(min(length, 2**16))):
            length -= len(piece)

    def _exactly(self, length: int) -> bytes:
        body = self.rfile.read(length)
        if len(body) < length:
            raise _RefusedError(HTTPStatus.BAD_REQUEST, "the body ends too early")
        return body

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self.server.sink.note(status.phrase, f"refused what somebody sent ({status.value}): {why}")
        self._answer(status, "text/plain", why.encode())

    def _answer(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)


def _inflated(body: bytes) -> bytes:
    inflater = zlib.decompressobj(GZIP_OR_ZLIB)
    try:
        plain = inflater.decompress(body, MAX_BODY + 1)
    except zlib.error as error:
        raise _RefusedError(HTTPStatus.BAD_REQUEST, f"cannot be decompressed: {error}") from None
    if len(plain) > MAX_BODY:
        raise _too_large()
    if not inflater.eof:
        raise _RefusedError(HTTPStatus.BAD_REQUEST, "the compressed body ends too early")
    return plain


def _too_large() -> _RefusedError:
    return _RefusedError(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"more than {MAX_BODY} bytes; send smaller batches"
    )
