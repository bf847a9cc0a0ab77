"""What an answer is, held against the known ones."""

from __future__ import annotations

import pytest

from moriio_observed.canary.answers import Answer
from moriio_observed.canary.compare import judge, logprob_difference
from moriio_observed.canary.metrics import Mode, Result, Sign

MINE = Answer("", tuple(range(20)))
THEIRS = Answer("", tuple(range(100, 120)))
OTHERS = [Answer("", tuple(range(200, 220))), THEIRS]


def verdict(answer: Answer, mode: Mode = Mode.EXACT, *signs: Sign) -> Result:
    return judge(answer, MINE, OTHERS, signs, mode)


@pytest.mark.parametrize("mode", Mode)
def test_the_recorded_tokens_match(mode: Mode) -> None:
    assert verdict(MINE, mode) is Result.MATCH


@pytest.mark.parametrize("mode", Mode)
def test_the_answer_to_another_prompt_is_swapped(mode: Mode) -> None:
    """Stale but valid KV: nothing but this shows it."""
    assert verdict(THEIRS, mode) is Result.SWAPPED


@pytest.mark.parametrize("mode", Mode)
def test_it_is_enough_to_begin_like_the_answer_to_another_prompt(mode: Mode) -> None:
    assert verdict(Answer("", THEIRS.tokens[:8] + (7,) * 12), mode) is Result.SWAPPED


def test_a_short_answer_to_another_prompt_is_swapped_as_well() -> None:
    other = Answer("", (50, 51))
    assert judge(other, MINE, [other], (), Mode.EXACT) is Result.SWAPPED


def test_a_few_tokens_like_another_prompts_are_chance() -> None:
    assert verdict(Answer("", THEIRS.tokens[:7] + (7,) * 13)) is Result.DIVERGED


def test_an_answer_that_goes_longer_with_its_own_is_not_swapped() -> None:
    near = Answer("", MINE.tokens[:9] + (7,) * 11)
    answer = Answer("", MINE.tokens[:12] + (8,) * 8)
    assert judge(answer, MINE, [near], (), Mode.EXACT) is Result.DIVERGED


def test_other_tokens_have_diverged_where_answers_are_always_the_same() -> None:
    assert verdict(Answer("", (*MINE.tokens[:19], 7))) is Result.DIVERGED


def test_an_answer_that_stops_early_has_diverged() -> None:
    assert verdict(Answer("", MINE.tokens[:5])) is Result.DIVERGED


def test_other_tokens_are_sound_where_answers_vary() -> None:
    assert verdict(Answer("", (7,) * 20), Mode.DEGENERATION) is Result.SOUND


def test_a_sign_of_degeneration_decides_where_answers_vary() -> None:
    assert verdict(Answer("", (7,) * 20), Mode.DEGENERATION, Sign.LOOP) is Result.DEGENERATE


def test_what_was_recorded_is_no_degeneration() -> None:
    assert verdict(MINE, Mode.DEGENERATION, Sign.LOOP) is Result.MATCH


def test_the_first_tokens_logprob_is_compared() -> None:
    one, other = Answer("", (1, 2), -0.5), Answer("", (1, 3), -0.75)
    assert logprob_difference(one, other) == 0.25


@pytest.mark.parametrize(
    "other", [Answer("", (2,), -0.5), Answer("", (1,)), Answer("")], ids=["token", "logprob", "all"]
)
def test_another_first_token_or_no_logprob_has_no_difference(other: Answer) -> None:
    assert logprob_difference(Answer("", (1,), -0.5), other) is None
