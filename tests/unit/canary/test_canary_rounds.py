"""One round against a real server: what is right, what is wrong in each way, what is no verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from moriio_observed.canary.choices import Choice
from moriio_observed.canary.http import Http
from moriio_observed.canary.metrics import Mode, Result, RoundResult, Sign
from moriio_observed.canary.probes import Probe
from moriio_observed.canary.rounds import Deck, Prober, Round
from moriio_observed.canary.targets import ID_PREFIX
from tests.unit.canary.known import golden
from tests.unit.canary.model_server import ModelServer, Stale, late, salad, serving

SWEEP = (1, 4, 8)
CHANCE = Random(1)  # noqa: S311 - a repeatable test
MakeProber = Callable[..., Prober]


@pytest.fixture
def prober(http: Http, server: ModelServer) -> MakeProber:
    def make(mode: Mode = Mode.EXACT, **different: Any) -> Prober:
        usual: dict[str, Any] = {"concurrencies": SWEEP, "draw": CHANCE}
        return Prober(
            golden(), Choice(url=server.url).target(http), mode=mode, **(usual | different)
        )

    return make


def results(done: Round) -> Counter[Result]:
    return Counter(probe.result for probe in done.probes)


def test_every_answer_of_a_healthy_server_matches(prober: MakeProber) -> None:
    done = prober().round()
    assert done.result is RoundResult.RIGHT
    assert results(done) == {Result.MATCH: 13}
    assert all(probe.divergence is None for probe in done.probes)
    assert all(probe.logprob_difference == 0 for probe in done.probes)


def test_the_sweep_really_sends_so_many_at_once(prober: MakeProber, server: ModelServer) -> None:
    server.answer = server.wait_for_company(8)
    done = prober(concurrencies=(8,)).round()
    assert done.result is RoundResult.RIGHT
    assert {probe.concurrency for probe in done.probes} == {8}


def test_prompts_sent_at_once_differ(prober: MakeProber, server: ModelServer) -> None:
    prober(concurrencies=(8,)).round()
    assert len({body["prompt"] for body in server.asked}) == 8


@pytest.mark.parametrize("mode", Mode)
def test_stale_but_valid_kv_is_seen_at_once(
    prober: MakeProber, server: ModelServer, mode: Mode
) -> None:
    """The previous prompt's answer: fluent, sure of itself, and no counter knows."""
    server.answer = Stale()
    probing = prober(mode, concurrencies=(1, 1, 1))
    probing.round()
    assert results(probing.round()) == {Result.SWAPPED: 3}


def test_an_answer_with_other_tokens_has_diverged(prober: MakeProber, server: ModelServer) -> None:
    server.answer = salad
    done = prober().round()
    assert done.result is RoundResult.WRONG
    assert results(done) == {Result.DIVERGED: 13}
    assert {probe.divergence for probe in done.probes} == {0}


def test_where_an_answer_diverges_is_told(prober: MakeProber, server: ModelServer) -> None:
    server.answer = late
    assert {probe.divergence for probe in prober().round().probes} == {10}


def test_where_answers_vary_other_tokens_are_sound(prober: MakeProber, server: ModelServer) -> None:
    server.answer = late
    done = prober(Mode.DEGENERATION).round()
    assert (done.result, results(done)) == (RoundResult.RIGHT, {Result.SOUND: 13})
    assert {probe.divergence for probe in done.probes} == {10}


def test_where_answers_vary_a_loop_is_degenerate(prober: MakeProber, server: ModelServer) -> None:
    server.answer = lambda _: [1, 2] * 16
    done = prober(Mode.DEGENERATION).round()
    assert (done.result, results(done)) == (RoundResult.WRONG, {Result.DEGENERATE: 13})
    assert all(Sign.LOOP in probe.signs for probe in done.probes)


def test_without_token_ids_words_are_compared(prober: MakeProber, server: ModelServer) -> None:
    server.token_ids = False
    assert prober().round().result is RoundResult.RIGHT
    server.answer = late
    assert {probe.divergence for probe in prober().round().probes} == {10}


def test_a_shifted_first_logprob_is_measured(prober: MakeProber, server: ModelServer) -> None:
    server.logprob = -0.75
    done = prober().round()
    assert done.result is RoundResult.RIGHT
    assert {probe.logprob_difference for probe in done.probes} == {0.25}


def test_a_server_that_fails_gives_no_verdict(prober: MakeProber, server: ModelServer) -> None:
    server.status = 500
    done = prober().round()
    assert (done.result, done.answered) == (RoundResult.ERROR, False)
    assert results(done) == {Result.ERROR: 13}
    assert all("HTTP 500" in str(probe.error) for probe in done.probes)


def test_a_busy_engine_is_not_asked(prober: MakeProber, server: ModelServer) -> None:
    done = prober(is_busy=lambda: True).round()
    assert (done.result, done.answered) == (RoundResult.BUSY, False)
    assert results(done) == {Result.BUSY: 13}
    assert server.asked == []


def test_once_a_probe_is_refused_no_more_are_sent(prober: MakeProber, server: ModelServer) -> None:
    server.status, server.patience = 429, 1
    done = prober(concurrencies=(1, 8, 16)).round()
    assert done.result is RoundResult.BUSY
    assert {probe.result for probe in done.probes if probe.concurrency == 1} == {Result.MATCH}
    assert {probe.result for probe in done.probes if probe.concurrency == 16} == {Result.BUSY}
    assert len(server.asked) == 1 + 8


def test_wrong_answers_count_though_others_fail(prober: MakeProber, server: ModelServer) -> None:
    server.answer, server.status, server.patience = salad, 503, 1
    assert prober(concurrencies=(1, 8)).round().result is RoundResult.WRONG


def test_what_the_reference_answers_as_well_is_an_old_record(
    http: Http, prober: MakeProber, server: ModelServer
) -> None:
    server.answer = salad
    alone = Choice(url=server.url).target(http)
    done = prober(reference=alone).round()
    assert (done.result, results(done)) == (RoundResult.OUTDATED, {Result.OUTDATED: 13})


def test_what_the_reference_answers_otherwise_is_wrong(
    http: Http, prober: MakeProber, server: ModelServer
) -> None:
    server.answer = salad
    with serving() as well:
        done = prober(reference=Choice(url=well.url).target(http)).round()
    assert results(done) == {Result.DIVERGED: 13}


def test_a_reference_that_does_not_answer_excuses_nothing(
    http: Http, prober: MakeProber, server: ModelServer
) -> None:
    server.answer = salad
    with serving(status=500) as ill:
        done = prober(reference=Choice(url=ill.url).target(http)).round()
    assert results(done) == {Result.DIVERGED: 13}


def test_the_reference_is_left_alone_while_all_is_well(http: Http, prober: MakeProber) -> None:
    with serving() as well:
        prober(reference=Choice(url=well.url).target(http)).round()
    assert well.asked == []


def test_a_probe_names_the_request_as_the_servers_know_it(
    prober: MakeProber, server: ModelServer
) -> None:
    done = prober().round()
    assert {ID_PREFIX + probe.probe_id for probe in done.probes} == set(server.ids)


def test_nothing_is_sent_but_the_recorded_prompts(prober: MakeProber, server: ModelServer) -> None:
    prober().round()
    assert {body["prompt"] for body in server.asked} <= {one.prompt for one in golden().known}


@pytest.mark.parametrize(
    ("found", "result"),
    [
        ([Result.MATCH, Result.SOUND], RoundResult.RIGHT),
        ([Result.MATCH, Result.BUSY], RoundResult.BUSY),
        ([Result.BUSY, Result.ERROR], RoundResult.ERROR),
        ([Result.ERROR, Result.OUTDATED], RoundResult.OUTDATED),
        ([Result.OUTDATED, Result.SWAPPED], RoundResult.WRONG),
        ([Result.MATCH, Result.DEGENERATE], RoundResult.WRONG),
        ([], RoundResult.ERROR),
    ],
)
def test_a_round_is_what_its_worst_probe_is(found: list[Result], result: RoundResult) -> None:
    assert Round(tuple(Probe(0, 1, one) for one in found)).result is result


def test_every_prompt_has_its_turn() -> None:
    deck = Deck(10, CHANCE)
    assert {prompt for _ in range(5) for prompt in deck.deal(2)} == set(range(10))


def test_neighbours_are_never_the_same_prompts() -> None:
    deck = Deck(32, CHANCE)
    before: set[int] = set()
    for count in (1, 4, 16) * 20:
        dealt = set(deck.deal(count))
        assert len(dealt) == count
        assert not dealt & before
        before = dealt
