"""What a server returns, read as an answer; and two answers held against each other."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moriio_observed.canary.answers import Answer, common, from_completion, same
from moriio_observed.canary.errors import NoAnswerError

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["choices", "text", "token_ids", "finish_reason", "logprobs"]), inner
        )
    ),
)


def completion(**choice: Any) -> dict[str, Any]:
    return {"choices": [{"text": "a b", **choice}]}


def test_text_token_ids_and_the_first_logprob_are_read() -> None:
    given = completion(token_ids=[1, 2], logprobs={"token_logprobs": [-0.25, -1.0]})
    assert from_completion(given) == Answer("a b", (1, 2), -0.25)


def test_a_router_may_write_a_logprob_as_a_whole_number() -> None:
    given = completion(logprobs={"token_logprobs": [0]})
    assert from_completion(given) == Answer("a b", first_logprob=0.0)


def test_a_server_need_not_return_more_than_the_text() -> None:
    assert from_completion(completion()) == Answer("a b")


@pytest.mark.parametrize(
    "choice",
    [
        {"token_ids": "12"},
        {"token_ids": [1, None]},
        {"token_ids": [True]},
        {"logprobs": []},
        {"logprobs": {"token_logprobs": [None]}},
        {"logprobs": {"token_logprobs": [float("nan")]}},
        {"logprobs": {"token_logprobs": [10**400]}},
        {"logprobs": {"token_logprobs": [True]}},
    ],
)
def test_what_is_no_token_id_and_no_logprob_is_left_out(choice: dict[str, Any]) -> None:
    assert from_completion(completion(**choice)) == Answer("a b")


@pytest.mark.parametrize("given", [{}, {"choices": []}, {"choices": [None]}, completion(text=1)])
def test_without_a_text_there_is_no_answer(given: dict[str, Any]) -> None:
    with pytest.raises(NoAnswerError, match=r"no choices\[0\]\.text"):
        from_completion(given)


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_an_answer_that_the_engine_gave_up_is_none(reason: str) -> None:
    with pytest.raises(NoAnswerError, match=f"cut short: finish_reason {reason}"):
        from_completion(completion(finish_reason=reason))


@given(json_values)
def test_whatever_comes_is_an_answer_or_none(value: Any) -> None:
    try:
        found = from_completion({"choices": value})
    except NoAnswerError:
        return
    assert isinstance(found, Answer)


def test_answers_are_the_same_by_their_token_ids() -> None:
    assert same(Answer("a", (1,)), Answer("b", (1,)))
    assert not same(Answer("a", (1,)), Answer("a", (2,)))


def test_where_one_has_no_token_ids_the_text_decides() -> None:
    assert same(Answer("a", (1,)), Answer("a"))
    assert not same(Answer("a", (1,)), Answer("a "))


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (Answer("", (1, 2, 3)), Answer("", (1, 2, 4)), 2),
        (Answer("", (1, 2)), Answer("", (1, 2, 4)), 2),
        (Answer("", (9,)), Answer("", (1,)), 0),
        (Answer("a b c"), Answer("a b d"), 2),
        (Answer("a b", (1, 2)), Answer("a b"), 2),
        (Answer(""), Answer("a"), 0),
    ],
)
def test_how_far_two_answers_go_together(one: Answer, other: Answer, expected: int) -> None:
    assert common(one, other) == common(other, one) == expected
