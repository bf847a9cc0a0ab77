"""How the benchmarks on real pairs have a decode engine at work, and what it takes for it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from benchmarks.processor_time import processor_time
from moriio_observed.demo.client import Answer, Held, PairClient
from moriio_observed.demo.errors import DemoError
from moriio_observed.demo.server import Server
from moriio_observed.demo.workload import prompts

__all__ = [
    "AT_ONCE",
    "STEADY",
    "WARM_UP_S",
    "Cost",
    "Side",
    "decode",
    "load",
    "say",
    "together",
    "tokens_of",
]

AT_ONCE = 16
"""Requests of one round."""
WARM_UP_S = 30.0
# vLLM's workers spin for a second after their last step, on the cores of whoever is measured next.
SETTLE_S = 1.2
# oneDNN would keep what it compiles for each new length of a prompt.
STEADY = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "8"}


class Side(NamedTuple):
    """A decode engine, and who asks it by way of its prefill engine."""

    server: Server
    client: PairClient


class Cost(NamedTuple):
    """What a decode engine took for the answers of one round.

    Attributes:
        tokens: Of all answers.
        clock_s: Seconds by the clock.
        processor_s: Seconds for which the threads of all its processes ran.
    """

    tokens: int
    clock_s: float
    processor_s: float

    @property
    def rate(self) -> float:
        """Tokens per second by the clock."""
        return self.tokens / self.clock_s

    @property
    def processor_rate(self) -> float:
        """Tokens per second of processor time."""
        return self.tokens / self.processor_s


def say(text: str) -> None:
    """Print at once."""
    print(text, flush=True)


def tokens_of(answers: Sequence[Answer]) -> int:
    """How many tokens came.

    Raises:
        DemoError: A request failed.
    """
    for answer in answers:
        if answer.error is not None:
            raise DemoError(f"a request failed: {answer.error}")
    return sum(len(answer.tokens) for answer in answers)


def load(client: PairClient, seconds: float, tokens: int) -> None:
    """Keep a pair busy with answers of so many tokens, and say so every minute."""
    started, came, told = time.monotonic(), 0, 0
    seed = 1_000_000
    while (passed := time.monotonic() - started) < seconds:
        seed += 1
        came += tokens_of(client.ask(prompts(seed, AT_ONCE), tokens))
        if passed // 60 > told:
            told = int(passed // 60)
            say(f"load for {told} min: {came / passed:.0f} tokens/s")


def decode(side: Side, asked: Sequence[str], tokens: int) -> Cost:
    """Decode prompts alone, once the prefill engine has done them."""
    held = side.client.hold(asked)
    time.sleep(SETTLE_S)
    return _resume(side, held, tokens)


def together(sides: Sequence[Side], asked: Sequence[str], tokens: int) -> list[Cost]:
    """Have several decode engines decode the same prompts at the same time."""
    held = [side.client.hold(asked) for side in sides]
    time.sleep(SETTLE_S)
    with ThreadPoolExecutor() as pool:
        return list(pool.map(_resume, sides, held, [tokens] * len(sides)))


def _resume(side: Side, held: Sequence[Held], tokens: int) -> Cost:
    started, ran = time.monotonic(), processor_time(side.server.pid)
    came = tokens_of(side.client.resume(held, tokens))
    return Cost(came, time.monotonic() - started, processor_time(side.server.pid) - ran)
