"""What is sent, and for how long at most."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from moriio_observed.accept.interval import FEWEST_PAIRS
from moriio_observed.canary.answers import Answer
from moriio_observed.canary.errors import NoAnswerError
from moriio_observed.canary.metrics import Mode, Route
from moriio_observed.canary.prompts import WORDS, make
from moriio_observed.canary.recording import Recording
from moriio_observed.canary.targets import Question, Target

LONGEST_PROMPT = 192
"""Words."""
SEED = 20
AT_ONCE, COMPARED_TOKENS = 16, 128
"""Of each run in which decode engines are compared."""


@dataclass(frozen=True)
class Plan:
    """How much is sent.

    Attributes:
        model: Who is asked.
        concurrencies: How many probes are sent at once, step by step.
        rounds: How often.
        repeats: How often the known answers are asked for, at each concurrency.
        tried: So many times the prompts that are kept.
        pairs: Runs in which decode engines are compared.
        max_tokens: Length of the answers.
        mode: How they are judged.
        words: What prompts are made of.
        limit_s: After so many seconds nothing more is sent.
        compares: Whether there is a decode engine to compare with.
    """

    model: str
    concurrencies: tuple[int, ...] = (1, 4, 16)
    rounds: int = 12
    repeats: int = 2
    tried: float = 2.0
    pairs: int = 30
    max_tokens: int = 32
    mode: Mode = Mode.EXACT
    words: tuple[str, ...] = WORDS
    limit_s: float = 1200.0
    compares: bool = False

    @property
    def keep(self) -> int:
        """Prompts with a known answer."""
        return 2 * max(self.concurrencies)

    @property
    def recording(self) -> Recording:
        """How known answers are got."""
        return Recording(
            self.model, self.max_tokens, self.concurrencies, self.repeats, self.keep, self.mode
        )

    def prompts(self) -> list[str]:
        """More of them than are kept."""
        return make(SEED, round(self.tried * self.keep), LONGEST_PROMPT, self.words)

    def compared(self, number: int) -> list[Question]:
        """The prompts of one pair of runs."""
        asked = make(SEED + 1 + number, AT_ONCE, LONGEST_PROMPT, self.words)
        return [Question(self.model, prompt, COMPARED_TOKENS) for prompt in asked]

    def limited(self, minutes: float | None) -> Plan:
        """The same within so many minutes; None: as it is."""
        return self if minutes is None else replace(self, limit_s=minutes * 60)

    def say(self) -> list[str]:
        """What is about to be sent, for whoever has to answer for the load."""
        passes = 1 if self.mode is Mode.DEGENERATION else self.repeats * len(self.concurrencies)
        asked = round(self.tried * self.keep) * passes
        probes = self.rounds * sum(self.concurrencies)
        lines = [
            f"{asked} requests to the engine that answers alone, then {probes} probes",
            (
                f"at most {max(self.concurrencies)} at once; made-up prompts of at most"
                f" {LONGEST_PROMPT} words, answers of {self.max_tokens} tokens"
            ),
        ]
        if self.compares:
            lines.append(
                f"then {self.pairs} times {AT_ONCE} requests at once to each of two decode engines,"
                f" answers of {COMPARED_TOKENS} tokens"
            )
        lines.append(f"nothing more is sent after {self.limit_s / 60:g} minutes")
        return lines


QUICK: dict[str, Any] = {
    "rounds": 3,
    "repeats": 1,
    "tried": 1.25,
    "pairs": FEWEST_PAIRS,
    "limit_s": 300.0,
}
"""Less of everything."""


@dataclass(frozen=True)
class Bounded:
    """A target that is asked nothing more once the time is up.

    Attributes:
        target: It.
        until: When, by `clock`.
        clock: Seconds that only grow.
    """

    target: Target
    until: float
    clock: Callable[[], float] = time.monotonic

    @property
    def route(self) -> Route:
        """As the target's."""
        return self.target.route

    @property
    def name(self) -> str:
        """As the target's."""
        return self.target.name

    @property
    def metrics_pages(self) -> tuple[str, ...]:
        """As the target's."""
        return self.target.metrics_pages

    def ask(self, question: Question, probe: str) -> Answer:
        """Ask, if there is time.

        Raises:
            NoAnswerError: There is no answer, or no time.
        """
        if self.clock() > self.until:
            raise NoAnswerError("the time is up: give more --minutes, or --quick")
        return self.target.ask(question, probe)
