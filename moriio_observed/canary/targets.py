"""What can be probed: one address, or a prefill and a decode engine by themselves."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

from moriio_observed.canary.answers import Answer, from_completion
from moriio_observed.canary.errors import NoAnswerError
from moriio_observed.canary.http import Http
from moriio_observed.canary.metrics import Route

ID_PREFIX = "moriio-canary-"
"""Every request id begins with it, in logs and traces of the servers too."""


@dataclass(frozen=True)
class Question:
    """One prompt, as it is sent.

    Attributes:
        model: Who shall answer.
        prompt: The prompt.
        max_tokens: How many tokens the answer shall have.
    """

    model: str
    prompt: str
    max_tokens: int

    def body(self, salt: str) -> dict[str, Any]:
        """A greedy completion request.

        Args:
            salt: Keeps it apart from everything in prefix caches. Otherwise the decode engine would
                find the prompt in its own cache the second time, and read nothing.
        """
        return {
            "model": self.model,
            "prompt": self.prompt,
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "logprobs": 1,
            "return_token_ids": True,
            "cache_salt": salt,
            "user": "moriio-canary",
        }


class Target(Protocol):
    """What is probed."""

    @property
    def route(self) -> Route:
        """How requests reach the decode engine."""

    @property
    def name(self) -> str:
        """How it is called in metrics and reports."""

    @property
    def metrics_pages(self) -> tuple[str, ...]:
        """Where the engines tell how much they have to do."""

    def ask(self, question: Question, probe: str) -> Answer:
        """Ask one question.

        Args:
            question: What to ask.
            probe: 32 hexadecimal digits that nothing else was named by.

        Raises:
            NoAnswerError: There is no answer.
        """


@dataclass(frozen=True)
class Single:
    """One address: a router, or an engine that answers alone.

    Attributes:
        http: Asks it.
        url: Its address.
        metrics_pages: The engines' pages, if a router is to be spared when they are busy.
    """

    http: Http
    url: str
    metrics_pages: tuple[str, ...] = ()

    @property
    def route(self) -> Route:
        """By somebody else's choice."""
        return Route.ROUTER

    @property
    def name(self) -> str:
        """Its host and port."""
        return urlsplit(self.url).netloc

    def ask(self, question: Question, probe: str) -> Answer:
        """Send a completion request."""
        completion = self.http.complete(self.url, question.body(probe), ID_PREFIX + probe)
        return from_completion(completion)


@dataclass(frozen=True)
class Engine:
    """An engine that is asked without a router.

    Attributes:
        url: Where it answers HTTP.
        address: Where MoRIIO listens: `host:IP,handshake:PORT,notify:PORT`.
    """

    url: str
    address: str


@dataclass(frozen=True)
class Pair:
    """A prefill and a decode engine: the prefill leg first, then the decode leg.

    Attributes:
        http: Asks them.
        prefill: The producer.
        decode: The consumer.
    """

    http: Http
    prefill: Engine
    decode: Engine

    @property
    def route(self) -> Route:
        """Both legs are our own."""
        return Route.PAIR

    @property
    def name(self) -> str:
        """The decode engine's host and port."""
        return urlsplit(self.decode.url).netloc

    @property
    def metrics_pages(self) -> tuple[str, ...]:
        """Both engines' pages."""
        return (f"{self.prefill.url}/metrics", f"{self.decode.url}/metrics")

    def ask(self, question: Question, probe: str) -> Answer:
        """Have the prompt computed on one engine and the answer on the other."""
        return self.answer(question, probe, self.prefilled(question, probe))

    def prefilled(self, question: Question, probe: str) -> dict[str, Any]:
        """Have the prompt computed and held; give the `kv_transfer_params` by which it is read.

        Raises:
            NoAnswerError: The prefill engine does not answer, or is none.
        """
        asked = {
            "do_remote_decode": True,
            "do_remote_prefill": False,
            "remote_engine_id": None,
            "remote_block_ids": None,
            "transfer_id": f"tx-{probe}",
        }
        body = question.body(probe) | {"max_tokens": 1, "kv_transfer_params": asked}
        completion = self.http.complete(self.prefill.url, body, self._request_id(probe))
        params = completion.get("kv_transfer_params")
        if not isinstance(params, dict):
            raise NoAnswerError(
                f"{self.prefill.url} returns no kv_transfer_params:"
                " it is no prefill engine (kv_producer) with MoRIIO"
            )
        return params

    def answer(self, question: Question, probe: str, params: Mapping[str, Any]) -> Answer:
        """Have the answer to a prompt that the prefill engine holds.

        Raises:
            NoAnswerError: There is no answer.
        """
        body = question.body(probe) | {"kv_transfer_params": params}
        return from_completion(self.http.complete(self.decode.url, body, self._request_id(probe)))

    def _request_id(self, probe: str) -> str:
        # MoRIIO takes both addresses from it, wherever in it they begin.
        return (
            f"{ID_PREFIX}___prefill_addr_{self.prefill.address}"
            f"___decode_addr_{self.decode.address}_{probe}"
        )


def new_probe() -> str:
    """A name for one request: 32 hexadecimal digits."""
    return uuid.uuid4().hex
