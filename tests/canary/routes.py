"""Routers that make something else of the prefill engine's params than a router should."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from moriio_observed.canary.answers import Answer
from moriio_observed.canary.http import Http
from moriio_observed.canary.targets import Pair, Question, Single, Target, new_probe
from moriio_observed.demo.client import PairClient
from tests.canary.stage import pair_of

Route = Callable[[Http, PairClient], Target]


@dataclass(frozen=True)
class Late(Pair):
    """Passes a request on to the decode engine late.

    Attributes:
        by_s: How late, seconds.
    """

    by_s: float

    def answer(self, question: Question, probe: str, params: Mapping[str, Any]) -> Answer:
        """Have the answer then."""
        time.sleep(self.by_s)
        return super().answer(question, probe, params)


@dataclass(frozen=True)
class Twice(Late):
    """Has the answer, and asks for it once more with the same params, so much later."""

    def answer(self, question: Question, probe: str, params: Mapping[str, Any]) -> Answer:
        """Have the second answer."""
        Pair.answer(self, question, probe, params)
        # By another name: otherwise the decode engine would have it in its own cache.
        return super().answer(question, new_probe(), params)


@dataclass
class _Last:
    """The blocks of the prompt that was prefilled last."""

    blocks: Any = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def exchanged(self, blocks: Any) -> Any:
        """The last ones for these; at first these."""
        with self.lock:
            last, self.blocks = self.blocks, blocks
        return blocks if last is None else last


@dataclass(frozen=True)
class Stale(Pair):
    """Names the blocks of the prompt before: valid KV, every read succeeds, and it is another's.

    Attributes:
        last: The prompt before.
    """

    last: _Last = field(default_factory=_Last)

    def prefilled(self, question: Question, probe: str) -> dict[str, Any]:
        """Have the prompt computed; give the other one's blocks."""
        params = super().prefilled(question, probe)
        return params | {"remote_block_ids": self.last.exchanged(params["remote_block_ids"])}


def past_the_prefill_engine(http: Http, client: PairClient) -> Target:
    """A router that sends plain requests to a decode engine."""
    return Single(http, client.decode.url)


def late(by_s: float) -> Route:
    """A slow router."""
    return lambda http, client: _through(Late, http, client, by_s=by_s)


def twice(by_s: float) -> Route:
    """A router that does not take an answer for one."""
    return lambda http, client: _through(Twice, http, client, by_s=by_s)


def stale(http: Http, client: PairClient) -> Target:
    """A router that mixes two requests up."""
    return _through(Stale, http, client)


def _through(router: type[Pair], http: Http, client: PairClient, **more: Any) -> Pair:
    pair = pair_of(http, client)
    return router(pair.http, pair.prefill, pair.decode, **more)
