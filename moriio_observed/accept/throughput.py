"""Two decode engines in turns, on the same prompts of the same prefill engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import TypeVar

from moriio_observed.canary.at_once import at_once
from moriio_observed.canary.errors import NoAnswerError
from moriio_observed.canary.targets import Pair, Question, new_probe

Got = TypeVar("Got")


@dataclass(frozen=True)
class Runs:
    """What each engine decoded, pair of runs by pair of runs, tokens per second."""

    ours: tuple[float, ...] = ()
    bare: tuple[float, ...] = ()

    def and_one(self, ours: float, bare: float) -> Runs:
        """With one more pair."""
        return Runs((*self.ours, ours), (*self.bare, bare))


def one_pair(
    ours: Pair,
    bare: Pair,
    questions: Sequence[Question],
    *,
    bare_first: bool,
    before_each: Callable[[], None],
) -> tuple[float, float]:
    """Have both decode the same prompts, one after the other.

    Args:
        ours: The prefill engine with ours.
        bare: The same one with the bare decode engine.
        questions: The prompts.
        bare_first: Which of them begins.
        before_each: Raises where no more may be sent.

    Returns:
        The tokens per second of ours and of the bare one.

    Raises:
        NoAnswerError: A request was not answered.
    """
    rates = {}
    for side in (bare, ours) if bare_first else (ours, bare):
        before_each()
        rates[side] = decode_rate(side, questions)
    return rates[ours], rates[bare]


def decode_rate(
    pair: Pair, questions: Sequence[Question], clock: Callable[[], float] = time.monotonic
) -> float:
    """Tokens per second of the decode legs, all sent at once; the prefill legs come before.

    Raises:
        NoAnswerError: A request was not answered.
    """
    probes = [new_probe() for _ in questions]
    held = _all(list(map(partial, repeat(pair.prefilled), questions, probes)))
    began = clock()
    answers = _all(list(map(partial, repeat(pair.answer), questions, probes, held)))
    seconds = clock() - began
    tokens = sum(
        question.max_tokens if answer.tokens is None else len(answer.tokens)
        for question, answer in zip(questions, answers, strict=True)
    )
    if not tokens:
        raise NoAnswerError(f"{pair.decode.url} answers without tokens")
    return tokens / seconds


def _all(calls: Sequence[Callable[[], Got]]) -> list[Got]:
    got = at_once([partial(_caught, call) for call in calls])
    for one in got:
        if isinstance(one, NoAnswerError):
            raise one
    return [one for one in got if not isinstance(one, NoAnswerError)]


def _caught(call: Callable[[], Got]) -> Got | NoAnswerError:
    try:
        return call()
    except NoAnswerError as error:
        return error
