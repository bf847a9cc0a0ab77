"""A small server with OpenAI's completions, whose answers depend on the prompt alone if it is well.

Not a vLLM: it returns what vLLM returns to the requests that a canary sends, and can be told to
answer wrong in the ways that a canary is there for.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from moriio_observed.canary.prompts import WORDS

MODEL = "m"
PREFILLED = {"do_remote_prefill": True, "remote_block_ids": [1, 2], "remote_engine_id": "p"}

POLL_S = 0.01
"""How often a server looks whether it is to end."""

Tokens = list[int]


def right(prompt: str, length: int = 32) -> Tokens:
    """The answer of a server that is well."""
    digest = hashlib.shake_256(prompt.encode()).digest(2 * length)
    return [int.from_bytes(digest[n : n + 2]) % len(WORDS) for n in range(0, 2 * length, 2)]


def late(prompt: str) -> Tokens:
    """Right for ten tokens."""
    return right(prompt)[:10] + right(f"another {prompt}")[10:]


def salad(prompt: str) -> Tokens:
    """As fluent as the right answer, and wrong."""
    return right(f"something else than {prompt}")


class Stale:
    """Valid KV, but the previous prompt's: each answer is the one before's."""

    def __init__(self) -> None:
        self._previous = ""
        self._lock = threading.Lock()

    def __call__(self, prompt: str) -> Tokens:
        with self._lock:
            asked, self._previous = self._previous, prompt
        return right(asked or prompt)


@dataclass
class ModelServer:
    """How the server behaves; change it while it runs.

    Attributes:
        url: Where it listens.
        answer: Tokens for a prompt.
        status: Refuses completions with it; 0: answers.
        patience: How many it answers all the same before it does.
        page: What it returns instead of a completion; empty: a completion.
        token_ids: Whether it returns them.
        logprob: The first token's; None: it returns none.
        waiting: How many requests wait, as /metrics says.
        metrics: What else /metrics says, for how many requests it was sent.
        prefills: Whether it is a prefill engine, which returns `kv_transfer_params`.
        asked: The bodies it was sent.
        ids: Their request ids.
        headers: The headers of the last request.
        clients: Where each request came from.
        most: The most requests that were there at once.
    """

    url: str = ""
    answer: Callable[[str], Tokens] = right
    status: int = 0
    patience: int = 0
    page: str = ""
    token_ids: bool = True
    logprob: float | None = -0.5
    waiting: int = 0
    metrics: Callable[[int], str] = lambda _: ""
    prefills: bool = True
    asked: list[dict[str, Any]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    clients: list[tuple[str, int]] = field(default_factory=list)
    most: int = 0

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._there = 0
        self._company = threading.Condition(self._lock)

    def wait_for_company(self, count: int) -> Callable[[str], Tokens]:
        """An answer that comes only once so many requests have been there at once."""

        def answer(prompt: str) -> Tokens:
            with self._company:
                assert self._company.wait_for(lambda: self.most >= count, timeout=30)
            return right(prompt)

        return answer

    @contextmanager
    def serving_one(self) -> Iterator[None]:
        """While one request is there."""
        with self._company:
            self._there += 1
            self.most = max(self.most, self._there)
            self._company.notify_all()
        try:
            yield
        finally:
            with self._lock:
                self._there -= 1


@contextmanager
def serving(**behaviour: Any) -> Iterator[ModelServer]:
    """A server that behaves so, until the block ends."""
    server = ModelServer(**behaviour)
    listening = _Listening(("127.0.0.1", 0), _handler(server))
    server.url = f"http://127.0.0.1:{listening.server_port}"
    thread = threading.Thread(target=listening.serve_forever, args=(POLL_S,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        listening.shutdown()
        listening.server_close()
        thread.join()


class _Listening(ThreadingHTTPServer):
    daemon_threads = True
    # Many connect at the same time.
    request_queue_size = 128


def _handler(server: ModelServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            labels = f'{{model_name="{MODEL}"}}'
            said = server.metrics(len(server.asked))
            self.send(200, f"vllm:num_requests_waiting{labels} {server.waiting}\n{said}")

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            server.asked.append(body)
            server.ids.append(self.headers["X-Request-Id"])
            server.headers = dict(self.headers)
            server.clients.append(self.client_address)
            with server.serving_one():
                self.send(*_response(server, body))

        def send(self, status: int, text: str) -> None:
            data = text.encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


def _response(server: ModelServer, body: dict[str, Any]) -> tuple[int, str]:
    if body["model"] != MODEL:
        error = {"message": f"The model `{body['model']}` does not exist.", "code": 404}
        return 404, json.dumps({"error": error})
    if server.status and len(server.asked) > server.patience:
        return server.status, json.dumps({"error": {"message": "not now"}})
    return 200, server.page or json.dumps(_completion(server, body))


def _completion(server: ModelServer, body: dict[str, Any]) -> dict[str, Any]:
    tokens = server.answer(body["prompt"])[: body["max_tokens"]]
    choice: dict[str, Any] = {"index": 0, "text": " ".join(WORDS[token] for token in tokens)}
    if server.token_ids:
        choice["token_ids"] = tokens
    if server.logprob is not None:
        choice["logprobs"] = {"token_logprobs": [server.logprob] * len(tokens)}
    prefill = body.get("kv_transfer_params", {}).get("do_remote_decode")
    params = {"kv_transfer_params": PREFILLED} if prefill and server.prefills else {}
    return {"object": "text_completion", "choices": [choice], **params}
