"""Prompts: drawn from a seed, made of words, of different lengths."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest

from moriio_observed.canary.errors import CanaryError
from moriio_observed.canary.prompts import LEAD_WORDS, WORDS, make, read_words
from tests.unit.canary.known import in_ascii_locale


def test_a_seed_always_gives_the_same_prompts() -> None:
    assert make(7, 5, 60) == make(7, 5, 60)
    assert make(7, 5, 60) != make(8, 5, 60)


def test_more_prompts_begin_with_the_same_ones() -> None:
    assert make(7, 9, 60)[:5] == make(7, 5, 60)


def test_a_prompt_asks_for_a_copy_of_its_list() -> None:
    for prompt in make(1, 5, 60):
        listed, _, lead = prompt.partition("\n\n")
        assert listed.split()[:LEAD_WORDS] == lead.split()


def test_lists_are_as_long_as_asked_and_a_third_of_it_at_least() -> None:
    lengths = [len(prompt.partition("\n\n")[0].split()) for prompt in make(1, 200, 90)]
    assert (min(lengths), max(lengths)) == (30, 90)


def test_no_word_comes_twice_while_there_are_enough() -> None:
    [prompt] = make(1, 1, 90)
    listed = prompt.partition("\n\n")[0].split()
    assert len(set(listed)) == len(listed)


def test_lists_longer_than_there_are_words_go_on() -> None:
    [prompt] = make(1, 1, 3 * len(WORDS))
    assert len(prompt.split()) >= len(WORDS)


def test_no_two_prompts_begin_alike() -> None:
    """Nothing of a prompt is in a prefix cache because of another."""
    begins = [prompt.split()[:LEAD_WORDS] for prompt in make(1, 64, 192)]
    assert all(one != other for one, other in combinations(begins, 2))


def test_our_words_are_plain_and_each_there_once() -> None:
    assert len(WORDS) == len(set(WORDS)) > 192
    assert all(word.isascii() and word.islower() for word in WORDS)


def test_words_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "words"
    path.write_text("\n".join(f"w{n}" for n in range(100)))
    assert read_words(path) == tuple(f"w{n}" for n in range(100))


def test_a_file_of_words_is_utf_8_whatever_the_locale(tmp_path: Path) -> None:
    path = tmp_path / "words"
    path.write_text("\n".join(f"wört{n}" for n in range(64)), encoding="utf-8")
    program = (
        "import sys; from pathlib import Path;"
        " from moriio_observed.canary.prompts import read_words;"
        " print(ascii(read_words(Path(sys.argv[1]))[0]))"
    )
    assert in_ascii_locale(program, str(path)) == ascii("wört0")


@pytest.mark.parametrize("text", ["", "one two", "same " * 100])
def test_too_few_words_are_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "words"
    path.write_text(text)
    with pytest.raises(CanaryError, match=r"--words .* different words: must have 64 at least"):
        read_words(path)


def test_a_file_of_words_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CanaryError, match=r"--words .* cannot be read"):
        read_words(tmp_path / "none")
