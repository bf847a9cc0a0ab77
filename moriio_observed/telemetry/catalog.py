"""Every instrument once: name, kind, unit, help, labels, buckets.

This is the single source for what vLLM's statistics, Prometheus, OTLP, the dashboards and
`docs/metrics.md` call a number. Pure: it imports nothing but the standard library.

Attributes:
    PREFIX: What stands before every name on the way out.
    CATALOG: Every instrument by its Prometheus name without the prefix.
    WAIT_BUCKETS: Default upper bounds of the time histograms, in seconds.
    BYTE_BUCKETS: Upper bounds of the byte histogram, in bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

PREFIX = "moriio_"

# Transfer timeouts are 30 to 600 s, so the scale goes on long after a healthy wait.
WAIT_BUCKETS: tuple[float, ...] = (
    0.00005,
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    5.0,
    15.0,
    30.0,
    60.0,
    120.0,
)
BYTE_BUCKETS: tuple[float, ...] = tuple(float(64 * 1024 * 4**power) for power in range(10))

# What stands for every value beyond a limit or outside a list.
OTHER = "other"

# In this order: a step with several causes is counted under the first.
CAUSES: tuple[str, ...] = ("failed", "timeout", "gave_up", "full_graph", "no_barrier")
CERTAINTIES: tuple[str, ...] = ("certain", "possible")
ACTIONS: tuple[str, ...] = ("reported", "recomputed", "failed")
SITES: tuple[str, ...] = ("layer", "step")
RUNTIME_MODES: tuple[str, ...] = ("FULL", "PIECEWISE", "NONE")
BOOLEANS: tuple[str, ...] = ("true", "false")
PHANTOM_CAUSES: tuple[str, ...] = ("no_params", "preempted")
PHANTOM_ACTIONS: tuple[str, ...] = ("reported", "prevented")
ERROR_TYPES: tuple[str, ...] = (
    "ERR_INVALID_ARGS",
    "ERR_NOT_FOUND",
    "ERR_RDMA_OP",
    "ERR_BAD_STATE",
    "ERR_GPU_OP",
    OTHER,
)
PEER_FAILURE_REASONS: tuple[str, ...] = (
    "UNKNOWN",
    "PEER_UNREACHABLE",
    "LOCAL_QP_ERROR",
    "LOCAL_PORT_DOWN",
    "LOCAL_DEVICE_FATAL",
    "LOCAL_CQ_ERROR",
)
SIGNALS: tuple[str, ...] = ("metrics", "traces")


class Kind(StrEnum):
    """What an instrument does with a value."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Fold(StrEnum):
    """How the latest gauge values of several sources become one."""

    SUM = "sum"
    MAX = "max"
    MIN = "min"


class Scope(StrEnum):
    """Who counts, and so what the series of one engine adds up. The value ends the HELP text."""

    RANKS = "Every worker rank counts its own; the series is their sum."
    RANK = "One series per TP rank; one for all of them where the rank label is off."
    SCHEDULER = "Counted by the scheduler, once per engine."
    ALL = "Summed over the worker ranks, the scheduler and the front end."
    START = "Set once at start."


@dataclass(frozen=True, kw_only=True, slots=True)
class Instrument:
    """One metric.

    Attributes:
        name: The Prometheus name without the prefix; counters carry `_total`.
        kind: Counter, gauge or histogram.
        unit: `s`, `By`, or empty for a plain number.
        about: What is counted, and what is not seen.
        scope: Who counts.
        labels: Names beyond `model_name` and `engine`, in order.
        closed: The values of each label whose set is known beforehand. `tp_rank` and `layer`
            are closed too, but by the deployment.
        buckets: Upper bounds, or None for the bounds of the settings. Histograms only.
        fold: How gauge values of several sources become one.
    """

    name: str
    kind: Kind
    about: str
    scope: Scope
    unit: str = ""
    labels: tuple[str, ...] = ()
    closed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    buckets: tuple[float, ...] | None = None
    fold: Fold = Fold.MAX

    @property
    def help(self) -> str:
        """The HELP text."""
        return f"{self.about} {self.scope}"

    @property
    def is_open(self) -> bool:
        """Whether a label takes values nobody knows beforehand."""
        return not set(self.labels) <= {*self.closed, "tp_rank", "layer"}


def label_sets(instrument: Instrument, *, layers: int, tp_ranks: int) -> Iterator[tuple[str, ...]]:
    """Yield every label set an instrument can take, in the order of its labels.

    Args:
        instrument: What to enumerate. One with an open label yields nothing.
        layers: How many layers the model has.
        tp_ranks: How many TP ranks the engine has.
    """
    if instrument.is_open:
        return
    known = {
        "tp_rank": tuple(map(str, range(tp_ranks))),
        "layer": tuple(map(str, range(layers))),
        **instrument.closed,
    }
    yield from itertools.product(*(known[label] for label in instrument.labels))


def _counter(
    name: str,
    about: str,
    *,
    scope: Scope = Scope.RANKS,
    unit: str = "",
    labels: tuple[str, ...] = (),
    **closed: tuple[str, ...],
) -> Instrument:
    return Instrument(
        name=name,
        kind=Kind.COUNTER,
        about=about,
        scope=scope,
        unit=unit,
        labels=(*labels, *closed),
        closed=closed,
    )


def _seconds(
    name: str,
    about: str,
    *,
    labels: tuple[str, ...] = (),
    **closed: tuple[str, ...],
) -> Instrument:
    return Instrument(
        name=name,
        kind=Kind.HISTOGRAM,
        about=about,
        scope=Scope.RANK if "tp_rank" in labels else Scope.RANKS,
        unit="s",
        labels=(*closed, *labels),
        closed=closed,
    )


def _gauge(
    name: str,
    about: str,
    *,
    scope: Scope = Scope.START,
    unit: str = "",
    labels: tuple[str, ...] = (),
    fold: Fold = Fold.MAX,
) -> Instrument:
    return Instrument(
        name=name,
        kind=Kind.GAUGE,
        about=about,
        scope=scope,
        unit=unit,
        labels=labels,
        fold=fold,
    )


_INSTRUMENTS = (
    _seconds(
        "barrier_wait_seconds",
        "Time one barrier call waited. Calls without a read to wait for are not in it.",
        site=SITES,
        labels=("tp_rank",),
    ),
    _seconds(
        "step_blocked_seconds",
        "All barrier time of one forward step that had reads, 0 where none had to wait. Time spent"
        " after the host has issued the forward, for a draft model, is not in it.",
        labels=("tp_rank",),
    ),
    _counter(
        "barrier_timeouts_total",
        "Barrier calls whose deadline passed with reads in flight. Per call: a hung layer counts"
        " once in every step that waits for it.",
        site=SITES,
    ),
    _counter(
        "full_graph_skips_total",
        "Forward steps with reads that replayed a FULL CUDA graph, where no layer barrier can run,"
        " by whether another barrier protected them.",
        protected=BOOLEANS,
    ),
    _counter(
        "steps_total",
        "Forward steps seen, by the runtime mode inferred from evidence (not the one the forward"
        " context claims) and by whether they had reads.",
        runtime_mode=RUNTIME_MODES,
        reads=BOOLEANS,
    ),
    _counter(
        "unprotected_steps_total",
        "Forward steps in which attention could run on at least one read not confirmed landed, each"
        " once under its first cause; also every later step of a request that decodes on without"
        " blocks whose reads failed or were aborted. Certain: a read was in flight or had failed"
        " when the host had issued the forward, which on a GPU may be before its kernels run. A"
        " landed read whose bytes the GPU does not see yet is not noticed.",
        cause=CAUSES,
        certainty=CERTAINTIES,
    ),
    _counter(
        "unlanded_reads_total",
        "Reads not confirmed landed before the attention that consumes them could run, each once,"
        " in the first step that found it so.",
        cause=CAUSES,
        certainty=CERTAINTIES,
    ),
    _counter(
        "exposed_requests_total",
        "Requests with at least one unlanded read in a step they took part in, each once per rank"
        " that read for it. With a guard, requests it did not let run because their reads had not"
        " landed in time: no step was exposed to those. Without one also requests that shared a"
        " prefix with such a request: those are counted by the scheduler, once.",
        cause=CAUSES,
        certainty=CERTAINTIES,
        action=ACTIONS,
    ),
    _counter(
        "phantom_hits_total",
        "Requests whose tokens the connector claimed as externally cached though no read for them"
        " is ever posted.",
        scope=Scope.SCHEDULER,
        cause=PHANTOM_CAUSES,
        action=PHANTOM_ACTIONS,
    ),
    _counter(
        "late_landings_total",
        "Reads that landed after their request was gone, when its blocks could belong to another,"
        " by whether the blocks were held back from reuse until then. One that takes longer than"
        " reads are watched for is not noticed.",
        quarantined=BOOLEANS,
    ),
    _gauge(
        "quarantined_blocks",
        "KV cache blocks kept from reuse because a read may still write into them though their"
        " request has ended, or was moved to others. It stands still while the engine is idle.",
        scope=Scope.SCHEDULER,
        fold=Fold.SUM,
    ),
    _counter(
        "quarantine_expired_total",
        "Requests whose blocks were given back after the quarantine limit though nobody had seen"
        " their reads end: a read that lands even later goes unnoticed.",
        scope=Scope.SCHEDULER,
    ),
    _counter(
        "stale_reads_total",
        "Requests whose reads would come, or landed, after the prefill side may have recycled the"
        " blocks: its lease had ended, or another request of this engine had claimed the same"
        " transfer. With a guard such reads are not posted, or not trusted. Not seen: a reader in"
        " another engine, and the end of a lease that the prefill side did not tell.",
        scope=Scope.SCHEDULER,
    ),
    _counter(
        "lease_unknown_total",
        "Requests that read from a prefill side which did not tell for how long it holds what is"
        " read, as vLLM's own connector does not.",
        scope=Scope.SCHEDULER,
    ),
    _counter(
        "layer_wait_seconds_total",
        "Time layer barriers waited, by layer index.",
        unit="s",
        labels=("layer",),
    ),
    _counter(
        "layer_waits_total",
        "Layer barrier calls that had reads to wait for, by layer index.",
        labels=("layer",),
    ),
    _counter("reads_posted_total", "Reads posted: one layer of one request each."),
    _counter(
        "reads_landed_total",
        "Reads seen landed, but for those counted as aborted before. Every posted read is in flight"
        " or counted once as landed, failed or aborted.",
    ),
    _counter(
        "reads_failed_total",
        "Reads that failed for good, by the status code of mori, but for those counted as aborted"
        " before. Retries on a full send queue are not failures.",
        error_type=ERROR_TYPES,
    ),
    _counter(
        "reads_aborted_total",
        "Reads given up in flight: the receive abort timeout passed, a guard gave their request up,"
        " or they outlived a failed request and were not seen to end. They may still land, and then"
        " are late landings.",
    ),
    _counter(
        "send_queue_full_total",
        "Posts rejected because the send queue was full, and retried: backpressure, not failure.",
    ),
    _seconds(
        "request_read_seconds",
        "From the first post of one request's reads to the step that found them all landed, so by"
        " up to one step too long.",
    ),
    _seconds("post_seconds", "Time spent posting all layers of one request."),
    Instrument(
        name="request_read_bytes",
        kind=Kind.HISTOGRAM,
        about="Bytes read for one request.",
        scope=Scope.RANKS,
        unit="By",
        buckets=BYTE_BUCKETS,
    ),
    _counter(
        "remote_read_bytes_total",
        "Bytes of the requests whose reads from one remote engine all landed; remotes beyond the"
        " limit count as other.",
        unit="By",
        labels=("remote",),
    ),
    _counter(
        "remote_read_seconds_total",
        "From the first post to the step that found the last one landed, added up over the requests"
        " read from one remote engine; remotes beyond the limit count as other.",
        unit="s",
        labels=("remote",),
    ),
    _counter(
        "remote_reads_total",
        "Reads of the requests whose reads from one remote engine all landed; remotes beyond the"
        " limit count as other.",
        labels=("remote",),
    ),
    _counter("requests_total", "Requests that read, each once per rank that read for it."),
    _seconds(
        "step_seconds",
        "Time the host spent in forward steps that had reads, up to where it had issued the"
        " forward: what a wait is compared with. On a GPU the kernels may run on.",
    ),
    _gauge(
        "transfer_timeout_seconds",
        "Deadline in force for one barrier call.",
        unit="s",
    ),
    _gauge(
        "recv_abort_timeout_seconds",
        "Age in force at which the decode side gives up a request's reads.",
        unit="s",
    ),
    _gauge(
        "defer_timeout_seconds",
        "Time in force for which the prefill side holds blocks nobody released.",
        unit="s",
    ),
    _gauge(
        "full_graph_protected",
        "1 where the effective barrier protects FULL CUDA graph steps, 0 where not, absent where"
        " no FULL graph is configured.",
        fold=Fold.MIN,
    ),
    _gauge(
        "reads_in_flight",
        "Reads posted and not yet seen landed, failed or aborted. NaN after an error of our own. It"
        " stands still while the engine is idle.",
        scope=Scope.RANK,
        labels=("tp_rank",),
        fold=Fold.SUM,
    ),
    _gauge(
        "oldest_read_age_seconds",
        "Time since the first post of the oldest request with a read in flight, 0 without one. NaN"
        " after an error of our own. It stands still while the engine is idle.",
        scope=Scope.RANK,
        unit="s",
        labels=("tp_rank",),
        fold=Fold.MAX,
    ),
    _counter(
        "load_error_blocks_total",
        "Blocks reported to the scheduler as not loaded.",
    ),
    _seconds("handshake_seconds", "Time of one handshake with a remote engine."),
    _counter("handshake_failures_total", "Handshakes with a remote engine that failed."),
    _counter(
        "notify_failures_total",
        "Releases that could not be sent to the prefill side, whose blocks then wait out their"
        " defer timeout.",
    ),
    _counter(
        "peer_failures_total",
        "Dead links, queue pairs, ports and devices reported by mori (from 1.2.4; older ones report"
        " none).",
        reason=PEER_FAILURE_REASONS,
    ),
    _counter("releases_total", "Releases received by the prefill side from decode engines."),
    _gauge(
        "deferred_sends",
        "Requests whose blocks the prefill side holds for a decode engine to read.",
        scope=Scope.SCHEDULER,
        fold=Fold.SUM,
    ),
    _counter(
        "deferred_sends_expired_total",
        "Requests whose blocks the prefill side took back because no release came in time.",
        scope=Scope.SCHEDULER,
    ),
    _gauge(
        "config_info",
        "Always 1: what is running, in the labels.",
        labels=(
            "role",
            "mode",
            "cudagraph_mode",
            "barrier",
            "guard",
            "vllm_version",
            "mori_version",
            "version",
        ),
    ),
    _gauge(
        "hook_installed",
        "1 where the hook is in force on every rank that needs it; 0 where one could not install it"
        " on this vLLM, or stepped back after an error of our own, and its numbers stand still. Not"
        " there before the engine's first step.",
        labels=("hook",),
        fold=Fold.MIN,
    ),
    _counter(
        "telemetry_errors_total",
        "Errors of our own telemetry, swallowed so that serving goes on.",
        scope=Scope.ALL,
        signal=SIGNALS,
    ),
    _counter(
        "telemetry_dropped_total",
        "Spans of our own that did not arrive: a queue was full, or a collector did not take them;"
        " and metric points that a collector refused. What it merely did not hear is sent again.",
        scope=Scope.ALL,
        signal=SIGNALS,
    ),
    _counter(
        "telemetry_overhead_seconds_total",
        "Our own time at the beginning, before the forward, at the end and after the clean-up of"
        " each step in which reads are in flight or something is to be told of them, waits not"
        " included. Idle steps, posting, the look in each layer's hook and the making of the"
        " statistics are not in it.",
        unit="s",
    ),
)

CATALOG: Mapping[str, Instrument] = MappingProxyType(
    {instrument.name: instrument for instrument in _INSTRUMENTS}
)
