"""One round: the golden prompts through a sweep of concurrencies."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from moriio_observed.canary.answers import same
from moriio_observed.canary.golden import Golden
from moriio_observed.canary.metrics import Mode, Result, RoundResult
from moriio_observed.canary.probes import Judge, Probe, Reply, ask_at_once
from moriio_observed.canary.targets import Question, Target

WRONG = frozenset({Result.SWAPPED, Result.DIVERGED, Result.DEGENERATE})
DIFFERENT = frozenset({Result.SWAPPED, Result.DIVERGED})
"""What may be the golden answers' fault."""

_AMOUNTS = {
    **dict.fromkeys(WRONG, RoundResult.WRONG),
    Result.OUTDATED: RoundResult.OUTDATED,
    Result.ERROR: RoundResult.ERROR,
    Result.BUSY: RoundResult.BUSY,
}


@dataclass(frozen=True)
class Round:
    """What one round brought."""

    probes: tuple[Probe, ...]

    @property
    def result(self) -> RoundResult:
        """The worst of its probes."""
        found = {_AMOUNTS.get(probe.result, RoundResult.RIGHT) for probe in self.probes}
        return next((one for one in RoundResult if one in found), RoundResult.ERROR)

    @property
    def answered(self) -> bool:
        """Whether the servers let it in and answered anything."""
        return self.result is not RoundResult.BUSY and any(
            probe.seconds is not None for probe in self.probes
        )


class Deck:
    """Chooses prompts: those that were asked longest ago, ties by chance.

    So every prompt has its turn, and memory that keeps what the last probes left there holds other
    prompts than the next ones.

    Args:
        size: How many prompts there are.
        draw: Chance.
    """

    def __init__(self, size: int, draw: random.Random) -> None:
        self._asked = dict.fromkeys(range(size), 0)
        self._turn = 0
        self._draw = draw

    def deal(self, count: int) -> list[int]:
        """So many different prompts, by their places; all of them, if there are no more."""
        self._turn += 1
        order = sorted(self._asked, key=lambda prompt: (self._asked[prompt], self._draw.random()))
        chosen = order[:count]
        self._asked.update(dict.fromkeys(chosen, self._turn))
        return chosen


class Prober:
    """Sends rounds of probes.

    Args:
        golden: The golden answers.
        target: What is probed.
        mode: Whether other tokens than recorded are wrong by themselves.
        concurrencies: How many probes are sent at once, one value for each step of the sweep.
        reference: What answers alone, asked again only where an answer is not as recorded; None:
            the golden answers are always right.
        is_busy: Whether the servers have enough to do; asked before each step.
        draw: Chance.
    """

    def __init__(
        self,
        golden: Golden,
        target: Target,
        *,
        mode: Mode,
        concurrencies: Sequence[int],
        reference: Target | None = None,
        is_busy: Callable[[], bool] = lambda: False,
        draw: random.Random | None = None,
    ) -> None:
        self._golden = golden
        self._target = target
        self._reference = reference
        self._concurrencies = concurrencies
        self._is_busy = is_busy
        self._judge = Judge(golden, mode)
        self._deck = Deck(len(golden.known), draw or random.Random())  # noqa: S311 - no secret

    def round(self) -> Round:
        """Send one probe, then several at once, until the sweep is through or the server busy."""
        probes: list[Probe] = []
        busy = False
        for concurrency in self._concurrencies:
            prompts = self._deck.deal(concurrency)
            busy = busy or self._is_busy()
            step = self._unsent(prompts) if busy else self._step(prompts)
            busy = busy or any(probe.result is Result.BUSY for probe in step)
            probes += step
        return Round(tuple(probes))

    def _unsent(self, prompts: Sequence[int]) -> list[Probe]:
        reason = "not sent: the server is busy"
        return [Probe(one, len(prompts), Result.BUSY, error=reason) for one in prompts]

    def _step(self, prompts: Sequence[int]) -> list[Probe]:
        replies = ask_at_once(self._target, [self._question(prompt) for prompt in prompts])
        probes = [
            self._judge.probe(prompt, len(prompts), reply)
            for prompt, reply in zip(prompts, replies, strict=True)
        ]
        return self._checked(probes, replies)

    def _checked(self, probes: list[Probe], replies: Sequence[Reply]) -> list[Probe]:
        """Ask the reference where an answer is not as recorded: perhaps the record is old."""
        doubtful = [n for n, probe in enumerate(probes) if probe.result in DIFFERENT]
        if self._reference is None or not doubtful:
            return probes
        questions = [self._question(probes[n].prompt) for n in doubtful]
        checked = list(probes)
        for n, now in zip(doubtful, ask_at_once(self._reference, questions), strict=True):
            answer = replies[n].answer
            if answer is not None and now.answer is not None and same(answer, now.answer):
                checked[n] = replace(probes[n], result=Result.OUTDATED)
        return checked

    def _question(self, prompt: int) -> Question:
        golden = self._golden
        return Question(golden.model, golden.known[prompt].prompt, golden.max_tokens)
