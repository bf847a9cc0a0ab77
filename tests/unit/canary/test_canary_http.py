"""Servers that answer oddly: every one of them is one sentence, and none holds the canary up."""

from __future__ import annotations

import gzip
import itertools
import json
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from http.client import parse_headers
from pathlib import Path

import pytest

from moriio_observed.canary.errors import NoAnswerError
from moriio_observed.canary.http import LARGEST_PAGE, Http
from tests.unit.canary.model_server import ModelServer

COMPLETION = json.dumps({"choices": [{"text": "an answer"}]}).encode()


def head(*headers: str, status: str = "200 OK") -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", *headers, "", ""]).encode()


def whole(body: bytes, *headers: str) -> list[bytes]:
    return [head(f"Content-Length: {len(body)}", *headers), body]


@contextmanager
def saying(parts: Iterable[bytes], within: ssl.SSLContext | None = None) -> Iterator[str]:
    """A server that says this to whoever comes first, and hangs up; its address."""
    with ExitStack() as stack:
        plain = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        listening = stack.enter_context(_wrapped(plain, within))

        def serve() -> None:
            try:
                connection, _ = listening.accept()
                with connection:
                    _hear(connection)
                    for part in parts:
                        connection.sendall(part)
            except OSError:
                # The client has heard enough, or does not trust us.
                return

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        scheme = "http" if within is None else "https"
        yield f"{scheme}://127.0.0.1:{listening.getsockname()[1]}"
        thread.join()


def _hear(connection: socket.socket) -> None:
    """Read a request to its end: what is unread would cut the answer off."""
    with connection.makefile("rb") as said:
        said.readline()
        said.read(int(parse_headers(said).get("Content-Length", "0")))


def _wrapped(plain: socket.socket, within: ssl.SSLContext | None) -> socket.socket:
    return plain if within is None else within.wrap_socket(plain, server_side=True)


def ask(parts: Iterable[bytes], http: Http) -> object:
    with saying(parts) as url:
        return http.complete(url, {"model": "m"}, "id")


def test_a_compressed_answer_is_read(http: Http) -> None:
    parts = whole(gzip.compress(COMPLETION), "Content-Encoding: gzip")
    assert ask(parts, http) == json.loads(COMPLETION)


def test_an_answer_that_is_not_as_compressed_as_it_says_is_told(http: Http) -> None:
    with pytest.raises(NoAnswerError, match=r"does not answer: "):
        ask(whole(COMPLETION, "Content-Encoding: gzip"), http)


def test_a_server_that_dies_within_its_answer_is_told(http: Http) -> None:
    with pytest.raises(NoAnswerError, match=r"does not answer: .*closed"):
        ask([head("Content-Length: 99"), COMPLETION], http)


def test_half_an_answer_is_told(http: Http) -> None:
    with pytest.raises(NoAnswerError, match="answers no JSON object: "):
        ask(whole(COMPLETION[:20]), http)


def test_what_is_no_http_is_told(http: Http) -> None:
    with pytest.raises(NoAnswerError, match="does not answer: "):
        ask([b"SSH-2.0-OpenSSH_9.2\r\n"], http)


def test_a_redirect_is_not_followed_and_says_where_it_points(http: Http) -> None:
    moved = head("Location: https://new.example/", "Content-Length: 0", status="307 Moved")
    with pytest.raises(
        NoAnswerError, match=r"HTTP 307: it points to 'https://new\.example/', name that one"
    ):
        ask([moved], http)


def test_an_answer_without_end_is_given_up() -> None:
    drops = itertools.chain([head("Transfer-Encoding: chunked")], itertools.repeat(b"1\r\n \r\n"))
    with (
        Http(timeout_s=0.2) as impatient,
        pytest.raises(NoAnswerError, match="not in time"),
    ):
        ask(drops, impatient)


def test_an_answer_of_any_size_is_not_kept(http: Http) -> None:
    with pytest.raises(NoAnswerError, match=f"more than {LARGEST_PAGE} bytes"):
        ask(whole(gzip.compress(bytes(LARGEST_PAGE + 1)), "Content-Encoding: gzip"), http)


def test_a_page_of_any_size_is_none(http: Http) -> None:
    with saying(whole(bytes(LARGEST_PAGE + 1))) as url:
        assert http.page(url) is None


@pytest.mark.parametrize("host", ["a..example", f"{'a' * 64}.example"])
def test_a_host_that_cannot_be_one_is_told(http: Http, host: str) -> None:
    with pytest.raises(NoAnswerError, match=f"http://{host} cannot be sent the request: "):
        http.complete(f"http://{host}", {"model": "m"}, "id")
    assert http.page(f"http://{host}") is None


def test_every_request_has_a_connection_of_its_own(http: Http, server: ModelServer) -> None:
    """Behind a Kubernetes Service a connection stays with one engine."""
    for _ in range(2):
        http.complete(server.url, {"model": "m", "prompt": "p", "max_tokens": 1}, "id")
    assert len(set(server.clients)) == 2


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate that nobody has signed, and its key."""
    key, signed = tmp_path / "key.pem", tmp_path / "signed.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-subj", "/CN=canary", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(signed)),
        ],
        check=True,
        capture_output=True,
    )
    return key, signed


def test_certificates_of_the_machine_are_trusted_and_no_others(
    certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    key, signed = certificate
    within = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    within.load_cert_chain(signed, key)
    with (
        Http(20) as stranger,
        saying(whole(COMPLETION), within) as url,
        pytest.raises(NoAnswerError, match="CERTIFICATE_VERIFY_FAILED"),
    ):
        stranger.complete(url, {"model": "m"}, "id")
    monkeypatch.setenv("SSL_CERT_FILE", str(signed))
    with Http(20) as trusting, saying(whole(COMPLETION), within) as url:
        assert trusting.complete(url, {"model": "m"}, "id") == json.loads(COMPLETION)
