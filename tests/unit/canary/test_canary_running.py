"""A canary that goes on: what it counts, when it is due, and golden answers that change."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from moriio_observed.canary.choices import Choice, check_fit
from moriio_observed.canary.errors import CanaryError
from moriio_observed.canary.golden import Golden, write
from moriio_observed.canary.http import Http
from moriio_observed.canary.metrics import CanaryMetrics, Mode, RoundResult
from moriio_observed.canary.rounds import Prober
from moriio_observed.canary.running import Canary
from moriio_observed.canary.schedule import LONGEST_FACTOR, Schedule
from tests.unit.canary.known import golden
from tests.unit.canary.model_server import MODEL, ModelServer, salad
from tests.unit.canary.test_canary_metrics import samples

SWEEP = (1, 4)
Value = Callable[..., float]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write(golden(), tmp_path / "golden.json")
    return tmp_path / "golden.json"


@pytest.fixture
def metrics() -> CanaryMetrics:
    return CanaryMetrics(MODEL, "t", SWEEP)


@pytest.fixture
def value(metrics: CanaryMetrics) -> Value:
    def of(name: str, **labels: str) -> float:
        key = frozenset({"model_name": MODEL, "target": "t", **labels}.items())
        return samples(metrics)[name, key]

    return of


@pytest.fixture
def canary(path: Path, http: Http, server: ModelServer, metrics: CanaryMetrics) -> Canary:
    def prober(fresh: Golden) -> Prober:
        check_fit(fresh, SWEEP, MODEL)
        target = Choice(url=server.url).target(http)
        return Prober(fresh, target, mode=Mode.EXACT, concurrencies=SWEEP)

    return Canary(path, prober, metrics)


def test_a_right_round_is_a_success(canary: Canary, value: Value) -> None:
    before = time.time()
    assert canary.round().round.result is RoundResult.RIGHT
    assert value("probes_total", concurrency="1", result="match") == 1
    assert value("probes_total", concurrency="4", result="match") == 4
    assert value("rounds_total", result="right") == 1
    assert value("probe_seconds_count", concurrency="4") == 4
    assert value("round_seconds_count") == 1
    assert value("first_token_logprob_difference_count", concurrency="4") == 4
    assert value("divergence_tokens_count", concurrency="4") == 0
    assert before <= value("last_success_timestamp_seconds") <= time.time()
    assert value("last_round_timestamp_seconds") == value("last_success_timestamp_seconds")


def test_a_wrong_round_is_a_round_and_no_success(
    canary: Canary, server: ModelServer, value: Value
) -> None:
    server.answer = salad
    canary.round()
    assert value("probes_total", concurrency="4", result="diverged") == 4
    assert value("divergence_tokens_bucket", concurrency="4", le="0.0") == 4
    assert value("rounds_total", result="wrong") == 1
    assert value("last_round_timestamp_seconds") > 0
    assert value("last_success_timestamp_seconds") == 0


def test_signs_are_counted_in_both_modes(canary: Canary, server: ModelServer, value: Value) -> None:
    server.answer = lambda _: [1] * 32
    canary.round()
    assert value("signs_total", sign="loop") == 5


def test_how_many_answers_are_known_is_shown_from_the_start(canary: Canary, value: Value) -> None:
    assert value("golden_prompts") == 16


def test_answers_recorded_anew_are_used_from_the_next_round_on(
    canary: Canary, path: Path, value: Value
) -> None:
    write(golden(20), path)
    canary.round()
    assert value("golden_prompts") == 20


def test_without_golden_answers_no_probe_is_sent_and_that_is_told(
    canary: Canary, path: Path, server: ModelServer, value: Value
) -> None:
    path.unlink()
    ended = canary.round()
    assert "no golden answers at" in str(ended.trouble)
    assert ended.round.result is RoundResult.ERROR
    assert server.asked == []
    assert value("golden_prompts") == 0
    assert value("rounds_total", result="error") == 1


def test_it_goes_on_once_they_are_back(canary: Canary, path: Path, value: Value) -> None:
    path.write_text("{")
    canary.round()
    write(golden(), path)
    assert canary.round().round.result is RoundResult.RIGHT
    assert value("golden_prompts") == 16


def test_answers_of_another_model_are_not_used(
    canary: Canary, path: Path, server: ModelServer, value: Value
) -> None:
    write(golden(model="other"), path)
    assert "golden answers are those of 'other'" in str(canary.round().trouble)
    assert server.asked == []
    assert value("golden_prompts") == 0


def test_it_does_not_begin_without_golden_answers(tmp_path: Path, metrics: CanaryMetrics) -> None:
    with pytest.raises(CanaryError, match="no golden answers at"):
        Canary(tmp_path / "none", lambda _: pytest.fail("nothing to probe with"), metrics)


@pytest.fixture
def schedule() -> Schedule:
    return Schedule(60, 0.2, Random(1))  # noqa: S311 - a repeatable test


def test_pauses_vary_about_the_interval(schedule: Schedule) -> None:
    pauses = [schedule.pause(answered=True) for _ in range(1000)]
    assert 48 <= min(pauses) < 50
    assert 70 < max(pauses) <= 72


def test_pauses_grow_while_nobody_answers_up_to_a_limit() -> None:
    schedule = Schedule(60, 0)
    pauses = [schedule.pause(answered=False) for _ in range(5)]
    assert pauses == [120, 240, 480, 480, 480]
    assert LONGEST_FACTOR * 60 == 480


def test_an_answer_brings_the_interval_back() -> None:
    schedule = Schedule(60, 0)
    schedule.pause(answered=False)
    assert schedule.pause(answered=True) == 60
