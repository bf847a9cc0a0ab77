"""Clients of a pair, each asking one prompt after the other, and what they were answered."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from moriio_observed.demo.client import Answer, PairClient
from moriio_observed.demo.errors import DemoError
from moriio_observed.demo.workload import prompts

PROMPTS, DRAWS = 64, 4
MAX_TOKENS = 16
THINK_S = 0.1
"""How long a client thinks before it asks again."""
LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class Given:
    """One answer, and when. Times are those of `time.monotonic`."""

    asked: float
    given: float
    answer: Answer
    right: bool


def references(client: PairClient) -> Mapping[str, tuple[int, ...]]:
    """The prompts, with what the prefill engine answers to them alone.

    Raises:
        DemoError: It fails, or gives two prompts the same answer.
    """
    asked = [prompt for seed in range(DRAWS) for prompt in prompts(seed, PROMPTS)]
    with ThreadPoolExecutor(PROMPTS // 8) as threads:
        answers = list(threads.map(lambda prompt: client.reference([prompt], MAX_TOKENS)[0], asked))
    known = {prompt: answer.tokens for prompt, answer in zip(asked, answers, strict=True)}
    if len(set(known.values())) < len(asked) or () in known.values():
        raise DemoError("the prefill engine alone failed, or answers two prompts alike")
    return known


class Traffic:
    """So many clients at a time; ends with the block.

    Args:
        client: Asks the pair.
        known: The prompts, with their right answers.
        most: The most clients there will be.
        seed: Of what each of them asks.
    """

    def __init__(
        self, client: PairClient, known: Mapping[str, tuple[int, ...]], most: int, seed: int
    ) -> None:
        self.clients = 0
        self.given: list[Given] = []
        self._client = client
        self._known = known
        self._seed = seed
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._ask_on, args=(number,)) for number in range(most)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _ask_on(self, number: int) -> None:
        draw = random.Random(f"{self._seed}/{number}")  # noqa: S311 - a repeatable workload
        asked = list(self._known)
        while not self._ended.is_set():
            if number >= self.clients:
                self._ended.wait(LOOK_S)
                continue
            self._ask(draw.choice(asked))
            self._ended.wait(draw.expovariate(1 / THINK_S))

    def _ask(self, prompt: str) -> None:
        began = time.monotonic()
        [answer] = self._client.ask([prompt], MAX_TOKENS)
        right = answer.tokens == self._known[prompt]
        self.given.append(Given(began, time.monotonic(), answer, right))
