"""A real pair on vLLM 0.30.0, whose barrier is the seed's own, over the installed environment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moriio_observed.demo.measure import Observation
from moriio_observed.demo.metrics import scrape
from moriio_observed.demo.pair import Pair
from moriio_observed.demo.phases import HUNG_READ, SLOW_READS
from moriio_observed.demo.server import ServerSettings, transfer_config
from moriio_observed.demo.workload import prompts
from tests.e2e.test_pair import ONE_FAILS, serve
from tests.trees import vllm_tree

ROOT = Path(__file__).parents[2]
FULL_GRAPHS = ("FullGraphConnector", "tests.e2e.full_graph")


@pytest.fixture
def decode(pair: Callable[..., Pair]) -> Callable[..., Pair]:
    tree = vllm_tree("0.30.0")

    def get(**settings: Any) -> Pair:
        return pair(
            ServerSettings(
                transfer_config("kv_consumer", **settings),
                env={"PYTHONPATH": str(ROOT)},
                vllm_tree=tree,
            )
        )

    return get


def test_the_pair_runs_the_version_it_says(decode: Callable[..., Pair]) -> None:
    have = scrape(decode().decode.ports.url)
    assert have.total("moriio_config_info", vllm_version="0.30.0") == 1


def test_healthy_and_slow_reads_answer_like_a_single_engine(decode: Callable[..., Pair]) -> None:
    healthy = serve(decode(), {}, 41)
    slow = serve(decode(), SLOW_READS, 42)
    assert (healthy.right, healthy.exposed, healthy.unprotected_steps) == (16, 0, 0)
    assert (slow.right, slow.exposed, slow.unprotected_steps) == (16, 0, 0)


def test_a_hung_read_is_told_and_given_up_at_the_limit_of_the_environment(
    decode: Callable[..., Pair],
) -> None:
    running = decode()
    before = scrape(running.decode.ports.url)
    row = serve(running, HUNG_READ, 43)
    change = scrape(running.decode.ports.url).since(before)
    assert row.exposed == 1
    assert row.wrong_not_exposed == 0
    assert change.total("moriio_reads_aborted_total") == 1
    assert scrape(running.decode.ports.url).total("moriio_recv_abort_timeout_seconds") == 6


def test_failed_reads_give_wrong_answers_that_upstream_reports_to_nobody_but_we_do(
    decode: Callable[..., Pair],
) -> None:
    row = serve(decode(), ONE_FAILS, 44)
    assert row.exposed == 2
    assert row.wrong_not_exposed == 0


def test_a_full_graph_with_slow_reads_is_unprotected_under_upstreams_own_barrier(
    decode: Callable[..., Pair],
) -> None:
    running = decode(connector=FULL_GRAPHS, observed={"barrier": "upstream"})
    observation = Observation(running.decode)
    running.faults.set(SLOW_READS)
    running.client.ask(prompts(45))
    change, events = observation.settled(16)
    assert change.total("moriio_unprotected_steps_total", cause="full_graph") > 0
    assert change.total("moriio_full_graph_skips_total", protected="false") > 0
    assert {event["cause"] for event in events} == {"full_graph"}


def test_a_full_graph_with_slow_reads_is_protected_under_auto(
    decode: Callable[..., Pair],
) -> None:
    running = decode(connector=FULL_GRAPHS)
    row = serve(running, SLOW_READS, 46)
    have = scrape(running.decode.ports.url)
    assert (row.right, row.exposed, row.unprotected_steps) == (16, 0, 0)
    assert have.total("moriio_unprotected_steps_total", cause="full_graph") == 0
    assert have.total("moriio_full_graph_skips_total", protected="true") > 0
