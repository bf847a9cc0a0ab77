"""What the doctor knows of each vLLM release, without having it.

Read in the sources. `tests/contract/test_doctor_facts.py` holds what is said of the releases we
support against theirs; 0.27, which we do not, was held once and changes no more.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from moriio_observed.barrier import Era, Placement, place

Minor = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Facts:
    """One release of vLLM.

    Attributes:
        minor: The release, without its patch level.
        era: Its own READ barrier; None where it has none.
        abort_variable: Whether ``VLLM_MORIIO_TRANSFER_TIMEOUT_S`` sets the abort limit.
        abort_key: Whether ``recv_abort_timeout`` does, before that variable.
        aborts: Whether reads in flight are given up at all.
        checks_deadlines: Whether a deadline that is not a positive number refuses to start.
        needs_proxy: Whether ``proxy_ip`` and ``proxy_ping_port`` must be given.
        reports_failed_reads: Whether the scheduler learns which blocks did not load.
        legacy_keys: Whether ``kv_rank`` and its kind may stand in the configuration.
        runner_v2: Whether most models run on Model Runner V2 where nothing else is said.
        observed: Whether moriio_observed supports it.
    """

    minor: Minor
    era: Era | None
    abort_variable: bool = True
    abort_key: bool = True
    aborts: bool = True
    checks_deadlines: bool = True
    needs_proxy: bool = False
    reports_failed_reads: bool = True
    legacy_keys: bool = False
    runner_v2: bool = True
    observed: bool = True

    def __str__(self) -> str:
        return ".".join(map(str, self.minor))

    def protects_full(self, setting: str | None, *, runner_v2: bool) -> bool:
        """Whether a FULL graph step waits for its reads.

        Args:
            setting: The setting ``barrier``; None where our connector is not used.
            runner_v2: Whether the model runs on Model Runner V2.
        """
        if setting is None:
            placement, era = Placement.UPSTREAM, self.era
        else:
            era = self.era or Era.UNKNOWN
            placement = place(setting, era)
        return placement.protects_full_graphs(era or Era.UNKNOWN, hidden_full=runner_v2)


_0_33 = Facts((0, 33), Era.STEP)
_0_32 = replace(_0_33, minor=(0, 32), era=Era.LAYER_AND_STEP)
_0_31 = replace(_0_32, minor=(0, 31), legacy_keys=True)
_0_30 = replace(
    _0_31,
    minor=(0, 30),
    era=Era.LAYER,
    abort_key=False,
    checks_deadlines=False,
    reports_failed_reads=False,
)
_0_29 = replace(_0_30, minor=(0, 29))
_0_28 = replace(_0_29, minor=(0, 28), runner_v2=False)
_0_27 = replace(
    _0_28,
    minor=(0, 27),
    era=None,
    abort_variable=False,
    aborts=False,
    needs_proxy=True,
    observed=False,
)

KNOWN: tuple[Facts, ...] = (_0_27, _0_28, _0_29, _0_30, _0_31, _0_32, _0_33)
"""Oldest first."""
SUPPORTED: tuple[Facts, ...] = tuple(facts for facts in KNOWN if facts.observed)
"""Those that moriio_observed supports."""

CONFIG_KEYS = frozenset(
    {
        *("kv_connector", "engine_id", "kv_buffer_device", "kv_role", "kv_port"),
        *("kv_connector_extra_config", "kv_connector_module_path", "enable_permute_local_kv"),
        "kv_load_failure_policy",
    }
)
"""What `KVTransferConfig` takes in every release."""
LEGACY_CONFIG_KEYS = frozenset({"kv_buffer_size", "kv_rank", "kv_parallel_size", "kv_ip"})
"""What it takes up to 0.31 as well."""
EXTRA_KEYS = frozenset(
    {
        *("backend", "defer_timeout", "handshake_port", "host_ip", "http_port", "notify_port"),
        *("num_workers", "post_batch_size", "proxy_ip", "proxy_ping_port", "qp_per_transfer"),
        *("read_mode", "recv_abort_timeout", "transfer_timeout"),
    }
)
"""What MoRIIO looks for in ``kv_connector_extra_config``; it ignores everything else."""
IGNORED_VARIABLES = {
    "VLLM_MORIIO_CONNECTOR_READ_MODE": "read_mode",
    "VLLM_MORIIO_QP_PER_TRANSFER": "qp_per_transfer",
    "VLLM_MORIIO_POST_BATCH_SIZE": "post_batch_size",
    "VLLM_MORIIO_NUM_WORKERS": "num_workers",
}
"""Environment variables of the past, and the keys that took their place."""
ABORT_VARIABLE = "VLLM_MORIIO_TRANSFER_TIMEOUT_S"
DEADLINES = {"transfer_timeout": 30.0, "recv_abort_timeout": 120.0, "defer_timeout": 60.0}
"""Their defaults, seconds."""
PORTS = {"handshake_port": 6301, "notify_port": 61005}
"""Their defaults."""
GRAPH_MODES = {
    "NONE": False,
    "PIECEWISE": False,
    "FULL": True,
    "FULL_DECODE_ONLY": True,
    "FULL_AND_PIECEWISE": True,
}
"""CUDA graph modes, and whether they have FULL graphs."""
NUMBERED_GRAPH_MODES = ("NONE", "PIECEWISE", "FULL")
"""Those that have a number, by it."""
GRAPH_MODE_OF_LEVEL = {
    0: "NONE",
    1: "PIECEWISE",
    2: "FULL_AND_PIECEWISE",
    3: "FULL_AND_PIECEWISE",
}
"""What each optimization level sets where the CUDA graph mode is not given."""
DEFAULT_LEVEL = 2


def minor_of(version: str) -> Minor | None:
    """The first two numbers of a version such as ``0.30.0``, ``v0.30.1rc1+rocm``; None if none."""
    found = re.match(r"v?(\d{1,4})\.(\d{1,4})(?![\d])", version.strip())
    return (int(found[1]), int(found[2])) if found else None


def facts_of(version: str | None) -> Facts | None:
    """What is known of a release; None for one that is not known."""
    minor = None if version is None else minor_of(version)
    return next((facts for facts in KNOWN if facts.minor == minor), None)


def span(releases: Sequence[Facts]) -> str:
    """Releases as a person says them: ``0.28 to 0.30``; they follow on each other."""
    if not releases:
        return "none"
    first, last = releases[0], releases[-1]
    return str(first) if first is last else f"{first} to {last}"
