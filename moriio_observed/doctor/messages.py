"""What vLLM's MoRIIO connector writes to the log when reads go wrong, and since which release.

The texts are upstream's, with its placeholders; `tests/contract/test_doctor_facts.py` finds each in
the sources of the releases it names, of those we support, and in no other.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from functools import cached_property


class Kind(enum.Enum):
    """What a message tells."""

    LAYER_TIMEOUT = "a layer's barrier ran into its deadline"
    LAYER_GAVE_UP = "a layer's barrier gave up"
    OUR_TIMEOUT = "our barrier ran into its deadline"
    STEP_GAVE_UP = "the barrier before the forward gave up"
    STEP_FAILED = "the step failed with reads in flight"
    HYBRID_FAILED = "the step failed, as a hybrid's must"
    ABORT = "a request's reads were given up"
    FAILED_READ = "a read failed"
    QUEUE_FULL = "the send queue stayed full"
    REAPED = "the prefill side took blocks back"
    NOTIFY_FAILED = "a release could not be sent"
    HANDSHAKE_FAILED = "a handshake failed"
    BAD_PARAMS = "a request came without what a read needs"
    NO_RANK = "a request did not say which prefill rank to read from"
    UNEVEN_TP = "the two sides' tensor parallelism does not fit"
    DISCOVERY_LOST = "the router cannot be reached"
    FULL_GRAPHS = "FULL CUDA graphs are not protected"
    EXPOSED = "a request ran on KV that had not landed"
    PHANTOM = "a request claimed KV that nobody read"
    STALE = "a request read KV that may have been recycled"
    REFUSED = "moriio_observed refused its settings"
    PEER_LOST = "mori lost a peer, a link or a device"
    UNKNOWN = "moriio_observed does not know this vLLM"
    STEPPED_BACK = "moriio_observed failed and stepped back"
    TIMED_OUT = "more of a barrier's message: the deadline passed"
    FAILED = "more of a barrier's message: a read had failed"
    SHARE = "more of a barrier's message: how many reads"


_PLACEHOLDER = re.compile(r"%(?:\.\d)?[sdrf]")


@dataclass(frozen=True)
class Message:
    """One message, or a telling part of one.

    Attributes:
        kind: What it tells.
        text: What it says, with printf's placeholders.
        fields: What stands in for each placeholder; "" for what is of no interest.
        since: The first release with it; empty for our own.
        until: The last one.
    """

    kind: Kind
    text: str
    fields: tuple[str, ...] = ()
    since: str = "0.27"
    until: str = "0.33"

    @cached_property
    def literals(self) -> tuple[str, ...]:
        """The text between the placeholders."""
        return tuple(_PLACEHOLDER.split(self.text))

    @cached_property
    def anchor(self) -> str:
        """The longest of them: a line without it is another message."""
        return max(self.literals, key=len)

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Finds the message and what stands in for its placeholders."""
        pattern = re.escape(self.literals[0])
        for kind, literal in zip(_PLACEHOLDER.findall(self.text), self.literals[1:], strict=True):
            pattern += (r"(-?\d+)" if kind == "%d" else "(.*?)") + re.escape(literal)
        return re.compile(pattern + "$" if self.literals[-1] == "" else pattern)

    def find(self, line: str) -> dict[str, str] | None:
        """What a line says for each field; None if it is another message."""
        if self.anchor not in line or (found := self.pattern.search(line)) is None:
            return None
        given = zip(self.fields, found.groups(), strict=True)
        return {name: value.strip() for name, value in given if name}


MESSAGES: tuple[Message, ...] = (
    Message(
        Kind.LAYER_TIMEOUT,
        "MoRIIO READ barrier timed out for layer %s; proceeding",
        ("layer",),
        since="0.28",
        until="0.30",
    ),
    Message(
        Kind.LAYER_GAVE_UP,
        "MoRIIO READ barrier did not complete for layer %s; proceeding to transfer cleanup.",
        ("layer",),
        since="0.31",
        until="0.32",
    ),
    Message(
        Kind.STEP_GAVE_UP,
        "MoRIIO reads did not complete before the forward; proceeding to transfer cleanup.",
        since="0.31",
    ),
    Message(
        Kind.STEP_FAILED,
        "MoRIIO READ barrier failed with %d/%d reads still in flight; failing the step.",
        ("open", "waited"),
        since="0.33",
    ),
    Message(
        Kind.HYBRID_FAILED,
        "MoRIIO hybrid READ failed before layer %s; aborting the forward",
        ("layer",),
        since="0.31",
        until="0.32",
    ),
    Message(
        Kind.HYBRID_FAILED,
        "MoRIIO hybrid READ failed before the forward; aborting",
        since="0.31",
    ),
    Message(
        Kind.ABORT,
        "RDMA read TIMED OUT for req %s after %.1fs (VLLM_MORIIO_TRANSFER_TIMEOUT_S=%d)",
        ("request", "age", "limit"),
        since="0.28",
        until="0.30",
    ),
    Message(
        Kind.ABORT,
        "RDMA read TIMED OUT for req %s after %.1fs (kv_connector_extra_config.recv_abort_timeout="
        "%.0f)",
        ("request", "age", "limit"),
        since="0.31",
    ),
    Message(
        Kind.FAILED_READ,
        "RDMA transfer failed for request %s: %s (code=%s). Notifying prefill to free blocks",
        ("request", "reason", "code"),
    ),
    Message(
        Kind.QUEUE_FULL,
        "MoRIIO READ send queue stayed full past transfer_timeout for req %s layer %s; storing"
        " failed status",
        ("request", "layer"),
    ),
    Message(
        Kind.REAPED,
        "Reaped %d deferred sends with no finished_sending notification after %.0fs.",
        ("count", "limit"),
    ),
    Message(Kind.NOTIFY_FAILED, "Failed to send error notification for request %s", ("request",)),
    Message(Kind.NOTIFY_FAILED, "Failed to send notification to %s: %s", ("remote", "reason")),
    Message(Kind.NOTIFY_FAILED, "Missing remote_ip or remote_port for notification"),
    Message(
        Kind.HANDSHAKE_FAILED, "Eager MoRIIO handshake failed for %s on at least one", ("remote",)
    ),
    Message(Kind.HANDSHAKE_FAILED, "Eager MoRIIO handshake failed for %s", ("remote",)),
    Message(Kind.HANDSHAKE_FAILED, "Handshake with %s failed", ("remote",)),
    Message(Kind.HANDSHAKE_FAILED, "handshake failed, unexpected msg type"),
    Message(
        Kind.BAD_PARAMS,
        "Got invalid KVTransferParams: %s. This request will not utilize KVTransfer",
        ("reason",),
    ),
    Message(
        Kind.BAD_PARAMS,
        "request_id %s does not embed a peer zmq_address and kv_transfer_params",
        ("request",),
        since="0.28",
    ),
    Message(
        Kind.NO_RANK,
        "MoRI-IO decode notify: remote_dp_size=%d but the router did not pin remote_dp_rank for"
        " request %s; defaulting to rank 0.",
        ("", "request"),
        since="0.28",
    ),
    Message(
        Kind.UNEVEN_TP,
        "MoRIIO heterogeneous TP requires replicated KV heads on both prefill and decode. Got"
        " total_num_kv_heads=%s, local_tp_size=%s, remote_tp_size=%s.",
        ("heads", "local", "remote_size"),
    ),
    Message(
        Kind.UNEVEN_TP,
        "remote tp_size %s must be a multiple of local tp_size %s for heterogeneous-TP P/D",
        ("remote_size", "local"),
    ),
    Message(
        Kind.UNEVEN_TP,
        "local tp_size %s must be a multiple of remote tp_size %s for heterogeneous-TP P/D",
        ("local", "remote_size"),
    ),
    Message(
        Kind.UNEVEN_TP,
        "heterogeneous-TP mamba/KDA transfer is not supported yet (local_tp=%s, remote_tp=%s)",
        ("local", "remote_size"),
        since="0.31",
    ),
    Message(
        Kind.DISCOVERY_LOST,
        "Max retries (%s) exceeded. Stopping ping loop.",
        ("count",),
        until="0.31",
    ),
    Message(
        Kind.DISCOVERY_LOST,
        "MoRIIO discovery heartbeat exited with code %s",
        ("code",),
        since="0.32",
    ),
    Message(
        Kind.FULL_GRAPHS,
        "MoRIIO READ mode is running with %s CUDA graphs: per-layer KV-read barrier can't fire",
        ("mode",),
        since="0.28",
        until="0.30",
    ),
    Message(Kind.TIMED_OUT, "RDMA transfer timed out after %ss", ("deadline",)),
    Message(Kind.FAILED, "RDMA transfer failed: %s (code=%s)", ("reason", "code")),
    Message(Kind.SHARE, "%d/%d transfers failed:", ("open", "waited")),
    Message(
        Kind.FULL_GRAPHS,
        "MoRIIO READ mode with %s CUDA graphs and barrier %s: a FULL graph replay waits for no",
        ("mode", "barrier"),
        since="",
    ),
    Message(
        Kind.OUR_TIMEOUT,
        "MoRIIO READ barrier (%s) timed out after %.1f s with %d of %d reads in flight.",
        ("", "deadline", "open", "waited"),
        since="",
    ),
    Message(
        Kind.PEER_LOST,
        "mori reports a peer failure: %s from %s (%s)",
        ("reason", "remote", ""),
        since="",
    ),
    Message(
        Kind.UNKNOWN,
        "This vLLM's MoRIIO connector is not one that moriio_observed knows (%s); it runs as",
        ("reason",),
        since="",
    ),
    Message(
        Kind.STEPPED_BACK,
        "moriio_observed failed and steps back until the engine restarts: %s",
        ("reason",),
        since="",
    ),
    Message(Kind.EXPOSED, "moriio_exposure %s", ("facts",), since=""),
    Message(Kind.PHANTOM, "moriio_phantom_hit %s", ("facts",), since=""),
    Message(Kind.STALE, "moriio_stale_read %s", ("facts",), since=""),
    Message(Kind.REFUSED, "bad moriio_observed settings:%s", ("reason",), since=""),
)
"""In the order they are looked for: the first that is found is it."""


def recognise(line: str) -> tuple[Message, dict[str, str]] | None:
    """The message in a line, and what it says for each field; None if there is none."""
    for message in MESSAGES:
        fields = message.find(line)
        if fields is not None:
            return message, fields
    return None
