"""The prefix cache on one version, without a guard: wrong KV is told wherever it goes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from moriio_observed.demo.faults import FaultFile
from tests.contract.on_each.decode import Decode
from tests.contract.on_each.engine import BLOCK_SIZE, LAYERS
from tests.contract.on_each.expected import FAILS_STEP, RECOVERS

GetDecode = Callable[..., Decode]

PROMPT = list(range(10, 50))
LONGER = [*PROMPT[: 2 * BLOCK_SIZE], *range(500, 520)]


@pytest.mark.skipif(FAILS_STEP, reason="0.33 fails the step instead")
def test_who_shares_a_prefix_that_has_not_landed_is_told(
    decode: GetDecode, faults: FaultFile
) -> None:
    d = decode(barrier="off")
    faults.set({"reset_ordinals": True, "rules": [{"requests": [0], "latency_s": 1.0}]})
    # All but its last token is in the reader's first blocks: it reads nothing of its own.
    reader, sharer = d.ask(PROMPT), d.ask(PROMPT[: 2 * BLOCK_SIZE + 1])
    d.serve()
    assert d.salad == {reader.request_id, sharer.request_id}
    assert d.exposed("no_barrier") == d.salad


@pytest.mark.skipif(RECOVERS, reason="it is recomputed")
def test_what_a_failed_read_left_behind_is_nobodys_prefix(
    decode: GetDecode, faults: FaultFile
) -> None:
    d = decode()
    faults.set({"reset_ordinals": True, "rules": [{"requests": [0], "fail": True}]})
    failed = d.ask(PROMPT)
    d.serve()
    assert d.salad == d.exposed("failed") == {failed.request_id}
    after = d.ask(LONGER)
    d.serve()
    assert d.is_right(after) == [True]


@pytest.mark.skipif(FAILS_STEP, reason="0.33 claims nothing for it")
def test_what_a_phantom_hit_left_behind_is_nobodys_prefix(decode: GetDecode) -> None:
    d = decode()
    phantom = d.ask_alone(PROMPT)
    d.serve()
    assert d.is_right(phantom) == [False]
    after = d.ask(LONGER)
    d.serve()
    assert d.is_right(after) == [True]


def test_what_has_landed_is_shared(decode: GetDecode, faults: FaultFile) -> None:
    d = decode()
    faults.set({"rules": [{"latency_s": 0.2}]})
    reader = d.ask(PROMPT)
    d.serve()
    sharer = d.ask(PROMPT[: 2 * BLOCK_SIZE + 1])
    d.serve()
    assert all(d.is_right(reader, sharer))
    assert d.exposures == []
    assert d.total("reads_posted_total") == len(LAYERS)
