"""The troubles a log can be a sign of: what each is, why it matters and what to do."""

from __future__ import annotations

from dataclasses import dataclass

from moriio_observed.doctor.findings import Severity, runbook
from moriio_observed.doctor.messages import Kind


@dataclass(frozen=True, slots=True)
class Trouble:
    """What may have happened.

    Attributes:
        name: Its name, for machines.
        severity: How bad it is.
        cause: What happened, in one sentence.
        why: Why it matters.
        do: What to do.
        see: Runbooks and documents.
    """

    name: str
    severity: Severity
    cause: str
    why: str
    do: str
    see: tuple[str, ...]


HUNG = Trouble(
    "log-hung-reads",
    Severity.CRITICAL,
    "a read hung: it ran into the barrier's deadline",
    "Every barrier that gives up stalls all requests of the engine for the whole deadline. Up to "
    "vLLM 0.32 the forward then runs on KV that has not landed, so answers from that time on may "
    "be wrong with HTTP 200; on 0.33 the step fails, and the engine with it. A read that is given "
    "up is not cancelled: it may still land, in blocks that belong to another request by then.",
    "Look for a dead link or prefill engine first, at that rank and in those minutes; a prefill "
    "engine restarted on the same address wants its decode engines restarted. So that no wrong "
    "token is served next time: our connector with observed.guard 'recompute' or 'fail', equal to "
    "kv_load_failure_policy. Treat the answers of the requests named, and of those that ran beside "
    "them, as suspect.",
    (runbook("MoriioBarrierTimeouts"), runbook("MoriioRecvAborts"), "docs/guard.md"),
)
READS_FAIL = Trouble(
    "log-failed-reads",
    Severity.CRITICAL,
    "reads failed",
    "Up to vLLM 0.30 a request whose read has failed is answered from what is in memory, with HTTP "
    "200. From 0.31 on vLLM's kv_load_failure_policy applies; with asynchronous scheduling its "
    "recompute is wrong all the same, and up to 0.32 the barrier gives up healthy reads of other "
    "requests with it.",
    "See by the code and the remote whether it is one card, one link or one prefill engine. With "
    "observed.guard 'recompute' or 'fail' no wrong token is served.",
    (runbook("MoriioReadsFailing"), "docs/guard.md"),
)
QUEUE = Trouble(
    "log-send-queue-full",
    Severity.WARNING,
    "the send queue stayed full until the deadline",
    "A full queue is backpressure and is retried; one that stays full for transfer_timeout ends "
    "as a failed read, with all that follows from it.",
    "Raise qp_per_transfer, or lower the decode engine's concurrency (--max-num-seqs).",
    (runbook("MoriioSendQueueFull"),),
)
REAPED = Trouble(
    "log-reaped-sends",
    Severity.WARNING,
    "the prefill engine took blocks back that no decode engine had released",
    "Decode engines that never came, could not say that they had read, or were late. A read that "
    "comes after that succeeds and brings another request's KV.",
    "See which decode engine is missing. Keep the prefill side's defer_timeout above the decode "
    "side's recv_abort_timeout.",
    (runbook("MoriioDeferredSendsExpired"), runbook("MoriioStaleReads")),
)
NOTIFY = Trouble(
    "log-notify-failures",
    Severity.WARNING,
    "the decode engine could not tell the prefill engine that it had read",
    "The prefill engine's blocks wait out defer_timeout; under load it runs out of them.",
    "Check that the decode engine reaches the prefill engine's notify ports (notify_port and one "
    "for each rank above it).",
    (runbook("MoriioNotifyFailures"),),
)
HANDSHAKE = Trouble(
    "log-handshake-failures",
    Severity.CRITICAL,
    "a handshake between the engines failed",
    "Without it nothing can be read from that engine; the step fails, or its requests do.",
    "Check that the remote's handshake ports (handshake_port and one for each rank above it) "
    "answer, and that both sides run the same model, and releases of vLLM that understand each "
    "other.",
    (runbook("MoriioHandshakeFailures"), "docs/rollouts.md"),
)
ROUTER = Trouble(
    "log-router",
    Severity.CRITICAL,
    "requests came to the engine without what a read needs",
    "The router does not do READ: there the prefill must have ended before the request is sent on "
    "with the prefill engine's answer. Up to vLLM 0.32 the connector claims KV for such a request "
    "and nobody reads it: it decodes on memory that nobody filled.",
    "Use a router that does READ, such as vLLM's moriio_toy_proxy_server.py, and send nothing to a "
    "decode engine past it.",
    (runbook("MoriioPhantomHits"),),
)
RANK_UNNAMED = Trouble(
    "log-router-rank",
    Severity.WARNING,
    "the router did not say which data-parallel rank of the prefill engine holds the KV",
    "Rank 0 is taken, which is wrong for all others: reads go to, or releases reach, the wrong "
    "rank.",
    "The router must set remote_dp_rank, and send both legs to that rank (X-data-parallel-rank).",
    (runbook("MoriioPhantomHits"),),
)
UNEVEN = Trouble(
    "log-uneven-tp",
    Severity.CRITICAL,
    "vLLM refuses to transfer between these tensor-parallel sizes",
    "No KV passes between the two engines.",
    "Give both sides the same --tensor-parallel-size.",
    ("docs/doctor.md",),
)
DISCOVERY = Trouble(
    "log-discovery",
    Severity.WARNING,
    "the engine cannot reach the router that it announces itself to",
    "The router forgets the engine, or never learns of it.",
    "Check proxy_ip and proxy_ping_port, and that the router runs.",
    ("docs/doctor.md",),
)
FULL = Trouble(
    "log-full-graphs",
    Severity.CRITICAL,
    "FULL CUDA graphs run without a barrier",
    "A replay runs no Python between layers, so nothing waits for a read in it. With vLLM's own "
    "message, our barrier protects such steps if our connector is used with barrier 'auto'.",
    "Use our connector with observed.barrier 'auto', or cudagraph_mode PIECEWISE.",
    (runbook("MoriioFullGraphUnprotected"), "docs/versions.md"),
)
EXPOSURE = Trouble(
    "log-exposures",
    Severity.CRITICAL,
    "requests ran on KV that had not verifiably landed",
    "Their answers may be wrong; those with the action 'reported' went out.",
    "The cause is in each line; a guard keeps such answers from going out.",
    (runbook("MoriioUnprotectedSteps"), "docs/guard.md"),
)
PHANTOMS = Trouble(
    "log-phantom-hits",
    Severity.CRITICAL,
    "requests claimed KV that nobody read for them",
    "They decoded on memory that nobody filled, but for those with the action 'prevented'.",
    "no_params: send nothing to a decode engine past the router. preempted: give it more KV cache. "
    "A guard computes them on the decode engine.",
    (runbook("MoriioPhantomHits"), "docs/guard.md"),
)
STALE = Trouble(
    "log-stale-reads",
    Severity.CRITICAL,
    "requests read KV that the prefill engine may have given to others by then",
    "The read succeeds, and brings another request's KV.",
    "Keep the prefill side's defer_timeout above the decode side's recv_abort_timeout, and let the "
    "router use a transfer once only. A guard computes such requests on the decode engine.",
    (runbook("MoriioStaleReads"), "docs/guard.md"),
)
REFUSED = Trouble(
    "log-settings-refused",
    Severity.CRITICAL,
    "moriio_observed refused its settings, and the engine did not start",
    "Nothing is served.",
    "The lines behind it name each key, its value and the right form.",
    ("docs/settings.md",),
)
PEER = Trouble(
    "log-peer-failures",
    Severity.CRITICAL,
    "mori reported a dead peer, link, queue pair or device",
    "Reads to it fail or hang until their deadline.",
    "The reason says which. A prefill engine that restarted wants its decode engines restarted.",
    (runbook("MoriioPeerFailures"),),
)
UNKNOWN_VLLM = Trouble(
    "log-unknown-vllm",
    Severity.CRITICAL,
    "this vLLM's MoRIIO connector is not as moriio_observed knows it",
    "It runs as vLLM wrote it: nothing is observed, and nothing of ours protects it.",
    "Use a release that is supported; the reason says what is different.",
    (runbook("MoriioHookMissing"), "docs/versions.md"),
)
OWN_FAILURE = Trouble(
    "log-own-failure",
    Severity.CRITICAL,
    "our own code failed and stepped back until the engine restarts",
    "Serving goes on as upstream has it; our numbers stand still.",
    "Restart the engine when you can, and report what stands behind the line in the log.",
    (runbook("MoriioTelemetryErrors"),),
)

TROUBLES = {
    Kind.LAYER_TIMEOUT: HUNG,
    Kind.LAYER_GAVE_UP: HUNG,
    Kind.OUR_TIMEOUT: HUNG,
    Kind.STEP_GAVE_UP: HUNG,
    Kind.STEP_FAILED: HUNG,
    Kind.HYBRID_FAILED: HUNG,
    Kind.ABORT: HUNG,
    Kind.FAILED_READ: READS_FAIL,
    Kind.QUEUE_FULL: QUEUE,
    Kind.REAPED: REAPED,
    Kind.NOTIFY_FAILED: NOTIFY,
    Kind.HANDSHAKE_FAILED: HANDSHAKE,
    Kind.BAD_PARAMS: ROUTER,
    Kind.NO_RANK: RANK_UNNAMED,
    Kind.UNEVEN_TP: UNEVEN,
    Kind.DISCOVERY_LOST: DISCOVERY,
    Kind.FULL_GRAPHS: FULL,
    Kind.EXPOSED: EXPOSURE,
    Kind.PHANTOM: PHANTOMS,
    Kind.STALE: STALE,
    Kind.REFUSED: REFUSED,
    Kind.PEER_LOST: PEER,
    Kind.UNKNOWN: UNKNOWN_VLLM,
    Kind.STEPPED_BACK: OWN_FAILURE,
}
"""What each message is a sign of."""
