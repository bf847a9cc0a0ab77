"""What is wrong with an engine now, by its figures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from moriio_observed.doctor.checks import server as doctors
from moriio_observed.doctor.checks.counters import CAUGHT, COUNTED
from moriio_observed.doctor.exposition import Page
from moriio_observed.doctor.findings import Severity, runbook
from moriio_observed.doctor.server import Server
from moriio_observed.telemetry.catalog import PREFIX
from moriio_observed.top.engine import Engine, Look
from moriio_observed.top.snapshot import Series, cumulative
from moriio_observed.top.words import number, seconds

STUCK_SHARE = 0.5
"""A read that has used up this share of its deadline will not make it; as in the alert
MoriioReadsStuck."""
STALL_S = 10.0
"""Forward steps take milliseconds, and quiet ones are told every five seconds: after twice that,
somebody waits."""
STALLED_S = 60.0
"""As in the alert MoriioStepStalled."""
_STEADY = frozenset({f"{PREFIX}reads_posted_total", "vllm:request_success_total"})


@dataclass(frozen=True, slots=True)
class Sign:
    """One thing that is wrong, or was.

    Attributes:
        severity: How bad it is; a note where it is over.
        what: What it is, in one sentence.
        see: The runbook or document that says what to do; empty where there is none.
    """

    severity: Severity
    what: str
    see: str = ""


def signs(engine: Engine, look: Look, before: Series | None) -> list[Sign]:
    """What is wrong with an engine, worst first.

    Args:
        engine: Its figures.
        look: Its series.
        before: Its series at the look before; None at the first.
    """
    found = [
        *standing(look.now),
        *_exposure(engine),
        *_counters(engine, look),
        *_reads(engine, look, before),
        *_stalled(engine),
        *_ranks(engine),
    ]
    return sorted(found, key=lambda sign: -sign.severity)


def standing(now: Series) -> Iterator[Sign]:
    """What is wrong with how a server was started, by what the doctor finds in its gauges."""
    # Of the counters only those that tell whether its requests read: the rest is over, or below.
    samples = tuple(
        (name, dict(labels), value)
        for name in now.names
        if not cumulative(name) or name in _STEADY
        for (_, labels), value in now.named(name).samples.items()
    )
    for finding in doctors.check(Server("", Page(samples)), ()):
        see = finding.see[0] if finding.see else ""
        reason = f": {finding.why}" if finding.name == "server-unobserved" else ""
        yield Sign(finding.severity, finding.what + reason, see)


def _exposure(engine: Engine) -> Iterator[Sign]:
    for certainty, severity, verb, alert in (
        ("certain", Severity.CRITICAL, "ran", "MoriioUnprotectedSteps"),
        ("possible", Severity.WARNING, "may have run", "MoriioUnprotectedStepsPossible"),
    ):
        steps = engine.unprotected[certainty].gained
        if steps:
            yield Sign(
                Severity.WARNING if engine.guarded else severity,
                f"{number(steps)} forward steps {verb} on reads that had not landed",
                runbook(alert),
            )


def _counters(engine: Engine, look: Look) -> Iterator[Sign]:
    for each in COUNTED:
        counted = look.counted(each.metric, **each.labels)
        if counted.gained:
            caught = engine.guarded and each.metric in CAUGHT
            yield Sign(
                Severity.WARNING if caught else each.severity,
                f"{number(counted.gained)} in {seconds(look.seconds)}, "
                f"{number(counted.total)} since the start: {each.what}",
                runbook(each.alert),
            )
        elif counted.total:
            over = "" if counted.gained is None else ", none now"
            yield Sign(
                Severity.NOTE,
                f"{number(counted.total)} since the start{over}: {each.what}",
                runbook(each.alert),
            )


def _reads(engine: Engine, look: Look, before: Series | None) -> Iterator[Sign]:
    if engine.oldest_s is None or engine.deadline_s is None or before is None:
        return
    # An idle engine's gauges stand still: only an age that changes is now.
    age = f"{PREFIX}oldest_read_age_seconds"
    moves = look.now.total(age) != before.total(age)
    if moves and engine.oldest_s > STUCK_SHARE * engine.deadline_s:
        yield Sign(
            Severity.WARNING if engine.guarded else Severity.CRITICAL,
            f"a read has been in flight for {seconds(engine.oldest_s)}; its deadline is "
            f"{seconds(engine.deadline_s)}",
            runbook("MoriioReadsStuck"),
        )


def _stalled(engine: Engine) -> Iterator[Sign]:
    reads = engine.info.get("mode") == "read" and not engine.sends
    if reads and (engine.running or 0) > 0 and engine.quiet_s >= STALL_S:
        yield Sign(
            Severity.CRITICAL if engine.quiet_s >= STALLED_S else Severity.WARNING,
            f"no forward step for {seconds(engine.quiet_s)}, with {number(engine.running)} "
            "requests running",
            runbook("MoriioStepStalled"),
        )


def _ranks(engine: Engine) -> Iterator[Sign]:
    slow = [rank for rank, figures in engine.ranks.items() if figures.slow]
    if slow:
        yield Sign(
            Severity.WARNING,
            f"ranks that wait much longer than their peers: {', '.join(slow)}",
            runbook("MoriioRankSlow"),
        )
