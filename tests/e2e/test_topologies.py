"""Deployments of several processes: API servers, TP ranks and DP engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.mmap_dict import MmapedDict

from moriio_observed.demo.exposures import judge
from moriio_observed.demo.faults import FaultFile
from moriio_observed.demo.measure import Observation
from moriio_observed.demo.metrics import Scrape, scrape
from moriio_observed.demo.model import LAYERS
from moriio_observed.demo.pair import Pair
from moriio_observed.demo.phases import HUNG_READ, SLOW_READS
from moriio_observed.demo.server import ServerSettings, transfer_config
from moriio_observed.demo.workload import prompts
from tests.e2e.test_pair import right

RANKS = ENGINES = ("0", "1")
RANK_FAULTS = ("RankFaultsConnector", "tests.e2e.rank_faults")
TP = {
    "flags": ("--tensor-parallel-size=2",),
    "workers": 2,
    # With several ranks vLLM compiles the vocabulary's mask: a minute of g++ on two cores.
    "env": {"TORCHDYNAMO_DISABLE": "1"},
}

MIXTURE_OF_EXPERTS = '--hf-overrides={"num_local_experts": 2}'
"""Only the engines of such a model learn their DP rank from vLLM, and upstream's connector gives
those of any other the same ports. No layer looks at it: vLLM's experts for CPU know no DP."""

ABORTED = "moriio_reads_aborted_total"

HarmRank = Callable[[str, Mapping[str, Any]], None]


# Two TP ranks on both sides and two API servers in front of decode: one pair has it all.


@pytest.fixture(scope="module")
def api_server_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where each of decode's API servers keeps what it has counted."""
    return tmp_path_factory.mktemp("api-servers")


@pytest.fixture(scope="module")
def fault_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where each of decode's ranks has its fault file."""
    return tmp_path_factory.mktemp("faults")


@pytest.fixture
def running(pair: Callable[..., Pair], api_server_files: Path, fault_files: Path) -> Pair:
    prefill = ServerSettings(transfer_config("kv_producer"), **TP)
    decode = ServerSettings(
        transfer_config("kv_consumer", connector=RANK_FAULTS),
        env={
            **TP["env"],
            "PROMETHEUS_MULTIPROC_DIR": str(api_server_files),
            "MORIIO_OBSERVED_LOOPBACK_FAULTS": str(fault_files / "{}.json"),
        },
        flags=(*TP["flags"], "--api-server-count=2"),
        module="tests.e2e.vllm_serve",
        workers=2,
    )
    return pair(decode, prefill)


@pytest.fixture
def harm(fault_files: Path) -> Iterator[HarmRank]:
    """Harm the reads of one of decode's ranks: `harm(rank, faults)`; none are harmed after."""
    files = {rank: FaultFile(fault_files / f"{rank}.json") for rank in RANKS}
    yield lambda rank, faults: files[rank].set(faults)
    for file in files.values():
        file.clear()


def counted_by_each(files: Path) -> list[float]:
    """How many requests each API server has counted so far."""
    return [
        sum(
            value
            for key, value, *_ in MmapedDict.read_all_values_from_file(str(file))
            if "moriio_requests_total" in key
        )
        for file in files.glob("counter_*.db")
    ]


def by_rank(have: Scrape, name: str) -> list[float]:
    return [have.total(name, tp_rank=rank) for rank in RANKS]


def samples(have: Scrape, name: str) -> int:
    return sum(sample == name for sample, _ in have.samples)


def test_both_ranks_wait_for_slow_reads_and_answer_like_a_single_engine(
    running: Pair, harm: HarmRank
) -> None:
    observation = Observation(running.decode)
    asked = prompts(71)
    references = running.client.reference(asked)
    for rank in RANKS:
        harm(rank, SLOW_READS)
    answers = running.client.ask(asked)
    change, events = observation.settled(16 * len(RANKS))
    assert all(right(answers, references))
    assert events == []
    assert change.total("moriio_unprotected_steps_total") == 0
    assert min(by_rank(change, "moriio_barrier_wait_seconds_count")) > 0
    assert change.total("moriio_reads_landed_total") == 16 * LAYERS * len(RANKS)


def test_a_page_has_every_request_once_per_rank_whichever_api_server_heard_of_it(
    running: Pair, api_server_files: Path
) -> None:
    observation = Observation(running.decode)
    before = sum(counted_by_each(api_server_files))
    for asked in count(1):
        running.client.ask(prompts(7200 + asked, 1), max_tokens=2)
        change, _ = observation.settled(asked * len(RANKS))
        counted = counted_by_each(api_server_files)
        assert change.total("moriio_requests_total") == asked * len(RANKS)
        assert sum(counted) - before == asked * len(RANKS)
        if (min(counted) > 0 and len(counted) == 2) or asked == 32:
            break
    assert len(counted) == 2
    assert min(counted) > 0


def test_gauges_of_several_api_servers_are_not_added_up(running: Pair) -> None:
    have = scrape(running.decode.ports.url)
    assert samples(have, "moriio_config_info") == 1
    assert have.total("moriio_config_info") == 1
    assert have.total("moriio_transfer_timeout_seconds") == 2
    assert have.total("moriio_hook_installed", hook="read_blocks") == 1
    assert samples(have, "moriio_reads_in_flight") == len(RANKS)


def test_a_hung_read_on_one_rank_is_told_by_that_rank_alone(running: Pair, harm: HarmRank) -> None:
    observation = Observation(running.decode)
    asked = prompts(73)
    references = running.client.reference(asked)
    harm("1", HUNG_READ)
    oldest = [0.0, 0.0]
    with ThreadPoolExecutor(1) as thread:
        asking = thread.submit(running.client.ask, asked)
        # Told of from the end of the step that gave the read up until its abort.
        aborted = before = scrape(running.decode.ports.url).total(ABORTED)
        while aborted == before:
            have = scrape(running.decode.ports.url)
            ages = by_rank(have, "moriio_oldest_read_age_seconds")
            oldest = list(map(max, oldest, ages))
            aborted = have.total(ABORTED)
            wait([asking], timeout=0.2)
    change, events = observation.settled(16 * len(RANKS))
    [event] = events
    assert (event["cause"], event["layers"]) == ("timeout", [3])
    assert judge(asking.result(), references, [event["request_id"]]).wrong_not_exposed == ()
    assert change.total("moriio_exposed_requests_total") == 1
    assert change.total(ABORTED) == 1
    assert oldest[1] > 0


def test_every_rank_releases_its_own_blocks_of_the_prefill_engine(
    running: Pair, released: Callable[[Pair, Sequence[str]], float]
) -> None:
    assert released(running, prompts(74, 2)) >= 2 * len(RANKS)


# DP engines.


@pytest.fixture
def dp_engines(pair: Callable[..., Pair]) -> Pair:
    return pair(
        ServerSettings(
            transfer_config("kv_consumer"),
            flags=("--data-parallel-size=2", MIXTURE_OF_EXPERTS),
            workers=2,
        )
    )


def by_engine(have: Scrape, name: str) -> list[float]:
    return [have.total(name, engine=engine) for engine in ENGINES]


def test_dp_engines_wait_for_slow_reads_and_count_each_their_own(dp_engines: Pair) -> None:
    observation = Observation(dp_engines.decode)
    asked = prompts(77)
    references = dp_engines.client.reference(asked)
    dp_engines.faults.set(SLOW_READS)
    answers = dp_engines.client.ask(asked)
    change, events = observation.settled(16)
    requests = by_engine(change, "moriio_requests_total")
    assert all(right(answers, references))
    assert events == []
    assert min(requests) > 0
    assert by_engine(change, "moriio_reads_landed_total") == [n * LAYERS for n in requests]
    assert sum(requests) == 16


def test_dp_engines_tell_each_of_their_own_hung_read(dp_engines: Pair) -> None:
    observation = Observation(dp_engines.decode)
    asked = prompts(78)
    references = dp_engines.client.reference(asked)
    dp_engines.faults.set(HUNG_READ)
    answers = dp_engines.client.ask(asked)
    change, events = observation.settled(16)
    assert by_engine(change, "moriio_exposed_requests_total") == [1, 1]
    exposed = [event["request_id"] for event in events]
    assert judge(answers, references, exposed).wrong_not_exposed == ()
