"""What the scripted steps do not need some hook for: small promises, one for each."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from moriio_observed import upstream
from moriio_observed.demo.faults import FaultFile
from moriio_observed.demo.ports import HOST
from moriio_observed.demo.server import Ports, transfer_config, with_ports
from moriio_observed.telemetry.vllm_stats import payload_of
from tests.contract.on_each.decode import Decode
from tests.contract.on_each.engine import LAYERS, Engine, take_ports
from tests.contract.on_each.expected import RECOVERS

GetDecode = Callable[..., Decode]

SLOW = {"rules": [{"latency_s": 0.2}]}
PROMPT = list(range(10, 50))
DEFER_S = 0.5
LONGEST_S = 5.0


def test_layer_waits_in_every_layer(decode: GetDecode, faults: FaultFile) -> None:
    d = decode(barrier="layer")
    faults.set(SLOW)
    asked = d.ask(PROMPT)
    d.serve()
    assert d.is_right(asked) == [True]
    assert (d.waits("layer"), d.waits("step")) == (len(LAYERS), 0)


def test_a_layer_without_a_hook_is_waited_for_before_the_forward(
    decode: GetDecode, faults: FaultFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The last one is a draft model's, whose forward comes later.
    monkeypatch.setattr(upstream, "layer_count", lambda _: len(LAYERS) - 1)
    d = decode(barrier="layer")
    faults.set(SLOW)
    d.ask(PROMPT)
    d.serve()
    assert d.waits("step") == 1


def test_a_step_without_a_forward_is_not_counted(decode: GetDecode) -> None:
    d = decode()
    d.ask(PROMPT)
    steps = [*d.serve(), d.flush()]
    forwards = [step for step in steps if step.tokens]
    assert d.total("steps_total") == len(forwards) < len(steps)


def broken(*_: Any) -> None:
    raise KeyError("a bug")


def test_requests_that_are_gone_are_known_without_the_scheduler_side(
    decode: GetDecode, faults: FaultFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream, "attach_notes", broken)
    d = decode(barrier="off")
    faults.set(SLOW)
    gone = d.ask(PROMPT, max_tokens=30)
    d.step()
    d.engine.abort(gone.request_id)
    d.flush_until(lambda: d.total("reads_landed_total") == len(LAYERS))
    assert d.total("late_landings_total") == len(LAYERS)


@pytest.mark.skipif(not RECOVERS, reason="up to 0.30 no load errors are reported")
def test_blocks_that_were_not_loaded_are_counted(decode: GetDecode, faults: FaultFile) -> None:
    d = decode()
    faults.set({"rules": [{"layers": [0], "fail": True}]})
    d.ask(PROMPT)
    invalid = [len(step.invalid) for step in d.serve()]
    assert sum(invalid) > 0
    assert d.total("load_error_blocks_total") == sum(invalid)


def test_hooks_are_taken_away_at_the_end(decode: GetDecode) -> None:
    d = decode()
    worker = d.engine.connector.connector_worker
    assert hasattr(worker, "_moriio_observed")
    d.engine.connector.shutdown()
    assert not hasattr(worker, "_moriio_observed")
    assert not hasattr(worker.moriio_wrapper, "_moriio_observed")


@dataclass
class Alone:
    """A prefill engine whose decode engine is this test."""

    engine: Engine
    ports: Ports

    def hold(self) -> str:
        """Compute a prompt and hold its KV; the answer is the transfer's id."""
        transfer_id = f"tx-{uuid.uuid4().hex}"
        address = self.ports.zmq_address
        request_id = f"___prefill_addr_{address}___decode_addr_{address}_{uuid.uuid4().hex}"
        params = {
            "do_remote_decode": True,
            "do_remote_prefill": False,
            "remote_engine_id": None,
            "remote_block_ids": None,
            "transfer_id": transfer_id,
        }
        self.engine.add(request_id, PROMPT, max_tokens=1, params=params)
        while request_id not in self.engine.step().finished:
            pass
        return transfer_id

    def comes_to_count(self, name: str) -> float:
        """A counter as it leaves the engine with one of its next forwards, once it has moved."""
        deadline = time.monotonic() + LONGEST_S
        while time.monotonic() < deadline:
            self.engine.add(f"plain-{uuid.uuid4().hex}", PROMPT, max_tokens=1)
            for side in (self.engine.connector, self.engine.scheduler.connector):
                side._look_at = side._flush_at = float("-inf")
            stats = self.engine.step().stats
            counted = 0 if stats is None else payload_of(stats)["counters"].get(name, 0)
            if counted:
                return counted
        return 0


@pytest.fixture
def alone(model: Path) -> Iterator[Alone]:
    ports = take_ports()
    transfer: dict[str, Any] = transfer_config("kv_producer", defer_timeout=DEFER_S)
    engine = Engine(model, with_ports(transfer, ports))
    yield Alone(engine, ports)
    engine.shutdown()


def test_how_much_is_held_is_told_as_soon_as_it_is_looked_at(alone: Alone) -> None:
    connector = alone.engine.scheduler.connector
    connector._look_at = connector._flush_at = float("inf")
    alone.hold()
    connector._look_at = float("-inf")
    told = payload_of(connector.get_kv_connector_stats())["gauges"]
    assert told["deferred_sends"]["scheduler"][1] == 1
    connector._look_at = float("-inf")
    assert connector.get_kv_connector_stats() is None


def test_a_release_is_counted(alone: Alone) -> None:
    transfer_id = alone.hold()
    wrapper = alone.engine.connector.connector_worker.moriio_wrapper
    wrapper.send_notify(transfer_id, HOST, alone.ports.notify, message_type="release")
    assert alone.comes_to_count("releases_total") == 1


def test_a_send_that_nobody_reads_expires(alone: Alone) -> None:
    alone.hold()
    assert alone.comes_to_count("deferred_sends_expired_total") == 1
