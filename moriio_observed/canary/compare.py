"""What an answer is, held against the known ones."""

from __future__ import annotations

from collections.abc import Sequence

from moriio_observed.canary.answers import Answer, common, same, units
from moriio_observed.canary.metrics import Mode, Result, Sign

SWAPPED_TOKENS = 8
"""An answer that goes so long with another prompt's, and not with its own, is that one's."""


def judge(
    answer: Answer,
    known: Answer,
    others: Sequence[Answer],
    signs: Sequence[Sign],
    mode: Mode,
) -> Result:
    """What became of a probe that was answered.

    Args:
        answer: What came back.
        known: What was recorded.
        others: What was recorded for the other prompts.
        signs: The signs of degeneration in `answer`.
        mode: Whether other tokens than recorded are wrong by themselves.
    """
    if same(answer, known):
        return Result.MATCH
    if any(_goes_with(answer, other, known) for other in others):
        return Result.SWAPPED
    if mode is Mode.EXACT:
        return Result.DIVERGED
    return Result.DEGENERATE if signs else Result.SOUND


def _goes_with(answer: Answer, other: Answer, known: Answer) -> bool:
    whole = len(units(other, answer)[0])
    shared = common(answer, other)
    return shared > common(answer, known) and shared >= min(SWAPPED_TOKENS, whole) > 0


def logprob_difference(answer: Answer, known: Answer) -> float | None:
    """How far the first token's log probability is from the recorded one.

    Returns:
        None where either is not known, or the first token is another.
    """
    if answer.first_logprob is None or known.first_logprob is None or not common(answer, known):
        return None
    return abs(answer.first_logprob - known.first_logprob)
