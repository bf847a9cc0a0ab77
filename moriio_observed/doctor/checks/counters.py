"""Counters of a running server that are 0 where all is well."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from moriio_observed.doctor.findings import Finding, Place, Severity, runbook
from moriio_observed.doctor.server import Server
from moriio_observed.telemetry.catalog import PREFIX


@dataclass(frozen=True, slots=True)
class Counted:
    """A counter that is 0 where all is well.

    Attributes:
        metric: Its name.
        labels: What of it counts.
        severity: How bad it is above 0.
        what: What it says then.
        do: What to do.
        alert: Whose runbook says more.
    """

    metric: str
    labels: dict[str, str]
    severity: Severity
    what: str
    do: str
    alert: str


_CRITICAL, _WARNING = Severity.CRITICAL, Severity.WARNING
COUNTED: tuple[Counted, ...] = (
    Counted(
        "exposed_requests_total",
        {"action": "reported"},
        _CRITICAL,
        "requests were answered from KV that had not verifiably landed",
        "Set observed.guard to 'recompute' or 'fail', with the same kv_load_failure_policy, "
        "and see that observed.barrier is 'auto'; the log has the request ids of the answers "
        "in doubt.",
        "MoriioUnprotectedSteps",
    ),
    Counted(
        "phantom_hits_total",
        {"action": "reported"},
        _CRITICAL,
        "requests were answered from KV that nobody read for them",
        "no_params: send nothing to a decode engine past the router, and probe /health. "
        "preempted: give it more KV memory, or fewer sequences. A guard computes them on the "
        "decode engine.",
        "MoriioPhantomHits",
    ),
    Counted(
        "stale_reads_total",
        {},
        _CRITICAL,
        "requests came to read KV that the prefill engine may have recycled",
        "Turn on a guard, and shorten the queue of the decode engine; a retry must begin at "
        "the prefill engine.",
        "MoriioStaleReads",
    ),
    Counted(
        "late_landings_total",
        {"quarantined": "false"},
        _CRITICAL,
        "reads landed in blocks that others may have had by then",
        "Turn on a guard. Until then fewer sequences (--max-num-seqs), or more KV memory.",
        "MoriioLateLandings",
    ),
    Counted(
        "barrier_timeouts_total",
        {},
        _CRITICAL,
        "barriers ran into their deadline",
        "If it goes on: drain the decode engine, or take the remote out of the router. A "
        "prefill engine that was restarted wants its decode engines restarted.",
        "MoriioBarrierTimeouts",
    ),
    Counted(
        "reads_aborted_total",
        {},
        _WARNING,
        "reads were given up",
        "As for barriers that run into their deadline: find the link or the prefill engine "
        "that hangs.",
        "MoriioRecvAborts",
    ),
    Counted(
        "reads_failed_total",
        {},
        _WARNING,
        "reads failed",
        "By the error type and the remote: take that prefill engine out of the router, or "
        "drain this engine. A guard keeps what failed from being answered.",
        "MoriioReadsFailing",
    ),
    Counted(
        "handshake_failures_total",
        {},
        _WARNING,
        "handshakes failed",
        "Check that the handshake ports of the prefill engine can be reached, host_ip, and "
        "that both sides' releases fit.",
        "MoriioHandshakeFailures",
    ),
    Counted(
        "notify_failures_total",
        {},
        _WARNING,
        "releases could not be sent",
        "Check that the notify ports of the prefill engine can be reached. One that is gone "
        "needs nothing.",
        "MoriioNotifyFailures",
    ),
    Counted(
        "peer_failures_total",
        {},
        _WARNING,
        "links or devices were lost",
        "Take the remote out of the router, or have this host's card or port looked at, by "
        "the reason. A prefill engine that came back wants its decode engines restarted.",
        "MoriioPeerFailures",
    ),
    Counted(
        "deferred_sends_expired_total",
        {},
        _WARNING,
        "blocks were taken back that no decode engine had released",
        "See which decode engine went missing, shorten the queues, and use a guard there.",
        "MoriioDeferredSendsExpired",
    ),
    Counted(
        "quarantine_expired_total",
        {},
        _WARNING,
        "blocks left quarantine with reads unaccounted for",
        "Restart the decode engine if it goes on and no remote has died.",
        "MoriioQuarantineExpired",
    ),
    Counted(
        "telemetry_errors_total",
        {},
        _WARNING,
        "our own code failed",
        "Restart the engine at the next good moment, and report the line in its log.",
        "MoriioTelemetryErrors",
    ),
    Counted(
        "telemetry_dropped_total",
        {},
        _WARNING,
        "telemetry was dropped",
        "See that the collector takes what is sent, or lower otlp.sample_ratio.",
        "MoriioTelemetryDropped",
    ),
)
"""In the order a person on call would ask."""
CAUGHT = frozenset({"stale_reads_total", "barrier_timeouts_total"})
"""What a guard keeps from being answered wrong; it is counted all the same."""


def check(server: Server) -> Iterator[Finding]:
    """What a server has counted since its start that should have stayed 0."""
    guarded = server.info.get("guard", "report") != "report"
    for each in COUNTED:
        total = server.page.total(PREFIX + each.metric, **each.labels)
        if total > 0:
            yield Finding(
                each.metric.removesuffix("_total").replace("_", "-"),
                Severity.WARNING if guarded and each.metric in CAUGHT else each.severity,
                f"{each.what}: {total:g} since the server started",
                tuple(_shares(server, each)),
                "It may be over: the counter does not say when.",
                each.do,
                (runbook(each.alert),),
                server.url,
            )


def _shares(server: Server, counted: Counted) -> Iterator[Place]:
    for labels, value in server.page.of(PREFIX + counted.metric, **counted.labels):
        if value > 0:
            own = {k: v for k, v in labels.items() if k not in ("model_name", "engine")}
            inside = ", ".join(f"{name}={text}" for name, text in own.items())
            name = PREFIX + counted.metric
            yield Place(f"{name}{{{inside}}}" if inside else name, f"{value:g}")
