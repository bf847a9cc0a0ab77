"""Real HTTP servers that show pages of metrics, change them, hang, and start again."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer

from tests.unit.doctor.patients import Quiet, answering


class Engine:
    """A server of one page.

    Attributes:
        page: What it answers; called for each look.
        looks: How often it was asked.
    """

    def __init__(self, page: Callable[[int], str] | str, port: int = 0) -> None:
        self.page = page if callable(page) else lambda _: page
        self.looks = 0
        engine = self

        class Handler(Quiet):
            def do_GET(self) -> None:  # noqa: N802  (its name in http.server)
                engine.looks += 1
                content = engine.page(engine.looks - 1).encode()
                self.send_response(200)
                self.end_headers()
                self.wfile.write(content)

            def handle(self) -> None:
                with contextlib.suppress(OSError):  # whoever asked has not waited
                    super().handle()

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        # A test that hangs one of its threads shall end all the same.
        self._server.block_on_close = False
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return self._server.server_port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def name(self) -> str:
        return f"127.0.0.1:{self.port}"

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def serving(page: Callable[[int], str] | str) -> Iterator[Engine]:
    """An engine that shows this page, or by the number of the look, while in it."""
    engine = Engine(page)
    try:
        yield engine
    finally:
        engine.stop()


@contextmanager
def hanging() -> Iterator[Engine]:
    """A server that takes questions and answers none while in it."""
    over = threading.Event()

    def wait(_: int) -> str:
        over.wait()
        return ""

    with serving(wait) as engine:
        try:
            yield engine
        finally:
            over.set()


@contextmanager
def dripping() -> Iterator[tuple[str, list[str]]]:
    """A server that never stops sending, a byte now and then; also what it was asked for."""
    over = threading.Event()
    asked: list[str] = []

    class Handler(Quiet):
        def do_GET(self) -> None:  # noqa: N802  (its name in http.server)
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            while not over.wait(0.05):
                self.wfile.write(b"#")

    with answering(Handler) as url:
        try:
            yield url, asked
        finally:
            over.set()
