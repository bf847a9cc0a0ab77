"""A cache too small for all who wait, with a guard: nobody waits for somebody who waits for him."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from vllm.v1.core.sched.request_queue import SchedulingPolicy, create_request_queue

from moriio_observed.demo.faults import FaultFile
from tests.contract.on_each import engine
from tests.contract.on_each.decode import Asked, Decode

GetDecode = Callable[..., Decode]

BLOCKS = 48
"""Of these vLLM keeps one for itself."""


@pytest.fixture(autouse=True)
def small_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "BLOCKS", BLOCKS)


def prompt(start: int, blocks: int) -> list[int]:
    """A prompt that takes so many blocks, and has none in common with another's."""
    return [start + number for number in range(blocks * engine.BLOCK_SIZE - 8)]


def harm(faults: FaultFile, *rules: dict[str, Any]) -> None:
    """Faults for the requests that come next, counted from 0."""
    faults.set({"reset_ordinals": True, "rules": list(rules)})


def serve(d: Decode, *asked: Asked) -> None:
    """Step until all of these are answered, and see that they are answered right."""
    d.step_until(lambda: all(d.is_right(*asked)))


def leave(d: Decode, asked: Asked) -> None:
    """The client of a request leaves, whose blocks are held from then on."""
    d.engine.abort(asked.request_id)
    d.step()
    d.step()


def test_who_cannot_fit_beside_held_blocks_lets_others_pass(
    guarded: GetDecode, faults: FaultFile
) -> None:
    d = guarded("recompute", deadline_s=1)
    harm(faults, {"requests": [0], "hang": True})
    moved = d.ask(prompt(5, 28))
    d.step_until(lambda: d.gauge("quarantined_blocks") == 28)
    small = d.ask(prompt(7, 3))
    serve(d, small)
    assert d.answers[moved.request_id] == []
    d.land_what_hangs()
    serve(d, moved)
    assert d.settled()


def test_a_moved_request_does_not_hold_up_what_has_landed(
    guarded: GetDecode, faults: FaultFile
) -> None:
    d = guarded("recompute", deadline_s=3, recv_abort_timeout=20)
    harm(
        faults,
        {"requests": [0], "hang": True},
        {"requests": [1, 2], "latency_s": 2.5},
    )
    moved = d.ask(prompt(5, 15))
    asked_at = time.monotonic()
    d.step_until(lambda: time.monotonic() > asked_at + 2)
    slow = [d.ask(prompt(7, 14)), d.ask(prompt(9, 14))]
    serve(d, *slow)
    d.land_what_hangs()
    serve(d, moved)


def test_who_was_passed_does_not_hold_up_what_has_landed_meanwhile(
    guarded: GetDecode, faults: FaultFile
) -> None:
    d = guarded("recompute")
    harm(faults, {"requests": [0, 1], "hang": True})
    gone = d.ask(prompt(5, 20))
    d.step()
    leave(d, gone)
    large = d.ask(prompt(7, 32))
    d.step()
    medium = d.ask(prompt(9, 20))
    d.step()
    d.step()
    d.land_what_hangs()
    serve(d, medium, large)
    assert d.settled()


def test_a_request_with_priority_does_not_hold_up_what_has_landed(
    guarded: GetDecode, faults: FaultFile
) -> None:
    d = guarded("recompute")
    scheduler = d.engine.scheduler
    scheduler.policy = SchedulingPolicy.PRIORITY
    for name in ("waiting", "skipped_waiting", "kv_holding_waiting"):
        if hasattr(scheduler, name):
            setattr(scheduler, name, create_request_queue(scheduler.policy))
    harm(faults, {"requests": [0], "hang": True})
    low = d.ask(prompt(5, 30))
    scheduler.requests[low.request_id].priority = 5
    d.step()
    d.step()
    high = d.ask(prompt(7, 30))
    d.land_what_hangs()
    serve(d, low, high)


def test_a_preempted_request_that_must_wait_stops_no_reads(
    guarded: GetDecode, faults: FaultFile
) -> None:
    d = guarded("recompute")
    harm(faults, {"requests": [1], "hang": True})
    preempted = d.ask(prompt(5, 28), max_tokens=20)
    d.step_until(lambda: d.answers[preempted.request_id])
    gone = d.ask(prompt(7, 19))
    d.step()
    leave(d, gone)
    d.step_until(lambda: d.engine.scheduler.requests[preempted.request_id].num_preemptions)
    small = d.ask(prompt(9, 3))
    serve(d, small)
    d.flush()
    assert d.total("requests_total") == 3, "it is read"
    d.land_what_hangs()
    serve(d, preempted)
