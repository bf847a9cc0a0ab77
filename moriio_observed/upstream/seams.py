"""What this release of vLLM lets us hold on to, by looking at it and never at its version."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

from moriio_observed.barrier import Era
from moriio_observed.upstream import mentions
from moriio_observed.upstream.facts import reads
from moriio_observed.upstream.moriio import (
    HAS_GROUPS,
    HAS_TRANSFER_RESULTS,
    MoRIIOConnector,
    is_moriios_own,
    moriio_connector,
)
from moriio_observed.upstream.shapes import Shape

STEP_WAIT = "_await_reads_issued_this_step"
LAYER_WAIT = "wait_for_layer_load"
SAVE = "save_kv_layer"
CLEAN_UP = "_pop_done_transfers"

WORKER_SEAMS = {
    "_read_blocks": Shape(reads=("request_id", "dst_engine_id"), passes_on=True),
    CLEAN_UP: Shape(passes_on=True),
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
    SAVE: Shape(("layer_name", "kv_layer", "attn_metadata"), passes_on=True),
    "get_finished": Shape(("finished_req_ids",)),
    "get_block_ids_with_load_errors": Shape(),
    "update_state_after_alloc": Shape(("request", "blocks", "num_external_tokens")),
    "get_num_new_matched_tokens": Shape(("request", "num_computed_tokens")),
    "request_finished": Shape(("request", "block_ids")),
    "on_new_request": Shape(("request",)),
    "bind_gpu_block_pool": Shape(("gpu_block_pool",)),
    "build_connector_worker_meta": Shape(),
    "build_connector_meta": Shape(("scheduler_output",)),
    "update_connector_output": Shape(("connector_output",)),
    "shutdown": Shape(),
}
if HAS_TRANSFER_RESULTS:
    CONNECTOR_SEAMS["get_transfer_results"] = Shape(("finished_req_ids",))
if HAS_GROUPS:
    CONNECTOR_SEAMS["request_finished_all_groups"] = Shape(("request", "block_ids"))

OVERRIDDEN = tuple(CONNECTOR_SEAMS)
"""The methods of upstream's connector that ours stands in front of."""

_REPLACED = (
    "get_kv_connector_stats",
    "build_kv_connector_stats",
    "build_prom_metrics",
    "build_connector_worker_meta",
)
"""What ours replaces; MoRIIO has none of its own up to 0.33, and ours would hide it."""

_WAITS = frozenset(
    {
        *("CUDAGraphMode", "FULL", "cudagraph_runtime_mode", "get_forward_context"),
        *("MoRIIOMode", "READ", "mode", "is_producer", "_has_mamba"),
        *("connector_worker", "moriio_wrapper", "moriio_config", "transfer_timeout"),
        *("_recving_transfers", "_reads_issued_this_step", "_mamba_reads_this_step"),
        *("Failed", "Succeeded", "TransferError", "waiting_for_transfer_complete"),
        *("wait_for_layer_load", "lock", "time", "monotonic", "sleep"),
        *("get", "values", "len", "sum", "logger", "warning", "exception"),
    }
)
"""All that the waits use which ours takes the place of, in the releases we know.

One that uses more does more than wait, a memory fence perhaps, and ours would leave that out.
"""

_SAVES = frozenset(
    {
        *("get_role", "ROLE", "CONSUMER", "connector_worker", "save_kv_layer"),
        *("isinstance", "_connector_metadata", "MoRIIOConnectorMetadata"),
    }
)
"""All that saving a layer uses, in the releases we know: on a decode engine it only asks that."""

_CLEANS_UP = frozenset(
    {
        *("_recving_transfers", "_recving_transfers_start", "_recving_transfers_callback_addr"),
        *("_recving_local_blocks", "_record_failed_recv", "moriio_config", "recv_abort_timeout"),
        *("moriio_wrapper", "lock", "poll_transfer_batch", "TransferBatchState", "DONE", "FAILED"),
        *("Succeeded", "Failed", "Message", "Code", "send_notify", "_send_read_release"),
        *("world_size", "os", "environ", "time", "monotonic", "logger", "error", "exception"),
        *("set", "list", "int", "all", "next", "get", "items", "values", "add", "append", "pop"),
        "Exception",
    }
)
"""All that cleaning up uses, in the releases we know: it only goes through the transfers."""

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
        "_recving_transfers_callback_addr",
    ),
    "connector_scheduler": (
        "mode",
        "is_producer",
        "_reqs_need_recv",
        "_req_kv_params",
        "_deferred_send_deadlines",
    ),
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
    def detect(cls, worker: Any = None, wrapper: Any = None) -> Seams:
        """Look at the classes of the vLLM that is installed, or at those something is made of."""
        worker = worker or getattr(moriio_connector, "MoRIIOConnectorWorker", None)
        wrapper = wrapper or getattr(moriio_connector, "MoRIIOWrapper", None)
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
        faults |= {
            f"MoRIIOConnector.{name}": "MoRIIO has one of its own"
            for name in _REPLACED
            if is_moriios_own(name)
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
        found = [
            f"{path}: not there"
            for name, side in built.items()
            for path in _STATE[name]
            if not _has(side, path)
        ]
        if not built:
            found = [f"{' and '.join(_STATE)}: neither is there"]
        found += [
            f"MoRIIOConnector.{name}: bound on the object itself"
            for name in CONNECTOR_SEAMS
            if name in vars(connector)
        ]
        worker = built.get("connector_worker")
        seams = self
        if worker is not None and not found:
            seams = self._of_classes(type(worker), type(worker.moriio_wrapper))
            found += _unhookable(worker, (*WORKER_SEAMS, LAYER_WAIT, STEP_WAIT))
            found += _unhookable(worker.moriio_wrapper, WRAPPER_SEAMS)
        if not found:
            return seams
        missing = tuple(dict.fromkeys((*seams.missing, *found)))
        return replace(seams, era=Era.UNKNOWN, missing=missing)

    def _of_classes(self, worker: type, wrapper: type) -> Seams:
        """Look at the classes of what was built, where they are not those we have looked at."""
        usual = (moriio_connector.MoRIIOConnectorWorker, moriio_connector.MoRIIOWrapper)
        return self if (worker, wrapper) == usual else self.detect(worker, wrapper)

    @staticmethod
    def saves_nothing(worker: Any) -> bool:
        """Whether upstream's worker is one whose layers' KV is never saved: it only reads."""
        return reads(worker) and _only_uses(MoRIIOConnector, SAVE, _SAVES)

    @staticmethod
    def cleans_up_transfers_only(worker: Any) -> bool:
        """Whether cleaning up does nothing while upstream's worker, not hooked yet, tracks none."""
        return _only_uses(type(worker), CLEAN_UP, _CLEANS_UP)

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
    for owner, name in ((MoRIIOConnector, LAYER_WAIT), (worker, LAYER_WAIT), (worker, STEP_WAIT)):
        if more := _more_than_waits(owner, name):
            return Era.UNKNOWN, f"{owner.__name__}.{name} {more}"
    if era is Era.LAYER:
        return era, ""
    if fault := STEP_WAIT_SHAPE.fault(worker, STEP_WAIT):
        return Era.UNKNOWN, f"{STEP_WAIT}: {fault}"
    # Its wait is seen there; what it waits for is emptied, and hybrids are told, by these names.
    used = mentions.by_method(worker, STEP_WAIT)
    for name in ("waiting_for_transfer_complete", "_reads_issued_this_step", "_has_mamba"):
        if name not in used:
            return Era.UNKNOWN, f"{STEP_WAIT} does not use {name}"
    return era, ""


def _more_than_waits(owner: Any, name: str) -> str:
    """What a wait that ours takes the place of does besides, empty if nothing."""
    method = getattr(owner, name, None)
    if method is None:
        return ""
    if fault := _not_upstreams(method):
        return fault
    more = sorted(mentions.by_method(owner, name) - _WAITS)
    return f"does more than wait ({', '.join(more)})" if more else ""


def _only_uses(owner: Any, name: str, known: frozenset[str]) -> bool:
    """Whether a method that ours may leave out is upstream's own and uses nothing but this."""
    used = mentions.by_method(owner, name)
    return bool(used) and used <= known and not _not_upstreams(getattr(owner, name))


def _not_upstreams(method: Any) -> str:
    """Why the code of a method is not all that it does, or not upstream's; empty if it is."""
    if hasattr(method, "__wrapped__"):
        return "is wrapped in something"
    package = f"{moriio_connector.__package__}."
    if not str(getattr(method, "__module__", "")).startswith(package):
        return f"is not vLLM's but of {getattr(method, '__module__', 'another module')}"
    return ""


def _unhookable(side: Any, names: Iterable[str]) -> list[str]:
    """What would keep a class in front of a built object's own from being reached."""
    bound = vars(side) if hasattr(side, "__dict__") else {}
    faults = [f"{name.lstrip('_')}: bound on the object itself" for name in names if name in bound]
    base = type(side)
    try:
        side.__class__ = type(base.__name__, (base,), {})
        side.__class__ = base
    except Exception as error:  # noqa: BLE001  (whatever its class does)
        faults.append(f"{base.__name__}: {error}")
    return faults


def _has(side: Any, path: str) -> bool:
    try:
        attrgetter(path)(side)
    except AttributeError:
        return False
    return True
