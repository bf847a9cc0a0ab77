"""Whether the two sides fit each other: mode, and tensor-parallel sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from moriio_observed.doctor.engines import Connector, Engine
from moriio_observed.doctor.findings import Finding, Place, Severity


def check(engines: Sequence[Engine]) -> Iterator[Finding]:
    """Whether vLLM would pass KV from each prefill engine to each decode engine."""
    connectors = [connector for engine in engines for connector in engine.connectors]
    decodes = [connector for connector in connectors if connector.role == "kv_consumer"]
    prefills = [connector for connector in connectors if connector.role == "kv_producer"]
    for prefill in prefills:
        for decode in decodes:
            if prefill.read_mode != decode.read_mode:
                yield _modes(prefill, decode)
            elif decode.read_mode:
                yield from _sizes(prefill, decode)


def _modes(prefill: Connector, decode: Connector) -> Finding:
    return Finding(
        "modes-differ",
        Severity.CRITICAL,
        "one side is in READ mode and the other in WRITE",
        tuple(
            Place(f"read_mode ({side.engine.name})", "READ" if side.read_mode else "WRITE")
            for side in (prefill, decode)
        ),
        "Neither moves the KV, or the router refuses the second to announce itself.",
        'Give both "read_mode": true, or neither.',
        ("docs/doctor.md",),
        f"{prefill.engine.name}, {decode.engine.name}",
    )


def _sizes(prefill: Connector, decode: Connector) -> Iterator[Finding]:
    sizes = (prefill.engine.tensor_parallel, decode.engine.tensor_parallel)
    small, large = min(sizes), max(sizes)
    # A configuration alone does not tell the size.
    if small == large or not (prefill.engine.whole_command and decode.engine.whole_command):
        return
    model = decode.engine.model if decode.engine.model.kv_heads else prefill.engine.model
    if large % small:
        reason, severity = f"{large} is no multiple of {small}", Severity.CRITICAL
    elif model.latent or (model.kv_heads is not None and model.kv_heads <= small):
        return
    elif model.kv_heads is not None:
        reason = f"the model has {model.kv_heads} KV heads, more than {small} ranks hold whole"
        severity = Severity.CRITICAL
    else:
        reason = f"unless the model is an MLA one or has at most {small} KV heads (--kv-heads)"
        severity = Severity.WARNING
    yield Finding(
        "uneven-tp",
        severity,
        f"vLLM refuses reads between these tensor-parallel sizes: {reason}",
        (
            Place(f"--tensor-parallel-size ({prefill.engine.name})", str(sizes[0])),
            Place(f"--tensor-parallel-size ({decode.engine.name})", str(sizes[1])),
        ),
        "MoRIIO can read between unequal sizes only where every rank holds all of a head's KV, so "
        "that one rank of the other side has all it needs. Hybrids need equal sizes always.",
        "Give both sides the same --tensor-parallel-size.",
        ("docs/doctor.md",),
        f"{prefill.engine.name}, {decode.engine.name}",
    )
