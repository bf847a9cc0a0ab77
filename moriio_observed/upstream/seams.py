"""What this release of vLLM lets us hold on to, by looking at it and never at its version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

from moriio_observed.barrier import Era
from moriio_observed.upstream import mentions
from moriio_observed.upstream.moriio import MoRIIOConnector, moriio_connector
from moriio_observed.upstream.shapes import Shape

STEP_WAIT = "_await_reads_issued_this_step"
LAYER_WAIT = "wait_for_layer_load"

WORKER_SEAMS = {
    "_read_blocks": Shape(reads=("request_id", "dst_engine_id"), passes_on=True),
    "_pop_done_transfers": Shape(passes_on=True),
    "_moriio_handshake": Shape(passes_on=True),
}
WRAPPER_SEAMS = {
    "read_remote_data": Shape(("transfer_size_byte",), passes_on=True),
    "waiting_for_transfer_complete": Shape(("transfer_statuses",), passes_on=True),
    "send_notify": Shape(passes_on=True),
    "_handle_release_message": Shape(passes_on=True),
}
STEP_WAIT_SHAPE = Shape(passes_on=True)
CONNECTOR_SEAMS = {
    "register_kv_caches": Shape(("kv_caches",)),
    "bind_connector_metadata": Shape(("connector_metadata",)),
    "start_load_kv": Shape(("forward_context",), passes_on=True),
    LAYER_WAIT: Shape(("layer_name",)),
    "get_finished": Shape(("finished_req_ids",)),
    "get_block_ids_with_load_errors": Shape(),
    "update_state_after_alloc": Shape(("request", "blocks", "num_external_tokens")),
    "build_connector_meta": Shape(("scheduler_output",)),
    "update_connector_output": Shape(("connector_output",)),
    "shutdown": Shape(),
}
if "get_transfer_results" in vars(MoRIIOConnector):
    CONNECTOR_SEAMS["get_transfer_results"] = Shape(("finished_req_ids",))

OVERRIDDEN = tuple(CONNECTOR_SEAMS)
"""The methods of upstream's connector that ours stands in front of."""

_PRODUCER_HOOKS = ("moriio_handshake", "send_notify", "handle_release_message")

_STATE = {
    "connector_worker": (
        "mode",
        "is_producer",
        "tp_rank",
        "kv_caches",
        "moriio_engine",
        "moriio_wrapper.lock",
        "moriio_config.transfer_timeout",
        "_recving_transfers",
    ),
    "connector_scheduler": ("mode", "is_producer", "_reqs_need_recv"),
}
"""What we read of each side that a connector builds."""

_ERAS = {
    ((True, True), (False, False)): Era.LAYER,
    ((True, True), (True, True)): Era.LAYER_AND_STEP,
    ((False, False), (True, True)): Era.STEP,
}
"""By the layer's and the step's wait: whether the worker has it, and whether it is called."""


@dataclass(frozen=True, slots=True)
class Seams:
    """What this release of vLLM lets us hold on to.

    Attributes:
        era: Which READ barrier it has of its own.
        hooks: Each hook by name, and whether it can be installed here.
        load_errors: Whether failed reads are reported to the scheduler.
        missing: What is not as we know it, each with what is wrong with it.
    """

    era: Era
    hooks: Mapping[str, bool]
    load_errors: bool
    missing: tuple[str, ...] = ()

    @classmethod
    def detect(cls) -> Seams:
        """Look at the classes of the vLLM that is installed."""
        worker = getattr(moriio_connector, "MoRIIOConnectorWorker", None)
        wrapper = getattr(moriio_connector, "MoRIIOWrapper", None)
        mentioned = mentions.by_package()
        faults = {
            name.lstrip("_"): shape.fault(owner, name)
            or ("" if name in mentioned else "nothing calls it")
            for owner, seams in ((worker, WORKER_SEAMS), (wrapper, WRAPPER_SEAMS))
            for name, shape in seams.items()
        }
        era, faults["barrier"] = _find_era(worker)
        hooks = {name: not fault for name, fault in faults.items()}
        faults |= {
            f"MoRIIOConnector.{name}": shape.fault(MoRIIOConnector, name)
            for name, shape in CONNECTOR_SEAMS.items()
        }
        # The API server says what is protected, and has built nothing that `of` could look at.
        for side, paths in _STATE.items():
            for path in (side, *paths):
                if not mentioned.issuperset(path.split(".")):
                    faults[path] = "not there"
        missing = tuple(f"{name}: {fault}" for name, fault in faults.items() if fault)
        return cls(
            Era.UNKNOWN if missing else era,
            hooks,
            hasattr(worker, "get_block_ids_with_load_errors"),
            missing,
        )

    def of(self, connector: Any) -> Seams:
        """Look at what upstream's connector has built, too; nothing of it is hooked yet."""
        built = {
            name: side for name in _STATE if (side := getattr(connector, name, None)) is not None
        }
        absent = [
            f"{path}: not there"
            for name, side in built.items()
            for path in _STATE[name]
            if not _has(side, path)
        ]
        if not built:
            absent = [f"{' and '.join(_STATE)}: neither is there"]
        if not absent:
            return self
        missing = tuple(dict.fromkeys((*self.missing, *absent)))
        return replace(self, era=Era.UNKNOWN, missing=missing)

    @property
    def producer_hooks(self) -> dict[str, bool]:
        """The hooks that a worker which reads nothing has."""
        return {name: self.hooks[name] for name in _PRODUCER_HOOKS if name in self.hooks}


def _find_era(worker: Any) -> tuple[Era, str]:
    """Return which of the three barriers we know a release has, else what it looks like."""
    at_layer = mentions.by_method(MoRIIOConnector, LAYER_WAIT)
    layer = hasattr(worker, LAYER_WAIT), LAYER_WAIT in at_layer
    step = hasattr(worker, STEP_WAIT), STEP_WAIT in mentions.by_method(worker, "start_load_kv")
    era = _ERAS.get((layer, step), Era.UNKNOWN)
    # A hook of the layer that does something else would be bypassed.
    if era is Era.UNKNOWN or (era is Era.STEP and at_layer):
        return Era.UNKNOWN, (
            f"worker has {LAYER_WAIT}: {layer[0]}, connector calls it: {layer[1]}; "
            f"worker has {STEP_WAIT}: {step[0]}, start_load_kv calls it: {step[1]}"
        )
    if era is Era.LAYER:
        return era, ""
    if fault := STEP_WAIT_SHAPE.fault(worker, STEP_WAIT):
        return Era.UNKNOWN, f"{STEP_WAIT}: {fault}"
    # Its wait is seen, and credited, there.
    if "waiting_for_transfer_complete" not in mentions.by_method(worker, STEP_WAIT):
        return Era.UNKNOWN, f"{STEP_WAIT} does not wait with waiting_for_transfer_complete"
    return era, ""


def _has(side: Any, path: str) -> bool:
    try:
        attrgetter(path)(side)
    except AttributeError:
        return False
    return True
