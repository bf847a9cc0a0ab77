"""The file of golden answers: what was written is read, and all else is one clear error."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moriio_observed.canary.answers import Answer
from moriio_observed.canary.errors import CanaryError
from moriio_observed.canary.golden import (
    FORMAT,
    Golden,
    Known,
    check_place,
    from_json,
    read,
    to_json,
    write,
)
from moriio_observed.canary.metrics import Mode
from tests.unit.canary.known import golden, in_ascii_locale

many = settings(max_examples=200, deadline=None)

names = st.text(min_size=1, max_size=8)
counts = st.integers(1, 99)
answers = st.builds(
    Answer,
    text=st.text(max_size=20),
    tokens=st.none() | st.lists(st.integers(), min_size=1, max_size=4).map(tuple),
    first_logprob=st.none() | st.floats(allow_nan=False, allow_infinity=False),
)
goldens = st.builds(
    Golden,
    model=names,
    mode=st.sampled_from(Mode),
    max_tokens=counts,
    concurrencies=st.lists(counts, min_size=1, max_size=3).map(tuple),
    recorded_at=names,
    source=names,
    asked=counts,
    known=st.lists(
        st.builds(Known, names, answers), min_size=1, max_size=4, unique_by=lambda one: one.prompt
    ).map(tuple),
)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["prompt", "text", "tokens", "first_logprob"]), inner)
    ),
)


def document() -> dict[str, Any]:
    value: dict[str, Any] = json.loads(to_json(golden(2)))
    return value


@many
@given(goldens)
def test_what_was_written_is_read(written: Golden) -> None:
    assert from_json(to_json(written)) == written


@many
@given(st.text())
def test_any_text_is_golden_answers_or_a_clear_error(text: str) -> None:
    with pytest.raises(CanaryError):
        from_json(text)


@many
@given(st.sampled_from([*document(), "new"]), values)
def test_any_value_of_any_key_is_read_or_a_clear_error(key: str, value: Any) -> None:
    try:
        read_back = from_json(json.dumps({**document(), key: value}))
    except CanaryError:
        return
    assert from_json(to_json(read_back)) == read_back


@many
@given(st.binary())
def test_any_bytes_in_the_file_are_a_clear_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(data)
    with pytest.raises(CanaryError, match=r"golden answers .*any"):
        read(path)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("format", "x", r'"format" must be'),
        ("version", 2, r'"version" is 2: this release reads 1; record them anew'),
        ("model", "", r'"model" is \'\': must be a name'),
        ("mode", "loose", r"\"mode\" is 'loose': must be exact or degeneration"),
        ("max_tokens", 0, r'"max_tokens" is 0: must be a number above 0'),
        ("max_tokens", True, r'"max_tokens" is True'),
        ("concurrencies", [1, "4"], r'"concurrencies" is \[1, \'4\'\]: must be a list of numbers'),
        ("prompts", [], r'"prompts" is \[\]: must be a list of at least one'),
        ("prompts", [3], r"prompts\[0\] is 3: must be an object"),
        ("prompts", [{"text": "a"}], r"prompts\[0\]\.prompt is missing: must be a text"),
        ("prompts", [{"prompt": "p"}], r"prompts\[0\]\.text is missing"),
        (
            "prompts",
            [{"prompt": "p", "text": "a", "tokens": ["1"]}],
            r"prompts\[0\]\.tokens is \['1'\]: must be a list of token ids or null",
        ),
        (
            "prompts",
            [{"prompt": "p", "text": "a", "first_logprob": "x"}],
            r"prompts\[0\]\.first_logprob is 'x': must be a number or null",
        ),
        ("model", "\ud800", r'"model" is .* must be a name'),
        (
            "prompts",
            [{"prompt": "\ud800", "text": "a"}],
            r"prompts\[0\]\.prompt is .* must be a text",
        ),
        ("prompts", [{"prompt": "p", "text": "a"}] * 2, r'"prompts" has a prompt twice'),
    ],
)
def test_an_error_names_the_key_its_value_and_the_right_form(
    key: str, value: Any, said: str
) -> None:
    with pytest.raises(CanaryError, match=said):
        from_json(json.dumps({**document(), key: value}))


@pytest.mark.parametrize("key", ["model", "mode", "max_tokens", "concurrencies", "prompts"])
def test_a_key_that_is_missing_is_named(key: str) -> None:
    given = document()
    del given[key]
    with pytest.raises(CanaryError, match=f'"{key}" is missing'):
        from_json(json.dumps(given))


def test_keys_of_later_releases_of_the_same_version_are_passed_over() -> None:
    assert from_json(json.dumps({**document(), "new": 1})) == golden(2)


def test_the_file_says_what_it_is(tmp_path: Path) -> None:
    write(golden(2), tmp_path / "golden.json")
    written = json.loads((tmp_path / "golden.json").read_text())
    assert (written["format"], written["version"]) == (FORMAT, 1)


def test_a_file_that_is_not_there_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(CanaryError, match=r"no golden answers at .*canary record"):
        read(tmp_path / "golden.json")


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "golden.json"
    write(golden(2), path)
    write(golden(3), path)
    assert read(path) == golden(3)
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_is_utf_8_whatever_the_locale(tmp_path: Path) -> None:
    path = tmp_path / "golden.json"
    given = {**document(), "source": "östlich"}
    path.write_text(json.dumps(given, ensure_ascii=False), encoding="utf-8")
    program = (
        "import sys; from pathlib import Path; from moriio_observed.canary.golden import read;"
        " print(ascii(read(Path(sys.argv[1])).source))"
    )
    assert in_ascii_locale(program, str(path)) == ascii("östlich")


@pytest.mark.parametrize("place", ["none/golden.json", ".", "a folder"])
@pytest.mark.parametrize("act", [check_place, partial(write, golden(2))])
def test_where_nothing_can_be_written_is_an_error(
    tmp_path: Path, act: Callable[[Path], None], place: str
) -> None:
    (tmp_path / "a folder").mkdir()
    with pytest.raises(CanaryError, match=r"--golden .* cannot be written"):
        act(tmp_path / place)
    assert [path.name for path in tmp_path.iterdir()] == ["a folder"]


def test_looking_whether_a_file_can_be_written_leaves_nothing(tmp_path: Path) -> None:
    check_place(tmp_path / "golden.json")
    assert list(tmp_path.iterdir()) == []
