"""A round for people and for machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from moriio_observed.canary.metrics import Result, RoundResult
from moriio_observed.canary.probes import Probe
from moriio_observed.canary.rounds import WRONG
from moriio_observed.canary.running import Ended

EXIT_STATUS = {
    RoundResult.RIGHT: 0,
    RoundResult.WRONG: 1,
    RoundResult.OUTDATED: 1,
    RoundResult.ERROR: 2,
    RoundResult.BUSY: 2,
}
MOST_SHOWN = 5
"""So many wrong answers are shown."""

_HEADS = {
    RoundResult.RIGHT: "right",
    RoundResult.WRONG: "WRONG ANSWERS",
    RoundResult.OUTDATED: "the golden answers are out of date: the reference engine alone answers"
    " otherwise now; record them anew",
    RoundResult.ERROR: "no verdict: not every probe was answered",
    RoundResult.BUSY: "no verdict: the server is busy",
}


def lines(ended: Ended) -> Iterator[str]:
    """A round in sentences."""
    if ended.trouble is not None:
        yield f"no probe sent: {ended.trouble}"
        return
    probes = ended.round.probes
    counts = Counter(probe.result for probe in probes)
    found = ", ".join(f"{counts[result]} {result}" for result in Result if counts[result])
    yield f"{_HEADS[ended.round.result]}: {found} of {len(probes)} probes, {ended.seconds:.1f} s"
    wrong = [probe for probe in probes if probe.result in WRONG]
    for probe in wrong[:MOST_SHOWN]:
        yield f"  {_sentence(probe)}"
    if len(wrong) > MOST_SHOWN:
        yield f"  and {len(wrong) - MOST_SHOWN} more"
    for error, times in Counter(probe.error for probe in probes if probe.error).items():
        yield f"  {times} times: {error}"


def as_dict(ended: Ended) -> dict[str, Any]:
    """A round as JSON has it."""
    report = {
        "ended_at": datetime.fromtimestamp(ended.at, UTC).isoformat(timespec="seconds"),
        "result": ended.round.result,
        "exit_status": EXIT_STATUS[ended.round.result],
        "seconds": round(ended.seconds, 3),
        "probes": [_probe(probe) for probe in ended.round.probes],
    }
    return report if ended.trouble is None else report | {"error": ended.trouble}


def _sentence(probe: Probe) -> str:
    signs = f", signs of degeneration: {', '.join(probe.signs)}" if probe.signs else ""
    return (
        f"{probe.result}: prompt {probe.prompt}, {probe.concurrency} at once,"
        f" {probe.divergence} tokens as recorded{signs}; {probe.probe_id}"
    )


def _probe(probe: Probe) -> dict[str, Any]:
    given = {key: value for key, value in asdict(probe).items() if value not in (None, "", ())}
    if probe.result is Result.MATCH:
        given.pop("text", None)
    return given
