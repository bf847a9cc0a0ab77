"""Golden answers are kept only where they are the same each time and can be told apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import combinations, count
from typing import Any

import pytest

from moriio_observed.canary.answers import common
from moriio_observed.canary.choices import Choice
from moriio_observed.canary.errors import CanaryError
from moriio_observed.canary.golden import Golden
from moriio_observed.canary.http import Http
from moriio_observed.canary.metrics import Mode
from moriio_observed.canary.prompts import make
from moriio_observed.canary.recording import LONGEST_COMMON, Recording, record
from tests.unit.canary.known import answer
from tests.unit.canary.model_server import MODEL, ModelServer, Tokens, right, salad, serving

PROMPTS = make(1, 16, 30)
Record = Callable[..., Golden]


@pytest.fixture
def recorded(http: Http, server: ModelServer) -> Record:
    def make_it(reference: ModelServer | None = None, **different: Any) -> Golden:
        usual: dict[str, Any] = {
            "model": MODEL,
            "max_tokens": 32,
            "concurrencies": (1, 4),
            "repeats": 2,
            "keep": 8,
            "mode": Mode.EXACT,
        }
        alone = reference and Choice(url=reference.url).target(http)
        target = Choice(url=server.url).target(http)
        return record(Recording(**(usual | different)), target, PROMPTS, alone)

    return make_it


def varying(share: int) -> Callable[[str], Tokens]:
    """Of so many prompts one is never answered the same way twice."""
    turn = count()

    def give(prompt: str) -> Tokens:
        varies = PROMPTS.index(prompt) % share == 0
        return right(f"{prompt} {next(turn)}") if varies else right(prompt)

    return give


def test_a_deterministic_server_gives_as_many_as_are_wanted(recorded: Record) -> None:
    golden = recorded()
    assert [one.prompt for one in golden.known] == PROMPTS[:8]
    assert golden.known[0].answer == answer(right(PROMPTS[0]), first_logprob=-0.5)
    assert (golden.model, golden.mode, golden.concurrencies) == (MODEL, Mode.EXACT, (1, 4))
    assert golden.asked == 16


def test_each_prompt_is_asked_at_every_concurrency_and_again(
    recorded: Record, server: ModelServer
) -> None:
    recorded()
    assert Counter(body["prompt"] for body in server.asked) == dict.fromkeys(PROMPTS, 2 * 2)


def test_prompts_with_varying_answers_are_left_out(recorded: Record, server: ModelServer) -> None:
    server.answer = varying(share=3)
    kept = [PROMPTS.index(one.prompt) for one in recorded().known]
    assert len(kept) == 8
    assert all(number % 3 for number in kept)


def test_too_few_answers_that_stay_the_same_are_an_error(
    recorded: Record, server: ModelServer
) -> None:
    server.answer = varying(share=1)
    with pytest.raises(CanaryError, match=r"only 0 of 16 .* the same each time, and 8 are needed"):
        recorded()


def test_varying_answers_can_be_recorded_for_signs_of_degeneration(
    recorded: Record, server: ModelServer
) -> None:
    server.answer = varying(share=1)
    golden = recorded(mode=Mode.DEGENERATION)
    assert (golden.mode, len(golden.known)) == (Mode.DEGENERATION, 8)


def test_garbage_is_not_recorded_where_a_reference_answers_otherwise(
    recorded: Record, server: ModelServer
) -> None:
    server.answer = salad
    with serving() as well, pytest.raises(CanaryError, match="wrong answers are served now"):
        recorded(well)


def test_the_reference_is_the_source_where_there_is_one(
    recorded: Record, server: ModelServer
) -> None:
    with serving() as alone:
        golden = recorded(alone)
        assert golden.source == alone.url.removeprefix("http://")
    assert golden.source != server.url.removeprefix("http://")


def test_answers_that_could_be_taken_for_each_other_are_not_both_kept(
    recorded: Record, server: ModelServer
) -> None:
    server.answer = lambda prompt: (
        [1, 2, 3, 4, 5, *right(prompt)[5:]] if PROMPTS.index(prompt) % 2 else right(prompt)
    )
    golden = recorded()
    assert len(golden.known) == 8
    for one, other in combinations(golden.known, 2):
        assert common(one.answer, other.answer) <= LONGEST_COMMON


def test_a_model_that_answers_all_alike_is_an_error(recorded: Record, server: ModelServer) -> None:
    server.answer = lambda _: [1] * 32
    with pytest.raises(CanaryError, match=r"only 1 of 16 .* an answer of their own.*--words"):
        recorded()


def test_a_server_that_does_not_answer_is_an_error(recorded: Record, server: ModelServer) -> None:
    server.status = 500
    with pytest.raises(CanaryError, match=r"nothing was recorded: .*HTTP 500"):
        recorded()


def test_a_model_that_is_not_served_is_an_error(recorded: Record) -> None:
    with pytest.raises(CanaryError, match="does not serve the model 'other'"):
        recorded(model="other")
