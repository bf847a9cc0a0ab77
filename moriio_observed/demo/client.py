"""Asking a pair without a proxy: the prefill leg, then the decode leg, many at a time."""

import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from moriio_observed.demo import web
from moriio_observed.demo.server import Ports

TIMEOUT_S = 120.0
MAX_TOKENS = 32


@dataclass(frozen=True)
class Answer:
    """What came back for one prompt.

    Attributes:
        request_id: The start of the id under which vLLM's decode engine knows the request;
            the engine appends eight random digits.
        tokens: The token ids generated, empty when the request failed.
        text: The same as text.
        error: Why it failed, else None.
    """

    request_id: str
    tokens: tuple[int, ...] = ()
    text: str = ""
    error: str | None = None

    def is_known_as(self, engine_id: str) -> bool:
        """Whether the decode engine means this request by an id."""
        return engine_id.startswith(f"{self.request_id}-") or engine_id == self.request_id


@dataclass(frozen=True)
class PairClient:
    """Sends requests through a prefill and a decode server as a router would.

    Attributes:
        prefill: The prefill server's ports.
        decode: The decode server's ports.
    """

    prefill: Ports
    decode: Ports

    def reference(self, prompts: Sequence[str], max_tokens: int = MAX_TOKENS) -> list[Answer]:
        """Ask the prefill server alone: what a single engine answers."""
        return _concurrently(lambda prompt: _plain(self.prefill, prompt, max_tokens), prompts)

    def ask(self, prompts: Sequence[str], max_tokens: int = MAX_TOKENS) -> list[Answer]:
        """Ask the pair all prompts at once; a failed request is an answer with its error."""
        return _concurrently(lambda prompt: self._both_legs(prompt, max_tokens), prompts)

    def ask_decode(self, prompts: Sequence[str], max_tokens: int = MAX_TOKENS) -> list[Answer]:
        """Ask the decode server alone, as a request that was routed wrongly."""
        return _concurrently(lambda prompt: _plain(self.decode, prompt, max_tokens), prompts)

    def _both_legs(self, prompt: str, max_tokens: int) -> Answer:
        request_id = self.new_request_id()
        try:
            params = prefill_leg(self.prefill, prompt, request_id)
            completion = post(
                self.decode.url,
                body(prompt, max_tokens) | {"kv_transfer_params": params},
                request_id,
            )
        except (OSError, ValueError) as error:
            return Answer(engine_request_id(request_id), error=str(error))
        return _answer(request_id, completion)

    def new_request_id(self) -> str:
        """A request id that tells both engines where the other one listens."""
        return (
            f"___prefill_addr_{self.prefill.zmq_address}"
            f"___decode_addr_{self.decode.zmq_address}_{uuid.uuid4().hex}"
        )


def prefill_leg(prefill: Ports, prompt: str, request_id: str) -> dict[str, Any]:
    """Let the prefill server compute a prompt's KV cache and hold it.

    Returns:
        The `kv_transfer_params` that the decode leg must carry.
    """
    asked = {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "transfer_id": f"tx-{request_id[-32:]}",
    }
    completion = post(prefill.url, body(prompt, 1) | {"kv_transfer_params": asked}, request_id)
    params: dict[str, Any] | None = completion.get("kv_transfer_params")
    if params is None:
        raise ValueError("the prefill server returned no kv_transfer_params")
    return params


def body(prompt: str, max_tokens: int) -> dict[str, Any]:
    """A greedy completion request whose answer comes with its token ids."""
    return {
        "model": "tiny",
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }


def post(url: str, request: dict[str, Any], request_id: str) -> dict[str, Any]:
    """Send one completion request.

    Raises:
        OSError: When the server answers with an error or not at all.
        ValueError: When it answers something that is not JSON.
    """
    return web.post_json(f"{url}/v1/completions", request, {"X-Request-Id": request_id}, TIMEOUT_S)


def engine_request_id(request_id: str) -> str:
    """The start of the id that an engine gives the only prompt of a completion request."""
    return f"cmpl-{request_id}-0"


def _plain(server: Ports, prompt: str, max_tokens: int) -> Answer:
    request_id = uuid.uuid4().hex
    try:
        completion = post(server.url, body(prompt, max_tokens), request_id)
    except (OSError, ValueError) as error:
        return Answer(engine_request_id(request_id), error=str(error))
    return _answer(request_id, completion)


def _answer(request_id: str, completion: dict[str, Any]) -> Answer:
    choice = completion["choices"][0]
    return Answer(engine_request_id(request_id), tuple(choice["token_ids"]), choice["text"])


def _concurrently(ask: Callable[[str], Answer], prompts: Sequence[str]) -> list[Answer]:
    with ThreadPoolExecutor(max_workers=len(prompts)) as threads:
        return list(threads.map(ask, prompts))
