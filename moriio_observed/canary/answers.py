"""An answer, and how it is read from what a server returns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from moriio_observed.canary.errors import NoAnswerError
from moriio_observed.config import shown


@dataclass(frozen=True)
class Answer:
    """What a server generated for one prompt.

    Attributes:
        text: The text.
        tokens: The token ids; None where the server does not return them.
        first_logprob: The natural logarithm of the first token's probability; None where the server
            does not return it.
    """

    text: str
    tokens: tuple[int, ...] | None = None
    first_logprob: float | None = None


def units(one: Answer, other: Answer) -> tuple[Sequence[int | str], Sequence[int | str]]:
    """Two answers in comparable pieces: token ids where both have them, else words."""
    if one.tokens is not None and other.tokens is not None:
        return one.tokens, other.tokens
    return one.text.split(), other.text.split()


def same(one: Answer, other: Answer) -> bool:
    """Whether two answers are the same: by token ids where both have them, else by text."""
    if one.tokens is not None and other.tokens is not None:
        return one.tokens == other.tokens
    return one.text == other.text


def common(one: Answer, other: Answer) -> int:
    """How many tokens (words, where token ids are missing) two answers begin with alike."""
    pairs = zip(*units(one, other), strict=False)
    return next(
        (n for n, (mine, theirs) in enumerate(pairs) if mine != theirs), _shorter(one, other)
    )


CUT_SHORT = ("abort", "error")
"""Why an engine ended an answer that has HTTP 200 all the same: what there is of it proves
nothing."""


def from_completion(completion: dict[str, Any]) -> Answer:
    """Read the first choice of a completion in OpenAI's form, with vLLM's `token_ids`.

    Raises:
        NoAnswerError: It has none, or one that the engine did not finish.
    """
    choices = completion.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    text = choice.get("text") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(text, str):
        raise NoAnswerError(f"the answer has no choices[0].text: {shown(completion)}")
    if (reason := choice.get("finish_reason")) in CUT_SHORT:
        raise NoAnswerError(f"the answer was cut short: finish_reason {reason}")
    return Answer(text, token_ids(choice.get("token_ids")), _first_logprob(choice.get("logprobs")))


def token_ids(value: Any) -> tuple[int, ...] | None:
    """A list of token ids as JSON has it; None for anything else."""
    if isinstance(value, list) and all(type(one) is int for one in value):
        return tuple(value)
    return None


def number(value: Any) -> float | None:
    """A finite number as JSON has it, 0 for 0.0 too; None for anything else."""
    try:
        found = float(value) if type(value) in (int, float) else math.nan
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def _first_logprob(logprobs: Any) -> float | None:
    values = logprobs.get("token_logprobs") if isinstance(logprobs, dict) else None
    return number(values[0]) if isinstance(values, list) and values else None


def _shorter(one: Answer, other: Answer) -> int:
    return min(map(len, units(one, other)))
