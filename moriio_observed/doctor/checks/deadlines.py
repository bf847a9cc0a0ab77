"""Deadlines that undo each other, within an engine and between the two sides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from moriio_observed.doctor.engines import EXTRA, Connector, Engine, number
from moriio_observed.doctor.findings import Finding, Place, Severity, runbook
from moriio_observed.doctor.versions import ABORT_VARIABLE, DEADLINES

VLLMS = (
    "These are vLLM's defaults. With our connector on both sides such reads are counted and told."
)
"""Why the defaults are a note: longer leases cost the prefill engine memory, and it is seen."""


def check(engines: Sequence[Engine]) -> Iterator[Finding]:
    """Whether the prefill side holds blocks for as long as the decode side may read them."""
    connectors = [connector for engine in engines for connector in engine.connectors]
    readers = [connector for connector in connectors if connector.reads]
    senders = [connector for connector in connectors if connector.sends]
    for reader in readers:
        yield from _abort_setting(reader)
        yield from _order(reader)
        # Without the other side the reader's own value is the best guess of it.
        for sender in senders or [reader]:
            yield from _lease(reader, sender)
    if not readers:
        for sender in senders:
            yield from _lease(sender, sender)


def _lease(reader: Connector, sender: Connector) -> Iterator[Finding]:
    limit, held = abort_limit(reader), sender.seconds("defer_timeout")
    if limit is None or held is None or held >= limit[0]:
        return
    seconds, place = limit
    settings = reader.settings
    guarded = reader.is_ours and settings is not None and settings.guard != "report"
    covered = guarded and sender.is_ours and sender is not reader
    guess = sender is reader
    upstreams = are_vllms(held=held, limit=seconds)
    yield Finding(
        "lease-shorter-than-reads",
        Severity.NOTE if covered or upstreams else Severity.WARNING,
        f"the prefill side frees blocks after {held:g} s, the decode side may read them for "
        f"{seconds:g} s",
        (
            Place(
                sender.key(EXTRA, "defer_timeout") + ("" if guess else f" ({sender.engine.name})"),
                _shown(sender, "defer_timeout"),
            ),
            place,
        ),
        "A read that comes, or lands, in between succeeds and brings another request's KV: a wrong "
        "answer that no barrier can see. It takes a request that waits, or a read that hangs, for "
        f"{held:g} s."
        + (f" {VLLMS}" if upstreams else "")
        + (" With the guard and our connector on both sides it is not trusted." if covered else "")
        + (" (The other side's configuration was not given.)" if guess else ""),
        f"Set defer_timeout on the prefill engine to more than {seconds:g} (its blocks are then "
        "held for that long if a decode engine dies), or recv_abort_timeout on the decode engine "
        "to less.",
        (runbook("MoriioStaleReads"), "docs/doctor.md#deadlines"),
        reader.engine.name,
    )


def are_vllms(*, held: float, limit: float) -> bool:
    """Whether two deadlines are vLLM's defaults, which everybody has who has set neither."""
    return (held, limit) == (DEADLINES["defer_timeout"], DEADLINES["recv_abort_timeout"])


def abort_limit(connector: Connector) -> tuple[float, Place] | None:
    """After how many seconds a read is given up, and what says so; None if never, or unknown."""
    engine, facts = connector.engine, connector.engine.facts
    variable = engine.environ.get(ABORT_VARIABLE)
    keyed = facts is None or facts.abort_key
    if facts is not None and not facts.aborts:
        return None
    if keyed and "recv_abort_timeout" in connector.extra:
        seconds = connector.seconds("recv_abort_timeout")
        place = Place(connector.key(EXTRA, "recv_abort_timeout"), str(seconds))
    elif variable:
        seconds = number(variable)
        place = Place(ABORT_VARIABLE, variable)
    else:
        seconds = DEADLINES["recv_abort_timeout"]
        place = Place(connector.key(EXTRA, "recv_abort_timeout"), f"{seconds:g} (by default)")
    return None if seconds is None else (seconds, place)


def _abort_setting(reader: Connector) -> Iterator[Finding]:
    """Where the abort limit stands differs: up to 0.30 in the environment only."""
    engine, facts = reader.engine, reader.engine.facts
    variable, keyed = engine.environ.get(ABORT_VARIABLE), "recv_abort_timeout" in reader.extra
    if facts is not None and keyed and not facts.abort_key:
        yield Finding(
            "ignored-key",
            Severity.WARNING,
            f"vLLM {engine.version} passes over recv_abort_timeout",
            (Place(reader.key(EXTRA, "recv_abort_timeout"), _shown(reader, "recv_abort_timeout")),),
            "It is read from 0.31 on; the limit here is that of the environment variable, or 120 s."
            if facts.aborts
            else "No read is ever given up there.",
            f"Set {ABORT_VARIABLE} (whole seconds) in the environment."
            if facts.aborts
            else "Upgrade.",
            ("docs/doctor.md#deadlines",),
            engine.name,
        )
    elif variable is not None and facts is not None and facts.abort_key:
        yield Finding(
            "deprecated-variable",
            Severity.WARNING,
            f"{ABORT_VARIABLE} is {'overruled by the key' if keyed else 'deprecated'}",
            (Place(ABORT_VARIABLE, variable),),
            "vLLM still takes it where recv_abort_timeout is not set, with a warning.",
            f"Set {EXTRA}.recv_abort_timeout instead and unset it.",
            ("docs/doctor.md#deadlines",),
            engine.name,
        )
    elif variable is not None and facts is not None and not facts.abort_variable:
        yield Finding(
            "ignored-variable",
            Severity.WARNING,
            f"vLLM {engine.version} does not know {ABORT_VARIABLE}",
            (Place(ABORT_VARIABLE, variable),),
            "No read is ever given up there: a hung one hangs for good.",
            "Upgrade, or remove it.",
            ("docs/doctor.md#deadlines",),
            engine.name,
        )
    elif variable is not None and not _whole(variable) and (facts is None or not facts.abort_key):
        yield Finding(
            "bad-value",
            Severity.CRITICAL,
            f"{ABORT_VARIABLE} must be whole seconds",
            (Place(ABORT_VARIABLE, variable),),
            "vLLM up to 0.30 reads it in every step, and the step fails.",
            "Set it to whole seconds, such as 120.",
            ("docs/doctor.md#deadlines",),
            engine.name,
        )


def _whole(text: str) -> bool:
    try:
        int(text)
    except ValueError:
        return False
    return True


def _order(reader: Connector) -> Iterator[Finding]:
    limit, wait = abort_limit(reader), reader.seconds("transfer_timeout")
    if limit is None or wait is None or wait < limit[0]:
        return
    yield Finding(
        "barrier-outlasts-reads",
        Severity.WARNING,
        f"a barrier waits for {wait:g} s, reads are given up after {limit[0]:g} s",
        (
            Place(reader.key(EXTRA, "transfer_timeout"), _shown(reader, "transfer_timeout")),
            limit[1],
        ),
        "A hung read stalls every request of the engine for the whole wait, though it is to be "
        "given up by then.",
        "Keep transfer_timeout below recv_abort_timeout; healthy reads take milliseconds.",
        (runbook("MoriioBarrierTimeouts"), "docs/doctor.md#deadlines"),
        reader.engine.name,
    )


def _shown(connector: Connector, key: str) -> str:
    if key in connector.extra:
        return str(connector.extra[key])
    return f"{DEADLINES[key]:g} (by default)"
