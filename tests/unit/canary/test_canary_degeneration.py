"""Signs of degeneration, against what the recorded answers show."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moriio_observed.canary.answers import Answer
from moriio_observed.canary.degeneration import Limits, compression, loop
from moriio_observed.canary.metrics import Sign

PLAIN = "The lamp on the quiet harbor wall was lit before the first boats came home that evening"
LOOPING = "the lamp and the lamp and the lamp and the lamp and the lamp and the lamp and the lamp"
CHINESE = "今天天气很好我们一起去公园散步看花然后回家吃饭"


def signs(text: str, *recorded: str) -> tuple[Sign, ...]:
    return Limits.of([Answer(one) for one in recorded or (PLAIN,)]).signs(Answer(text))


def test_a_text_like_the_recorded_ones_shows_none() -> None:
    assert (
        signs("A gray boat went past the old harbor and its lamp was lit before the evening") == ()
    )


def test_a_loop_is_seen() -> None:
    assert Sign.LOOP in signs(LOOPING)


def test_a_text_that_compresses_far_better_is_seen() -> None:
    assert Sign.COMPRESSION in signs(LOOPING)


def test_another_script_is_seen() -> None:
    assert signs(f"The lamp on the {CHINESE[:9]} wall", PLAIN)[-1:] == (Sign.SCRIPT,)


def test_broken_characters_are_seen() -> None:
    assert Sign.SCRIPT in signs("The lamp \N{REPLACEMENT CHARACTER}" * 3)


def test_one_foreign_letter_is_none() -> None:
    assert Sign.SCRIPT not in signs(f"{PLAIN} \N{GREEK SMALL LETTER PHI}")


def test_what_recorded_answers_show_is_no_sign() -> None:
    assert signs(LOOPING, PLAIN, LOOPING) == ()
    assert signs(CHINESE, PLAIN, CHINESE) == ()


def test_an_empty_answer_shows_none() -> None:
    assert signs("") == ()


@pytest.mark.parametrize(
    ("answer", "share"),
    [
        (Answer("", (1, 2, 3, 4)), 0.0),
        (Answer("", (1, 1, 1, 1)), 1.0),
        (Answer("", (1, 2, 1, 2, 1, 2)), 1.0),
        (Answer("", (9, 8, 1, 1, 1, 1)), 4 / 6),
        (Answer("", (1, 2, 3, 1)), 0.0),
        (Answer("a b a b"), 1.0),
        (Answer(""), 0.0),
    ],
)
def test_the_share_of_an_answer_that_is_in_its_longest_loop(answer: Answer, share: float) -> None:
    assert loop(answer) == pytest.approx(share)


@given(st.text(max_size=200), st.none() | st.lists(st.integers(0, 5), max_size=40).map(tuple))
def test_any_text_can_be_measured(text: str, tokens: tuple[int, ...] | None) -> None:
    answer = Answer(text, tokens)
    assert compression(text) > 0
    assert 0 <= loop(answer) <= 1
    assert Limits.of([answer]).signs(answer) == ()
