"""Two worker ranks of one engine: what becomes of a request, by what each says of its reads.

The engine's own worker is rank 0. Rank 1 is a second worker, whose reads the test lands; this
version's aggregation over the workers puts together what they say.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.config import CUDAGraphMode
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.forward_context import override_forward_context
from vllm.v1.outputs import KVConnectorOutput

from moriio_observed.connector import ObservedMoRIIOConnector
from moriio_observed.demo.faults import FaultFile
from moriio_observed.demo.ports import HOST
from moriio_observed.demo.server import Ports
from tests.contract.on_each.decode import Asked, Decode
from tests.unit import scripted
from tests.unit.fakes import FakeStatus

GetDecode = Callable[..., Decode]
GetPair = Callable[..., "Pair"]

PROMPT = list(range(10, 50))
BLOCKS = 3

both_guards = pytest.mark.parametrize("guard", ["recompute", "fail"])


class RankOne:
    """The other worker: ours over upstream's, without a device, a network or a peer."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, guard: str, deadline_s: int, remote: Ports
    ) -> None:
        def build(config: Any, role: KVConnectorRole, kv_cache: Any) -> Any:
            config.kv_transfer_config.kv_load_failure_policy = guard
            return ObservedMoRIIOConnector(config, role, kv_cache)

        with monkeypatch.context() as patch:
            self._worker = scripted.Decode(
                patch,
                {"guard": guard},
                connector=build,  # type: ignore[arg-type]
                transfer_timeout=deadline_s,
            )
        self._connector = self._worker.connector
        self._worker.worker._eager_handshaked_engines.add(f"{HOST}:{remote.handshake}")

    @property
    def reads(self) -> list[FakeStatus]:
        """Its reads, in the order of the layers."""
        posted: list[FakeStatus] = self._worker.worker.session.posted
        return posted

    def land(self) -> None:
        """All reads land that have not ended."""
        for read in self.reads:
            read.land()

    def step(self, scheduled: Any) -> KVConnectorOutput:
        """What it does in a step that runs no forward, or whose forward reads nothing."""
        connector = self._connector
        context: Any = SimpleNamespace(
            attn_metadata=None, cudagraph_runtime_mode=CUDAGraphMode.NONE
        )
        # From the scheduler's process to its own.
        metadata = pickle.loads(pickle.dumps(scheduled.kv_connector_metadata))  # noqa: S301
        with override_forward_context(context):
            connector.bind_connector_metadata(metadata)
            connector.start_load_kv(context)
            sent, received = connector.get_finished(scheduled.finished_req_ids)
            output = KVConnectorOutput(
                finished_sending=sent,
                finished_recving=received,
                invalid_block_ids=connector.get_block_ids_with_load_errors(),
                kv_connector_stats=connector.get_kv_connector_stats(),
                kv_connector_worker_meta=connector.build_connector_worker_meta(),
            )
            connector.clear_connector_metadata()
        return output


@dataclass
class Pair:
    """An engine of two ranks, with a guard."""

    decode: Decode
    rank_1: RankOne

    def ask(self) -> Asked:
        """Ask for what both ranks then read; what rank 0 reads has landed."""
        asked = self.decode.ask(PROMPT)
        self.decode.step()
        assert len(self.rank_1.reads) == len(scripted.LAYERS)
        while self.decode.blocks_read():
            self.decode.step()
        return asked


@pytest.fixture
def pair(decode: GetDecode, monkeypatch: pytest.MonkeyPatch) -> Iterator[GetPair]:
    """Make an engine of two ranks; whatever a test does, it serves nothing wrong, and forgets."""
    built: list[Pair] = []

    def make(guard: str, deadline_s: int = 30) -> Pair:
        d = decode(guard=guard)
        pair = Pair(d, RankOne(monkeypatch, guard, deadline_s, d.prefill.ports))
        d.engine.scheduler.connector._claims._ranks = 2
        aggregator = KVOutputAggregator(2)
        execute = d.engine._execute

        def execute_on_both(scheduled: Any, *how: Any) -> Any:
            outputs = [execute(scheduled, *how), pair.rank_1.step(scheduled)]
            ranks: list[Any] = [SimpleNamespace(kv_connector_output=output) for output in outputs]
            together: Any = aggregator.aggregate(ranks)
            return together.kv_connector_output

        monkeypatch.setattr(d.engine, "_execute", execute_on_both)
        built.append(pair)
        return pair

    yield make
    for each in built:
        assert each.decode.salad == set()
        each.rank_1.land()
        each.decode.flush_until(each.decode.settled)


def test_a_request_is_run_once_the_reads_of_every_rank_have_landed(
    pair: GetPair,
) -> None:
    p = pair("recompute")
    asked = p.ask()
    *others, last = p.rank_1.reads
    for read in others:
        read.land()
    p.decode.step()
    assert p.decode.answers[asked.request_id] == []
    last.land()
    p.decode.serve()
    assert p.decode.is_right(asked) == [True]
    assert p.decode.exposures == []


@both_guards
def test_a_read_fails_on_one_rank_when_those_of_the_other_have_landed(
    pair: GetPair, guard: str
) -> None:
    p = pair(guard)
    asked = p.ask()
    p.rank_1.reads[1].fail()
    p.rank_1.land()
    p.decode.serve()
    assert p.decode.is_right(asked) == [guard == "recompute"]
    assert p.decode.errors() == ([] if guard == "recompute" else [asked.request_id])
    assert p.decode.exposed("failed") == {asked.request_id}


@both_guards
def test_a_read_fails_on_one_rank_while_those_of_the_other_fly(
    pair: GetPair, faults: FaultFile, guard: str
) -> None:
    p = pair(guard)
    faults.set({"rules": [{"latency_s": 0.3}]})
    asked = p.decode.ask(PROMPT)
    p.decode.step()
    p.rank_1.reads[1].fail()
    p.rank_1.land()
    while not p.decode.exposures:
        p.decode.step()
    assert p.decode.blocks_read(), "rank 0 still reads"
    assert p.decode.blocks_in_use() == BLOCKS
    p.decode.serve()
    assert p.decode.is_right(asked) == [guard == "recompute"]
    assert p.decode.errors() == ([] if guard == "recompute" else [asked.request_id])


@both_guards
def test_a_read_of_one_rank_is_in_flight_at_the_deadline(pair: GetPair, guard: str) -> None:
    p = pair(guard, deadline_s=1)
    asked = p.ask()
    p.decode.serve()
    assert p.decode.is_right(asked) == [guard == "recompute"]
    assert p.decode.exposed("timeout") == {asked.request_id}
    assert p.decode.gauge("quarantined_blocks") == BLOCKS, "rank 1 may still write into them"
    p.rank_1.land()
    p.decode.flush_until(p.decode.settled)


@both_guards
def test_blocks_of_a_client_that_left_are_held_until_every_rank_has_read(
    pair: GetPair, guard: str
) -> None:
    p = pair(guard)
    asked = p.ask()
    p.decode.engine.abort(asked.request_id)
    p.decode.flush()
    assert p.decode.gauge("quarantined_blocks") == BLOCKS
    p.rank_1.land()
    p.decode.flush_until(p.decode.settled)
