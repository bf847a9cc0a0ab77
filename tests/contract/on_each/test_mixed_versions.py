"""A prefill engine of a neighbouring version, while a fleet is being upgraded.

MoRIIO's handshake carries no version, so vLLM refuses no pair. What becomes of each is vLLM's own
doing; here it is held down, so that docs/versions.md can say which way to upgrade.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import vllm

from moriio_observed.demo.faults import FaultFile
from moriio_observed.demo.server import BARE, OBSERVED
from tests.contract.on_each.decode import Decode
from tests.contract.on_each.engine import take_ports
from tests.contract.on_each.prefill import Prefill
from tests.trees import VERSIONS, source_tree

DECODE = os.environ.get("VLLM_UNDER_TEST", vllm.__version__)
PLACE = VERSIONS.index(DECODE)
NEIGHBOURS = [VERSIONS[at] for at in (PLACE - 1, PLACE + 1) if 0 <= at < len(VERSIONS)]

RIGHT = "right"
SILENT = "wrong, and nobody can tell"
ENDS = "the decode engine ends"
NOT_RIGHT = {
    # 0.29 registers the whole cache as one region; 0.28 reads it without the layer's offset.
    ("0.29.0", "0.28.0"): SILENT,
    # Block ids travel by cache group from 0.30 on.
    ("0.29.0", "0.30.0"): ENDS,
    ("0.30.0", "0.29.0"): ENDS,
}
"""(prefill, decode): what becomes of a pair whose answers are not right."""
LAST_WORDS = r"object of type 'int' has no len|len\(local_block_ids\) <= len\(remote_block_ids\)"
"""vLLM's own, of a decode engine that ends."""

SLOW = {"rules": [{"latency_s": 0.2}]}
PROMPTS = [list(range(start, start + 40)) for start in range(10, 40, 10)]


@pytest.mark.parametrize("connector", [BARE, OBSERVED], ids=["bare", "observed"])
@pytest.mark.parametrize("version", NEIGHBOURS)
def test_prefill_of_another_version(
    decode: Callable[..., Decode],
    other_prefill: Callable[[str], Prefill],
    faults: FaultFile,
    observed: Callable[..., None],
    version: str,
    connector: tuple[str, str | None],
) -> None:
    d = decode(connector=connector, prefill=other_prefill(version))
    asked = [d.ask(prompt) for prompt in PROMPTS]
    faults.set(SLOW)
    expected = NOT_RIGHT.get((version, DECODE), RIGHT)
    if expected is ENDS:
        with pytest.raises((AssertionError, TypeError)) as raised:
            d.serve()
        words = f"{raised.value} {raised.traceback[-1].statement}"
        assert re.search(LAST_WORDS, words), words
        seen = ENDS
    else:
        d.serve()
        seen = RIGHT if all(d.is_right(*asked)) else SILENT
    assert d.exposures == []
    assert seen == expected
    if connector is OBSERVED:
        observed("mixed", version, seen)


@pytest.fixture(scope="module")
def other_prefill(model: Path) -> Iterator[Callable[[str], Prefill]]:
    """Get the prefill engine of another version: one at a time, kept while it is asked for."""
    running: dict[str, Prefill] = {}
    with contextlib.ExitStack() as ends:

        def get(version: str) -> Prefill:
            if version not in running:
                ends.close()
                running.clear()
                prefill = Prefill(model, take_ports(), tree=source_tree(version))
                running[version] = ends.enter_context(contextlib.closing(prefill))
            return running[version]

        yield get
