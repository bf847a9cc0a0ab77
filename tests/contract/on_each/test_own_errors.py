"""An error of our own, on one version: a guard still lets nothing wrong out, and nobody hangs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from moriio_observed.demo.faults import FaultFile
from tests.contract.on_each.decode import Decode

GetDecode = Callable[..., Decode]

PROMPTS = [list(range(start, start + 40)) for start in range(10, 40, 10)]

both_guards = pytest.mark.parametrize("guard", ["recompute", "fail"])


def broken(*_: Any, **__: Any) -> Any:
    raise RuntimeError("an error of ours")


@both_guards
def test_a_claim_that_fails_is_computed_here(
    decode: GetDecode, monkeypatch: pytest.MonkeyPatch, guard: str
) -> None:
    d = decode(guard=guard)
    monkeypatch.setattr(d.engine.scheduler.connector._claims, "claim", broken)
    asked = [d.ask(prompt) for prompt in PROMPTS]
    d.serve()
    assert all(d.is_right(*asked))
    assert d.total("requests_total") == 0
    assert d.total("telemetry_errors_total") == 1
    assert d.released()
    assert d.blocks_in_use() == 0


@both_guards
def test_a_worker_that_no_longer_observes_its_reads_still_decides_by_them(
    decode: GetDecode, faults: FaultFile, monkeypatch: pytest.MonkeyPatch, guard: str
) -> None:
    d = decode(guard=guard)
    monkeypatch.setattr(d.engine.connector._observer, "posted", broken)
    faults.set(
        {"reset_ordinals": True, "rules": [{"requests": [1], "fail": True}, {"latency_s": 0.2}]}
    )
    asked = [d.ask(prompt) for prompt in PROMPTS]
    d.serve()
    assert d.is_right(*asked) == [True, guard == "recompute", True]
    faults.set({"reset_ordinals": True, "rules": [{"fail": True}]})
    after = d.ask([7, *PROMPTS[0]])
    d.serve()
    assert d.is_right(after) == [True], "it is computed here"
    assert d.salad == set()
    assert d.blocks_in_use() == 0


def test_a_late_read_does_no_harm_after_an_error_of_ours(
    decode: GetDecode, faults: FaultFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    d = decode(guard="recompute", deadline_s=1)
    monkeypatch.setattr(d.engine.connector._observer, "posted", broken)
    faults.set({"reset_ordinals": True, "rules": [{"requests": [0], "hang": True}]})
    hung = d.ask(PROMPTS[0], max_tokens=60)
    d.serve()
    assert d.gauge("quarantined_blocks") == 3
    others = [d.ask([7, *prompt], max_tokens=20) for prompt in PROMPTS]
    d.serve()
    d.land_what_hangs()
    d.flush_until(lambda: d.blocks_in_use() == 0)
    assert all(d.is_right(hung, *others))
