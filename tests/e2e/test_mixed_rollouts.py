"""One side at a time: ours on one engine only, and another vLLM on one of them.

What two versions of upstream must agree on is not ours to change: from 0.30 on the block ids of a
request travel by cache group, so neither side understands the other across 0.29 and 0.30.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from moriio_observed.demo.metrics import scrape
from moriio_observed.demo.pair import Pair
from moriio_observed.demo.phases import SLOW_READS
from moriio_observed.demo.server import (
    BARE,
    Role,
    Server,
    ServerSettings,
    transfer_config,
)
from moriio_observed.demo.workload import prompts
from moriio_observed.telemetry.catalog import PREFIX
from tests.e2e.test_pair import right, serve
from tests.trees import vllm_tree

GetPair = Callable[..., Pair]

ROOT = Path(__file__).parents[2]


SMALL_AND_PATIENT = ServerSettings(
    transfer_config("kv_producer", connector=BARE, defer_timeout=3600),
    flags=("--num-gpu-blocks-override=160",),
)
"""Upstream's prefill engine, with KV cache for 30 prompts and no deadline to free it by itself."""
BARE_DECODE = ServerSettings(
    transfer_config("kv_consumer", connector=BARE), env={"MORIIO_OBSERVED": "0"}
)


def on_0_30(role: Role) -> ServerSettings:
    return ServerSettings(
        transfer_config(role), env={"PYTHONPATH": str(ROOT)}, vllm_tree=vllm_tree("0.30.0")
    )


def on_installed(role: Role) -> ServerSettings:
    return ServerSettings(transfer_config(role))


def series_of_ours(server: Server) -> list[str]:
    return [name for name, _ in scrape(server.ports.url).samples if name.startswith(PREFIX)]


# In this order each pair shares a server with the one before where it can.


@pytest.fixture
def bare_prefill(pair: GetPair) -> Pair:
    return pair(on_installed("kv_consumer"), SMALL_AND_PATIENT)


@pytest.fixture
def bare_decode(pair: GetPair) -> Pair:
    return pair(BARE_DECODE, on_installed("kv_producer"))


def test_a_bare_prefill_engine_serves_an_observed_decode_engine(bare_prefill: Pair) -> None:
    before = scrape(bare_prefill.decode.ports.url)
    row = serve(bare_prefill, SLOW_READS, 51)
    change = scrape(bare_prefill.decode.ports.url).since(before)
    assert (row.right, row.exposed, row.unprotected_steps) == (16, 0, 0)
    assert change.total("moriio_barrier_wait_seconds_count") > 0
    # One more than was asked: the request that flushes the counters.
    assert change.total("moriio_requests_total") == 17


def test_a_bare_prefill_engine_is_released_by_an_observed_decode_engine(
    bare_prefill: Pair,
) -> None:
    # Together these need more blocks than it has: held ones would leave the last unanswered.
    for seed in (52, 53, 54):
        answers = bare_prefill.client.ask(prompts(seed), max_tokens=1)
        assert [answer.error for answer in answers] == [None] * 16


def test_without_the_variable_upstreams_configuration_stays_upstreams(bare_prefill: Pair) -> None:
    assert series_of_ours(bare_prefill.prefill) == []


def test_prefill_on_0_30_serves_decode_on_the_installed_vllm(pair: GetPair) -> None:
    running = pair(on_installed("kv_consumer"), on_0_30("kv_producer"))
    row = serve(running, SLOW_READS, 55)
    assert (row.right, row.exposed, row.unprotected_steps) == (16, 0, 0)


def test_prefill_on_the_installed_vllm_serves_decode_on_0_30(pair: GetPair) -> None:
    running = pair(on_0_30("kv_consumer"), on_installed("kv_producer"))
    row = serve(running, SLOW_READS, 56)
    assert (row.right, row.exposed, row.unprotected_steps) == (16, 0, 0)
    assert scrape(running.decode.ports.url).total("moriio_config_info", vllm_version="0.30.0") == 1


def test_an_observed_prefill_engine_serves_a_bare_decode_engine(bare_decode: Pair) -> None:
    asked = prompts(57)
    references = bare_decode.client.reference(asked)
    assert all(right(bare_decode.client.ask(asked), references))


def test_an_observed_prefill_engine_counts_the_releases_of_a_bare_decode_engine(
    bare_decode: Pair, released: Callable[[Pair, Sequence[str]], float]
) -> None:
    assert released(bare_decode, prompts(58)) >= 16


def test_with_the_variable_0_upstreams_configuration_stays_upstreams(bare_decode: Pair) -> None:
    assert series_of_ours(bare_decode.decode) == []
