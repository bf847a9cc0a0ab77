"""Asking a pair without a proxy: the prefill leg, then the decode leg, many at a time."""

import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from moriio_observed.demo import web
from moriio_observed.demo.server import Ports

TIMEOUT_S = 120.0
MAX_TOKENS = 32

_PROMPT = "-0"
"""What vLLM appends for the only prompt of a request."""

Asked = TypeVar("Asked")
Got = TypeVar("Got")


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

    @property
    def trace_id(self) -> str:
        """The trace this request is in, if the client was traced."""
        return trace_id(self.request_id.removesuffix(_PROMPT))

    def is_known_as(self, engine_id: str) -> bool:
        """Whether the decode engine means this request by an id."""
        return engine_id.startswith(f"{self.request_id}-") or engine_id == self.request_id


@dataclass(frozen=True)
class Held:
    """A prompt whose KV cache a prefill server holds.

    Attributes:
        request_id: Names the request towards both servers.
        prompt: The prompt.
        params: The `kv_transfer_params` that the decode leg must carry.
    """

    request_id: str
    prompt: str
    params: Mapping[str, Any]


@dataclass(frozen=True)
class PairClient:
    """Sends requests through a prefill and a decode server as a router would.

    Attributes:
        prefill: The prefill server's ports.
        decode: The decode server's ports.
        patience_s: How long the client stays for one leg, in seconds; then it hangs up.
        traced: Whether it sends a trace context of its own, by which a trace is kept.
    """

    prefill: Ports
    decode: Ports
    patience_s: float = TIMEOUT_S
    traced: bool = False

    def reference(self, prompts: Sequence[str], max_tokens: int = MAX_TOKENS) -> list[Answer]:
        """Ask the prefill server alone: what a single engine answers."""
        return concurrently(lambda prompt: _plain(self.prefill, prompt, max_tokens), prompts)

    def ask(self, prompts: Sequence[str], max_tokens: int = MAX_TOKENS) -> list[Answer]:
        """Ask the pair all prompts at once; a failed request is an answer with its error."""
        return concurrently(lambda prompt: self._both_legs(prompt, max_tokens), prompts)

    def ask_decode(self, prompts: Sequence[str], max_tokens: int = MAX_TOKENS) -> list[Answer]:
        """Ask the decode server alone, as a request that was routed wrongly."""
        return concurrently(lambda prompt: _plain(self.decode, prompt, max_tokens), prompts)

    def hold(self, prompts: Sequence[str]) -> list[Held]:
        """Send the prefill legs alone.

        Raises:
            OSError: When the prefill server answers with an error or not at all.
            ValueError: When it returns no params.
        """
        return concurrently(lambda prompt: self._hold(prompt, self.new_request_id()), prompts)

    def resume(self, held: Sequence[Held], max_tokens: int = MAX_TOKENS) -> list[Answer]:
        """Send the decode legs of held prompts, all at once."""
        return concurrently(lambda one: self._decode_leg(one, max_tokens), held)

    def _both_legs(self, prompt: str, max_tokens: int) -> Answer:
        request_id = self.new_request_id()
        try:
            held = self._hold(prompt, request_id)
        except (OSError, ValueError) as error:
            return Answer(engine_request_id(request_id), error=str(error))
        return self._decode_leg(held, max_tokens)

    def _hold(self, prompt: str, request_id: str) -> Held:
        params = prefill_leg(self.prefill, prompt, request_id, self.patience_s, traced=self.traced)
        return Held(request_id, prompt, params)

    def _decode_leg(self, held: Held, max_tokens: int) -> Answer:
        request = body(held.prompt, max_tokens) | {"kv_transfer_params": held.params}
        try:
            completion = post(
                self.decode.url, request, held.request_id, self.patience_s, traced=self.traced
            )
        except (OSError, ValueError) as error:
            return Answer(engine_request_id(held.request_id), error=str(error))
        return _answer(held.request_id, completion)

    def new_request_id(self) -> str:
        """A request id that tells both engines where the other one listens."""
        return (
            f"___prefill_addr_{self.prefill.zmq_address}"
            f"___decode_addr_{self.decode.zmq_address}_{uuid.uuid4().hex}"
        )


def prefill_leg(
    prefill: Ports,
    prompt: str,
    request_id: str,
    timeout_s: float = TIMEOUT_S,
    *,
    traced: bool = False,
) -> dict[str, Any]:
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
    request = body(prompt, 1) | {"kv_transfer_params": asked}
    completion = post(prefill.url, request, request_id, timeout_s, traced=traced)
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


def post(
    url: str,
    request: dict[str, Any],
    request_id: str,
    timeout_s: float = TIMEOUT_S,
    *,
    traced: bool = False,
) -> dict[str, Any]:
    """Send one completion request.

    Raises:
        OSError: When the server answers with an error or not at all.
        ValueError: When it answers something that is not JSON.
    """
    headers = {"X-Request-Id": request_id}
    if traced:
        headers["traceparent"] = f"00-{trace_id(request_id)}-{span_id(request_id)}-01"
    return web.post_json(f"{url}/v1/completions", request, headers, timeout_s)


def trace_id(request_id: str) -> str:
    """The trace that a traced client's request is in: its id's last part, 32 digits."""
    return request_id[-32:]


def span_id(request_id: str) -> str:
    """The client's own span in it, 16 digits."""
    return request_id[-16:]


def engine_request_id(request_id: str) -> str:
    """The start of the id that an engine gives the only prompt of a completion request."""
    return f"cmpl-{request_id}{_PROMPT}"


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


def concurrently(ask: Callable[[Asked], Got], asked: Sequence[Asked]) -> list[Got]:
    """Ask all at the same time, each in a thread of its own."""
    with ThreadPoolExecutor(max_workers=len(asked)) as threads:
        return list(threads.map(ask, asked))
