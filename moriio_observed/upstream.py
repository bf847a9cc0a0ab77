"""Everything we know of vLLM's MoRIIO connector: the only module that touches its internals.

Written for vLLM 0.28 to 0.33 by looking at what is there, never at version numbers. Hooks are
mixins put in front of the class of the objects upstream has built, and taken away again; a
release without one of the seams says so in `Seams.missing`.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any

try:
    from vllm.distributed.kv_transfer.kv_connector.v1.moriio import moriio_common, moriio_connector
    from vllm.distributed.kv_transfer.kv_connector.v1.moriio.moriio_connector import (
        MoRIIOConnector as MoRIIOConnector,  # noqa: PLC0414  (exported for connector.py)
    )
    from vllm.forward_context import get_forward_context, is_forward_context_available
except ImportError as error:
    raise ImportError(
        f"moriio_observed cannot use this vLLM's MoRIIO connector: {error}. Use a vLLM that "
        "moriio_observed supports, or go back to kv_connector MoRIIOConnector without "
        "kv_connector_module_path and MORIIO_OBSERVED."
    ) from error

from moriio_observed.barrier import Era, Outcome, Placement
from moriio_observed.containment import Containment
from moriio_observed.log import get_logger
from moriio_observed.observer import FULL, ReadObserver, StepNotes
from moriio_observed.telemetry.aggregate import Aggregate
from moriio_observed.telemetry.catalog import PEER_FAILURE_REASONS

logger = get_logger(__name__)

TransferError: type[Exception] = getattr(moriio_common, "TransferError", RuntimeError)
"""What upstream raises when it fails a step rather than run its forward."""

_NOTES = "moriio_observed_notes"
_PRODUCER_HOOKS = ("moriio_handshake", "send_notify", "handle_release_message")
_PEER_FAILURES_PER_STEP = 16
_FALLBACK_POLL_S = 0.001
_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True, slots=True)
class _Shape:
    """How a method of ours takes the calls that were meant for upstream's.

    Attributes:
        takes: The parameters it names: upstream's first ones, in upstream's order.
        reads: Further ones that we look at by name.
        passes_on: Whether whatever else upstream takes goes through.
    """

    takes: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    passes_on: bool = False


_WORKER_SEAMS = {
    "_read_blocks": _Shape(reads=("request_id", "dst_engine_id"), passes_on=True),
    "_pop_done_transfers": _Shape(),
    "_moriio_handshake": _Shape(passes_on=True),
}
_STEP_WAIT = "_await_reads_issued_this_step"
_LAYER_WAIT = "wait_for_layer_load"
_WRAPPER_SEAMS = {
    "read_remote_data": _Shape(("transfer_size_byte",), passes_on=True),
    "waiting_for_transfer_complete": _Shape(("transfer_statuses",), passes_on=True),
    "send_notify": _Shape(passes_on=True),
    "_handle_release_message": _Shape(("data",)),
}
_CONNECTOR_SEAMS = {
    "register_kv_caches": _Shape(("kv_caches",)),
    "bind_connector_metadata": _Shape(("connector_metadata",)),
    "start_load_kv": _Shape(("forward_context",), passes_on=True),
    _LAYER_WAIT: _Shape(("layer_name",)),
    "get_finished": _Shape(("finished_req_ids",)),
    "get_block_ids_with_load_errors": _Shape(),
    "update_state_after_alloc": _Shape(("request", "blocks", "num_external_tokens")),
    "build_connector_meta": _Shape(("scheduler_output",)),
    "update_connector_output": _Shape(("connector_output",)),
    "shutdown": _Shape(),
}
if hasattr(MoRIIOConnector, "get_transfer_results"):
    _CONNECTOR_SEAMS["get_transfer_results"] = _Shape(("finished_req_ids",))

_WORKER_STATE = (
    "mode",
    "is_producer",
    "tp_rank",
    "kv_caches",
    "moriio_engine",
    "moriio_wrapper.lock",
    "moriio_config.transfer_timeout",
    "_recving_transfers",
)
_SCHEDULER_STATE = ("mode", "is_producer", "_reqs_need_recv")

OVERRIDDEN = tuple(_CONNECTOR_SEAMS)
"""The methods of upstream's connector that ours stands in front of."""


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
        used = _names_of(_package_code())
        faults = {
            name.lstrip("_"): _fault(owner, name, shape)
            or ("" if name in used else "nothing calls it")
            for owner, seams in ((worker, _WORKER_SEAMS), (wrapper, _WRAPPER_SEAMS))
            for name, shape in seams.items()
        }
        era, faults["barrier"] = _find_era(worker)
        hooks = {name: not fault for name, fault in faults.items()}
        faults |= {
            f"MoRIIOConnector.{name}": _fault(MoRIIOConnector, name, shape)
            for name, shape in _CONNECTOR_SEAMS.items()
        }
        state = ("connector_worker", "connector_scheduler", *_WORKER_STATE, *_SCHEDULER_STATE)
        faults |= {path: "not there" for path in state if not used.issuperset(path.split("."))}
        missing = tuple(f"{name}: {fault}" for name, fault in faults.items() if fault)
        return cls(
            Era.UNKNOWN if missing else era,
            hooks,
            hasattr(worker, "get_block_ids_with_load_errors"),
            missing,
        )

    def of(self, connector: Any) -> Seams:
        """Look at what upstream's connector has built, too; nothing of it is hooked yet."""
        sides = {"connector_worker": _WORKER_STATE, "connector_scheduler": _SCHEDULER_STATE}
        built = {name: getattr(connector, name, None) for name in sides}
        absent = [
            f"{path}: not there"
            for name, side in built.items()
            if side is not None
            for path in sides[name]
            if not _has(side, path)
        ]
        if all(side is None for side in built.values()):
            absent = [f"{' and '.join(sides)}: neither is there"]
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
    layer, step = hasattr(worker, _LAYER_WAIT), hasattr(worker, _STEP_WAIT)
    hook = _names_of([_code(MoRIIOConnector, _LAYER_WAIT)])
    reached = _LAYER_WAIT in hook
    called = _STEP_WAIT in _names_of([_code(worker, "start_load_kv")])
    era = {
        (True, True, False, False): Era.LAYER,
        (True, True, True, True): Era.LAYER_AND_STEP,
        (False, False, True, True): Era.STEP,
    }.get((layer, reached, step, called), Era.UNKNOWN)
    if era is Era.UNKNOWN or (era is Era.STEP and hook):
        return Era.UNKNOWN, (
            f"worker has {_LAYER_WAIT}: {layer}, connector calls it: {reached}; "
            f"worker has {_STEP_WAIT}: {step}, start_load_kv calls it: {called}"
        )
    if step and (fault := _fault(worker, _STEP_WAIT, _Shape())):
        return Era.UNKNOWN, f"{_STEP_WAIT}: {fault}"
    # Its wait is seen, and credited, there.
    if step and "waiting_for_transfer_complete" not in _names_of([_code(worker, _STEP_WAIT)]):
        return Era.UNKNOWN, f"{_STEP_WAIT} does not wait with waiting_for_transfer_complete"
    return era, ""


def _fault(owner: Any, name: str, shape: _Shape) -> str:
    """What keeps a method of ours from standing in front of upstream's, empty if nothing does."""
    method = getattr(owner, name, None)
    if method is None:
        return "not there"
    try:
        parameters = inspect.signature(method).parameters.values()
    except (TypeError, ValueError):
        return "its parameters cannot be read"
    names = [each.name for each in parameters if each.kind not in _VARIABLE][1:]
    for wanted in (*shape.takes, *shape.reads):
        if wanted not in names:
            return f"no parameter {wanted}"
    expected = len(shape.takes)
    if names[:expected] != list(shape.takes):
        return f"its parameters are {', '.join(names)}"
    if len(names) > expected and not shape.passes_on:
        return f"new parameter {names[expected]}"
    return ""


def _has(side: Any, path: str) -> bool:
    for name in path.split("."):
        if not hasattr(side, name):
            return False
        side = getattr(side, name)
    return True


def _package_code() -> Iterator[CodeType | None]:
    """The code of every method of upstream's classes, and of no subclass made elsewhere."""
    package = f"{moriio_connector.__package__}."
    for thing in vars(moriio_connector).values():
        for base in thing.__mro__ if isinstance(thing, type) else ():
            if base.__module__.startswith(package):
                yield from (_code(base, name) for name in vars(base))


def _code(owner: Any, name: str) -> CodeType | None:
    method: Any = getattr(owner, name, None)
    return getattr(inspect.unwrap(method), "__code__", None)


def _names_of(codes: Iterable[CodeType | None]) -> set[str]:
    """Every name that some code calls, reads or sets, in what is nested in it too."""
    found: set[str] = set()
    for code in codes:
        if code is not None:
            found.update(code.co_names)
            found |= _names_of(each for each in code.co_consts if isinstance(each, CodeType))
    return found


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Upstream's deadlines in force, seconds.

    Attributes:
        transfer_timeout: After which a barrier gives up.
        recv_abort_timeout: After which a read in flight is given up.
        defer_timeout: After which the prefill side frees blocks nobody released.
    """

    transfer_timeout: float
    recv_abort_timeout: float
    defer_timeout: float


def deadlines(extra_config: Mapping[str, Any]) -> Deadlines:
    """Read the deadlines as upstream does: up to 0.30 the abort limit is an environment variable.

    Args:
        extra_config: ``kv_connector_extra_config``.
    """
    constants = getattr(moriio_common, "MoRIIOConstants", None)

    def of(key: str, constant: str, otherwise: float) -> float:
        return float(extra_config.get(key, getattr(constants, constant, otherwise)))

    legacy = os.environ.get("VLLM_MORIIO_TRANSFER_TIMEOUT_S")
    constant = getattr(constants, "DEFAULT_RECV_ABORT_TIMEOUT", None)
    if constant is None:
        abort = float(legacy or 120)
    else:
        abort = float(extra_config.get("recv_abort_timeout", legacy or constant))
    return Deadlines(
        transfer_timeout=of("transfer_timeout", "DEFAULT_TRANSFER_TIMEOUT", 30.0),
        recv_abort_timeout=abort,
        defer_timeout=of("defer_timeout", "DEFAULT_DEFER_TIMEOUT", 60.0),
    )


def mode_name(kv_transfer_config: Any) -> str:
    """Return ``read`` or ``write`` as upstream understands the configuration, else ``unknown``."""
    mode_of = getattr(moriio_common, "get_moriio_mode", None)
    return "unknown" if mode_of is None else str(mode_of(kv_transfer_config).value)


def is_read_consumer(kv_transfer_config: Any) -> bool:
    """Whether this configuration makes a decode engine that pulls KV cache by reads."""
    return mode_name(kv_transfer_config) == "read" and not kv_transfer_config.is_kv_producer


def reads(side: Any) -> bool:
    """Whether upstream's scheduler or worker object is on the side that reads."""
    mode = getattr(getattr(side, "mode", None), "value", None)
    return mode == "read" and not getattr(side, "is_producer", True)


def cudagraph_mode(vllm_config: Any) -> tuple[str, bool]:
    """Return the configured CUDA graph mode's name and whether it has FULL graphs."""
    mode = getattr(vllm_config.compilation_config, "cudagraph_mode", None)
    if mode is None:
        return "NONE", False
    return mode.name, bool(mode.has_full_cudagraphs())


def hides_full(vllm_config: Any) -> bool:
    """Whether the model runner hides FULL from connectors (Model Runner V2)."""
    return bool(getattr(vllm_config, "use_v2_model_runner", False))


def layer_count(vllm_config: Any) -> int:
    """How many layers the model has; 0 if its configuration does not say."""
    text_config = getattr(vllm_config.model_config, "hf_text_config", None)
    return int(getattr(text_config, "num_hidden_layers", 0) or 0)


def vllm_version() -> str:
    """Return the version vLLM gives itself."""
    import vllm

    return str(getattr(vllm, "__version__", "unknown"))


def mori_version() -> str:
    """Return the version of the mori that reads are posted with."""
    import sys

    module = sys.modules.get("mori")
    version = getattr(module, "__version__", None)
    if version is not None:
        return str(version)
    try:
        return importlib.metadata.version("amd-mori")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def layer_index(layer_name: str, position: int) -> int:
    """The index of a layer in the model, from its name, else its position among the caches."""
    found = re.search(r"(?:^|\.)(\d+)(?:\.|$)", layer_name)
    return int(found.group(1)) if found else position


# What the scheduler side tells the worker.


def attach_notes(metadata: Any, scheduler_output: Any) -> None:
    """Give the worker the scheduler's view of the step, on the metadata it already gets.

    The mapping is the scheduler's own object: in the same pickle it costs a reference.
    """
    setattr(
        metadata,
        _NOTES,
        {
            "scheduled": scheduler_output.num_scheduled_tokens,
            "loads_before_forward": getattr(scheduler_output, "has_sync_kv_loads", None),
            "ended": {
                *(getattr(scheduler_output, "finished_req_ids", None) or ()),
                *(getattr(scheduler_output, "preempted_req_ids", None) or ()),
            },
        },
    )


def read_notes(metadata: Any) -> StepNotes:
    """Return what `attach_notes` put there; a bare scheduler side leaves all unknown."""
    notes = getattr(metadata, _NOTES, None)
    return StepNotes(**notes) if notes else StepNotes()


def bound_mode(notes: StepNotes) -> str:
    """The runtime mode of the forward that is about to run, seen when metadata are bound.

    Model Runner V2 replays FULL graphs outside any forward context.
    """
    if is_forward_context_available():
        return _mode_of(get_forward_context())
    return FULL if notes.scheduled else "NONE"


def runtime_mode(forward_context: Any, load_kwargs: Mapping[str, Any], notes: StepNotes) -> str:
    """The runtime mode of the forward that is about to run, seen by ``start_load_kv``.

    Model Runner V2 hides FULL behind an empty forward context: up to 0.29 tokens are scheduled
    all the same, from 0.30 the attention metadata come as a keyword argument instead.
    """
    mode = _mode_of(forward_context)
    if mode != "NONE" or getattr(forward_context, "attn_metadata", None) is not None:
        return mode
    if load_kwargs:
        return FULL if load_kwargs.get("attn_metadata") is not None else mode
    return FULL if notes.scheduled else mode


def _mode_of(forward_context: Any) -> str:
    mode = getattr(forward_context, "cudagraph_runtime_mode", None)
    return str(getattr(mode, "name", "NONE"))


# The scheduler side.


def claims_phantom(scheduler: Any, request: Any, external_tokens: int) -> bool:
    """Whether tokens were claimed as external though no read of them will be posted."""
    return external_tokens > 0 and request.request_id not in scheduler._reqs_need_recv


def phantom_cause(request: Any) -> str:
    """Why a request's external tokens are a phantom hit."""
    return "preempted" if getattr(request, "num_preemptions", 0) else "no_params"


def overdue_sends(scheduler: Any) -> set[str]:
    """The finished prefills whose blocks are held past ``defer_timeout``."""
    now = time.monotonic()
    held = getattr(scheduler, "_deferred_send_deadlines", {})
    return {request_id for request_id, entry in held.items() if now >= _deadline(entry)}


def held_sends(scheduler: Any) -> Collection[str]:
    """The finished prefills whose blocks are held for a decode engine."""
    return getattr(scheduler, "_deferred_send_deadlines", {}).keys()


def deferred_sends(scheduler: Any) -> int:
    """How many finished prefills hold their blocks for a decode engine."""
    return len(held_sends(scheduler))


def _deadline(entry: Any) -> float:
    return float(entry[0] if isinstance(entry, tuple) else entry)


# The worker side.


@dataclass(slots=True)
class _Posting:
    """What `read_remote_data` posted for one request.

    Attributes:
        sizes: Bytes by the identity of the status.
        statuses: Held so that no identity is used twice while the request is being posted.
    """

    sizes: dict[int, int] = field(default_factory=dict)
    statuses: list[Any] = field(default_factory=list)


# In the mixins `super()` is a class of upstream's that a type checker cannot see: hence each
# `type: ignore[misc]`.


class _ObservedWorker:
    """In front of ``MoRIIOConnectorWorker``."""

    _moriio_observed: Hooks

    def _read_blocks(self, *args: Any, **kwargs: Any) -> Any:
        read_blocks = super()._read_blocks  # type: ignore[misc]
        with self._moriio_observed.posting(read_blocks, args, kwargs):
            return read_blocks(*args, **kwargs)

    def _pop_done_transfers(self) -> set[str]:
        hooks = self._moriio_observed
        before = hooks.before_clean_up()
        try:
            return super()._pop_done_transfers()  # type: ignore[misc, no-any-return]
        finally:
            hooks.after_clean_up(before)

    def _await_reads_issued_this_step(self) -> None:
        hooks = self._moriio_observed
        if hooks.bypass:
            hooks.drain_upstream_lists()
            return
        hooks.tell(hooks.observer.upstream_starts_step_wait)
        started = time.perf_counter()
        try:
            super()._await_reads_issued_this_step()  # type: ignore[misc]
        finally:
            waited_s = time.perf_counter() - started
            hooks.tell(hooks.observer.upstream_waited_before_forward, waited_s)

    def _moriio_handshake(self, *args: Any, **kwargs: Any) -> Any:
        with self._moriio_observed.handshake():
            return super()._moriio_handshake(*args, **kwargs)  # type: ignore[misc]


class _ObservedWrapper:
    """In front of ``MoRIIOWrapper``. ``send_notify`` may run with its lock held: take it never."""

    _moriio_observed: Hooks

    def read_remote_data(self, transfer_size_byte: Any, *args: Any, **kwargs: Any) -> Any:
        status = super().read_remote_data(  # type: ignore[misc]
            transfer_size_byte, *args, **kwargs
        )
        self._moriio_observed.read_posted(status, transfer_size_byte)
        return status

    def waiting_for_transfer_complete(
        self, transfer_statuses: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        self._moriio_observed.upstream_covers(transfer_statuses)
        return super().waiting_for_transfer_complete(  # type: ignore[misc]
            transfer_statuses, *args, **kwargs
        )

    def send_notify(self, *args: Any, **kwargs: Any) -> Any:
        hooks = self._moriio_observed
        try:
            return super().send_notify(*args, **kwargs)  # type: ignore[misc]
        except Exception:
            hooks.notify_failed()
            raise

    def _handle_release_message(self, data: Any) -> Any:
        hooks = self._moriio_observed
        result = super()._handle_release_message(data)  # type: ignore[misc]
        hooks.released()
        return result


class Hooks:
    """The hooks on one worker and its wrapper; `install` and `uninstall` are symmetric.

    Args:
        worker: Upstream's ``MoRIIOConnectorWorker``.
        seams: What this release offers.
        aggregate: Where what happens outside forward steps is counted.

    Attributes:
        news: Whether something was counted outside the forward steps that should leave with the
            next one.
        containment: Calls the observer; once it is broken, upstream's own barrier is in force.
        after_forward: Whether loads are being started after the forward has ended. What upstream
            waits for then is left to it.
    """

    def __init__(self, worker: Any, seams: Seams, aggregate: Aggregate) -> None:
        self.worker = worker
        self.seams = seams
        self.containment = Containment(
            aggregate,
            "upstream's own READ barrier is in force and reads are no longer observed.",
            self._give_up,
        )
        self.tell = self.containment.tell
        self.news = False
        self.after_forward = False
        self._observer: ReadObserver | None = None
        self._aggregate = aggregate
        self._posting: _Posting | None = None
        self._tracked: set[str] = set()
        self._installed: list[tuple[Any, type]] = []
        # In READ mode each of these is moved by one thread only.
        self._send_queue_full = aggregate.counter("send_queue_full_total")
        self._notify_failures = aggregate.counter("notify_failures_total")
        self._releases = aggregate.counter("releases_total")
        self._handshakes = aggregate.histogram("handshake_seconds")
        self._handshake_failures = aggregate.counter("handshake_failures_total")

    @property
    def observer(self) -> ReadObserver:
        """The observer of a decode worker in READ mode."""
        if self._observer is None:
            raise RuntimeError("only a decode worker in READ mode has an observer")
        return self._observer

    @property
    def broken(self) -> bool:
        """Whether an error of ours made us step back: upstream's own barrier is in force."""
        return self.containment.broken

    @property
    def bypass(self) -> bool:
        """Whether upstream's own waits are ours to do, or nobody's."""
        if self._observer is None or self.broken:
            return False
        placement = self._observer.placement
        return placement.ours and not (self.after_forward and placement.waits)

    def install(self, observer: ReadObserver | None) -> None:
        """Put the hooks in front of upstream's methods; a second call does nothing."""
        if self._installed:
            return
        self._observer = observer
        self._put(self.worker, _ObservedWorker if observer is not None else _ObservedProducer)
        self._put(self.worker.moriio_wrapper, _ObservedWrapper)

    def uninstall(self) -> None:
        """Take the hooks away: upstream's objects are as they were built."""
        for target, base in self._installed:
            target.__class__ = base
            del target._moriio_observed
        self._installed.clear()
        self._observer = None

    def _put(self, target: Any, mixin: type) -> None:
        base = type(target)
        if issubclass(base, (_ObservedWorker, _ObservedProducer, _ObservedWrapper)):
            raise ValueError(f"a {base.__name__} is hooked already")  # noqa: TRY004  (not a type error)
        target.__class__ = type(base.__name__, (mixin, base), {})
        target._moriio_observed = self
        self._installed.append((target, base))

    def _give_up(self) -> None:
        """Let every layer's hook reach upstream's again."""
        if self._observer is not None:
            self._observer.armed = True

    # Called by the mixins.

    @contextmanager
    def posting(self, read_blocks: Any, args: Any, kwargs: Any) -> Iterator[None]:
        """Around the posting of one request's reads."""
        posting = self._posting = _Posting()
        started = time.perf_counter()
        try:
            yield
        finally:
            self._posting = None
            post_s = time.perf_counter() - started
            self.tell(self._enter, posting, (read_blocks, args, kwargs), started, post_s)

    def _enter(
        self,
        posting: _Posting,
        called: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]],
        started: float,
        post_s: float,
    ) -> None:
        read_blocks, args, call = called
        if args:
            call = inspect.signature(read_blocks).bind(*args, **call).arguments
        request_id = call["request_id"]
        with self.worker.moriio_wrapper.lock:
            if request_id not in self.worker._recving_transfers:
                return
            by_layer = dict(self.worker._recving_transfers[request_id])
            self._tracked.add(request_id)
        reads = []
        nbytes = 0
        for position, (layer_name, statuses) in enumerate(by_layer.items()):
            for status in statuses if isinstance(statuses, list) else (statuses,):
                size = posting.sizes.get(id(status))
                if not size:
                    # Nothing to move, or not posted now.
                    continue
                nbytes += size
                reads.append((layer_index(layer_name, position), layer_name, status))
        self.observer.posted(
            request_id,
            str(call["dst_engine_id"]),
            reads,
            nbytes=nbytes,
            started_at=started,
            post_s=post_s,
        )

    def read_posted(self, status: Any, transfer_size_byte: Any) -> None:
        """One read was posted, or rejected because the send queue was full."""
        if self._posting is None:
            return
        self.tell(self._collect, self._posting, status, transfer_size_byte)

    def _collect(self, posting: _Posting, status: Any, transfer_size_byte: Any) -> None:
        if status.Failed() and "SQ full" in (status.Message() or ""):
            self._send_queue_full.inc()
        size = transfer_size_byte if isinstance(transfer_size_byte, int) else None
        posting.sizes[id(status)] = sum(transfer_size_byte) if size is None else size
        posting.statuses.append(status)

    def upstream_covers(self, statuses: Any) -> None:
        """Upstream starts a wait for these statuses."""
        if self._observer is not None and statuses is not None:
            self.tell(self._observer.upstream_covers, statuses)

    def before_clean_up(self) -> int:
        """The forward has ended; upstream is about to drop what is terminal or too old."""
        self.tell(self.observer.end_forward)
        return len(self.worker._recving_transfers)

    def after_clean_up(self, before: int) -> None:
        """Upstream may have dropped requests; `before` is how many it tracked."""
        self.tell(self._settle, before)

    def _settle(self, before: int) -> None:
        live = self.worker._recving_transfers
        dropped = []
        if len(live) != before:
            dropped = [request_id for request_id in self._tracked if request_id not in live]
            self._tracked.difference_update(dropped)
        recovers = self.seams.load_errors and not getattr(self.worker, "_has_mamba", False)
        self.observer.settle(dropped, recovers)

    def drain_upstream_lists(self) -> None:
        """Forget what upstream's own step barrier would have waited for."""
        self.worker._reads_issued_this_step = []
        if hasattr(self.worker, "_mamba_reads_this_step"):
            self.worker._mamba_reads_this_step = []

    @contextmanager
    def handshake(self) -> Iterator[None]:
        """Around one handshake with a prefill rank; runs on upstream's handshake thread."""
        started = time.perf_counter()
        try:
            yield
        except Exception:
            self._handshake_failures.inc()
            self.news = True
            raise
        self._handshakes.observe(time.perf_counter() - started)
        self.news = True

    def notify_failed(self) -> None:
        """A release could not be sent."""
        self._notify_failures.inc()
        self.news = True

    def released(self) -> None:
        """A decode engine has released blocks; runs on upstream's notify thread."""
        self._releases.inc()
        self.news = True

    # Called by the connector.

    def hookless_layers(self, target_layers: int) -> tuple[str, ...]:
        """Layers whose hook vLLM never calls, or not before the target's forward has ended.

        Recurrent state has none; a draft model's layers, numbered behind the target's or named
        ``draft_model.``, may run after the target's forward has been judged.

        Args:
            target_layers: How many layers the target model has, 0 if unknown.
        """
        is_mamba = getattr(self.worker, "_is_mamba_layer", None)
        return tuple(
            name
            for position, name in enumerate(self.worker.kv_caches)
            if (is_mamba is not None and is_mamba(name))
            or name.startswith("draft_model.")
            or 0 < target_layers <= layer_index(name, position)
        )

    def installed(self) -> dict[str, bool]:
        """Each hook that this worker should have, and whether it is in force."""
        wanted = self.seams.hooks if reads(self.worker) else self.seams.producer_hooks
        in_force = bool(self._installed) and not self.broken
        return {name: there and in_force for name, there in wanted.items()}

    def wait_all(self) -> Any:
        """``IOEngine.wait_all`` of the mori in use, or None."""
        return getattr(self.worker.moriio_engine, "wait_all", None)

    def peer_failures(self) -> list[str]:
        """The reasons of peer failures mori has seen since the last call."""
        pop = getattr(self.worker.moriio_engine, "pop_peer_failure", None)
        reasons: list[str] = []
        while pop is not None and len(reasons) < _PEER_FAILURES_PER_STEP:
            event = pop()
            if event is None:
                break
            name = str(getattr(event.reason, "name", event.reason))
            reasons.append(name if name in PEER_FAILURE_REASONS else "UNKNOWN")
            logger.warning(
                "mori reports a peer failure: %s from %s (%s)",
                name,
                event.remote_engine_key,
                event.detail,
            )
        return reasons

    def refuse_incomplete(self, site: str, outcome: Outcome | None) -> None:
        """Fail the step where upstream would: a forward on these reads must not run.

        Args:
            site: ``layer`` or ``step``, or ``between`` for a wait on reads of earlier steps.
            outcome: How the wait ended.

        Raises:
            TransferError: On 0.33 while reads are in flight after its step barrier; for hybrid
                models whenever a read has not landed, since their load errors cannot be
                recovered.
        """
        if outcome is None or not (outcome.in_flight or outcome.failed):
            return
        hybrid = self.seams.era is not Era.LAYER and getattr(self.worker, "_has_mamba", False)
        fails_step = self.seams.era is Era.STEP and site == "step" and outcome.in_flight
        if hybrid or fails_step:
            raise TransferError(
                f"MoRIIO READ barrier ({site}): {outcome.in_flight} reads in flight after "
                f"{outcome.waited_s:.1f} s, {outcome.failed} failed; failing the step."
            )

    def wait_for_everything(self, site: str) -> None:
        """Wait for every read upstream knows, without any of our own bookkeeping: it has failed.

        Raises:
            TransferError: Where upstream would, see `refuse_incomplete`.
        """
        with self.worker.moriio_wrapper.lock:
            pending = [
                status
                for by_layer in self.worker._recving_transfers.values()
                for value in by_layer.values()
                for status in (value if isinstance(value, list) else (value,))
            ]
        started = time.monotonic()
        failed = 0
        while True:
            pending = [status for status in pending if not status.Succeeded()]
            in_flight = [status for status in pending if not status.Failed()]
            failed += len(pending) - len(in_flight)
            pending = in_flight
            waited_s = time.monotonic() - started
            if not pending or waited_s > self.worker.moriio_config.transfer_timeout:
                break
            time.sleep(_FALLBACK_POLL_S)
        self.refuse_incomplete(site, Outcome(waited_s, 0, failed, len(pending)))


class _ObservedProducer:
    """In front of a worker that reads nothing: only its handshakes are observed."""

    _moriio_observed: Hooks

    def _moriio_handshake(self, *args: Any, **kwargs: Any) -> Any:
        with self._moriio_observed.handshake():
            return super()._moriio_handshake(*args, **kwargs)  # type: ignore[misc]


def effective_warning(placement: Placement, era: Era, vllm_config: Any) -> str | None:
    """What to say at start when FULL graphs are configured and nothing protects them."""
    name, has_full = cudagraph_mode(vllm_config)
    if not has_full or placement.protects_full_graphs(era, hidden_full=hides_full(vllm_config)):
        return None
    return (
        f"MoRIIO READ mode with {name} CUDA graphs and barrier {placement.value!r}: a FULL graph "
        "replay waits for no read, and may decode on KV that has not landed. Set "
        "kv_connector_extra_config.observed.barrier to 'auto' to protect it. The CUDA graph mode "
        "is left as configured."
    )
