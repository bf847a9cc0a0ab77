"""The canary on a real pair: quiet while all is well, loud within two rounds when it is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from moriio_observed.canary.golden import Golden, read
from moriio_observed.canary.http import Http
from moriio_observed.canary.metrics import Result, RoundResult
from moriio_observed.cli import main
from moriio_observed.demo.measure import Observation
from moriio_observed.demo.pair import Pair
from moriio_observed.demo.workload import prompts
from tests.canary.plays import HUNG_FOR_MOST
from tests.canary.routes import past_the_prefill_engine, stale
from tests.canary.stage import ALIKE, ROUND, WORDS, choice, prober, recorded
from tests.faults.rows import HUNG_LAYER, taking

GetPair = Callable[..., Pair]
Observe = Callable[[Pair], Observation]


@pytest.fixture(scope="module")
def http() -> Iterator[Http]:
    with Http(timeout_s=120) as http:
        yield http


@pytest.fixture(scope="module")
def golden(http: Http, pairs: Any) -> Golden:
    """Recorded once; every pair has the same model."""
    return recorded(http, pairs.get().client)


def test_a_healthy_pair_answers_as_the_single_engine_and_reads_for_every_probe(
    pair: GetPair, http: Http, golden: Golden, observe: Observe
) -> None:
    running = pair()
    probing = prober(http, running.client, golden)
    said = observe(running)
    rounds = [probing.round() for _ in range(2)]
    assert {done.result for done in rounds} == {RoundResult.RIGHT}
    change, exposed = said.settled(2 * ROUND)
    # The same prompts again and again: the decode engine's prefix cache answers none of them.
    assert change.total("moriio_requests_total") == 2 * ROUND
    assert exposed == []


@pytest.mark.parametrize("faults", [HUNG_FOR_MOST, taking(3.0)], ids=["hung layer", "all late"])
def test_salad_is_noticed_within_two_rounds_and_its_requests_are_named(
    pair: GetPair, http: Http, golden: Golden, observe: Observe, faults: Mapping[str, Any]
) -> None:
    running = pair()
    probing = prober(http, running.client, golden)
    said = observe(running)
    running.faults.set(faults)
    rounds = [probing.round() for _ in range(2)]
    running.faults.clear()
    # One more request brings the numbers of the last step.
    running.client.ask(prompts(77, 1), max_tokens=1)
    assert RoundResult.WRONG in {done.result for done in rounds}
    wrong = [
        probe.probe_id
        for done in rounds
        for probe in done.probes
        if probe.result in (Result.DIVERGED, Result.SWAPPED)
    ]
    _, exposed = said.settled(0)
    named = " ".join(event["request_id"] for event in exposed)
    assert [request for request in wrong if request not in named] == []


def test_a_layer_that_hangs_for_two_probes_is_counted_whether_or_not_their_answers_are_right(
    pair: GetPair, http: Http, golden: Golden, observe: Observe
) -> None:
    running = pair()
    probing = prober(http, running.client, golden)
    said = observe(running)
    running.faults.set(HUNG_LAYER)
    done = probing.round()
    running.faults.clear()
    # One more request brings the numbers of the last step.
    running.client.ask(prompts(78, 1), max_tokens=1)
    change, exposed = said.settled(0)
    assert change.total("moriio_exposed_requests_total") == 2
    named = {
        probe.probe_id
        for probe in done.probes
        if any(probe.probe_id in event["request_id"] for event in exposed)
    }
    assert len(named) == 2
    assert {probe.probe_id for probe in done.probes if probe.result is not Result.MATCH} <= named


def test_a_router_that_passes_the_prefill_engine_by_is_noticed_at_once(
    pair: GetPair, http: Http, golden: Golden
) -> None:
    client = pair().client
    done = prober(http, client, golden, past_the_prefill_engine(http, client)).round()
    assert {probe.result for probe in done.probes} <= {Result.DIVERGED, Result.SWAPPED}


def test_another_prompts_kv_is_swapped_where_no_counter_sees_anything(
    pair: GetPair, http: Http, observe: Observe
) -> None:
    running = pair()
    alike = recorded(http, running.client, ALIKE)
    said = observe(running)
    done = prober(http, running.client, alike, stale(http, running.client)).round()
    # The first probe has none before it. Of the others one or two are wrong in another way than by
    # the other's whole answer, also when they are asked one at a time.
    first, *others = [probe.result for probe in done.probes]
    assert first is Result.MATCH
    assert set(others) <= {Result.SWAPPED, Result.DIVERGED}
    assert others.count(Result.SWAPPED) > ROUND / 2
    change, exposed = said.settled(ROUND)
    assert change.total("moriio_reads_failed_total") == 0
    assert change.total("moriio_unlanded_reads_total") == 0
    assert change.total("moriio_stale_reads_total") == 0
    assert exposed == []


def test_recorded_and_run_as_a_user_does(
    pair: GetPair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    running = pair()
    chosen = choice(running.client)
    words = tmp_path / "words"
    words.write_text(" ".join(WORDS))
    where = [
        f"--prefill={chosen.prefill}",
        f"--decode={chosen.decode}",
        f"--prefill-address={chosen.prefill_address}",
        f"--decode-address={chosen.decode_address}",
        f"--golden={tmp_path / 'golden.json'}",
        "--concurrency=1,4",
    ]
    size = ["--model=tiny", f"--words={words}", "--prompts=8", "--repeats=1", "--max-tokens=8"]
    assert main(["canary", "record", *where, *size]) == 0
    assert read(tmp_path / "golden.json").source == choice(running.client).prefill.split("//")[1]
    assert main(["canary", "run", "--once", *where]) == 0
    assert "right: 5 match of 5 probes" in capsys.readouterr().out
    running.faults.set(taking(3.0))
    assert main(["canary", "run", "--once", *where]) == 1
