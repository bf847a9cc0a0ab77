"""What the demo found: one row per phase, as a table, as JSON and in plain words."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

HEALTHY = "healthy"
SLOW_OFF = "slow reads, barrier off"
SLOW_AUTO = "slow reads, barrier auto"
HUNG = "one hung read"

HEADINGS = (
    "phase",
    "right",
    "wrong",
    "error",
    "wait p50",
    "wait p99",
    "timeouts",
    "failed",
    "unprotected steps",
    "exposed",
    "wrong, not exposed",
)


@dataclass(frozen=True)
class Row:
    """One phase.

    Attributes:
        phase: Its name.
        requests: How many were sent.
        right: How many answered as a single engine does.
        wrong: How many answered something else.
        error: How many failed.
        exposed: Exposed requests, from the decode engine's /metrics.
        wrong_not_exposed: Wrong answers whose request id no exposure names.
        unprotected_steps: Forward steps with an unlanded read.
        timeouts: Barrier calls whose deadline passed.
        failed: Reads that failed.
        wait_p50_s: Median wait of a barrier call, in seconds; None when none had to wait.
        wait_p99_s: The 99th percentile likewise.
    """

    phase: str
    requests: int
    right: int
    wrong: int
    error: int
    exposed: int
    wrong_not_exposed: int
    unprotected_steps: int
    timeouts: int
    failed: int
    wait_p50_s: float | None
    wait_p99_s: float | None

    @property
    def clean(self) -> bool:
        """Whether every answer was right and no step ran unprotected."""
        return self.right == self.requests and not self.exposed and not self.unprotected_steps


def table(rows: Sequence[Row]) -> str:
    """The rows as an aligned table."""
    return aligned([HEADINGS, *(_cells(row) for row in rows)])


def aligned(lines: Sequence[Sequence[str]], words: int = 1) -> str:
    """Cells as a table under the headings that its first line holds.

    Args:
        lines: The cells of each line.
        words: How many of the first columns stand at their left; the others at their right.
    """
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    headings, *others = (
        "  ".join(
            cell.ljust(width) if column < words else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )
    return "\n".join([headings, "-" * len(headings), *others])


def sentence(row: Row) -> str:
    """What a row shows, in plain words."""
    parts = [f"{row.right} of {row.requests} answers equal the single engine's"]
    if row.wrong:
        named = "all named" if not row.wrong_not_exposed else f"{row.wrong_not_exposed} NOT named"
        are = "is" if row.wrong == 1 else "are"
        parts.append(f"{row.wrong} {are} garbage with HTTP 200, {named} as exposed")
    if row.error:
        parts.append(f"{row.error} failed")
    if row.timeouts:
        parts.append(f"{row.timeouts} barrier waits timed out")
    if row.wait_p99_s is not None:
        parts.append(f"99 % of the barrier waits took {_seconds(row.wait_p99_s)} or less")
    parts.append(
        f"{row.unprotected_steps} forward steps ran on KV that had not verifiably landed"
        if row.unprotected_steps
        else "attention ran only on KV that had verifiably landed"
    )
    return "; ".join(parts) + "."


def problems(rows: Sequence[Row]) -> list[str]:
    """Why the demo does not show what it should; empty when it does."""
    found = [
        f"{row.phase}: {row.wrong_not_exposed} wrong answers that no exposure names"
        for row in rows
        if row.wrong_not_exposed
    ]
    for row in rows:
        if row.phase in {HEALTHY, SLOW_AUTO} and not row.clean:
            found.append(f"{row.phase}: should be all right, unexposed and protected, is {row}")
        if row.phase == SLOW_OFF and not row.wrong:
            found.append(f"{row.phase}: should have wrong answers")
        if row.phase == HUNG and not row.timeouts:
            found.append(f"{row.phase}: no barrier wait timed out")
    return found


def write_json(rows: Sequence[Row], path: Path) -> None:
    """Write the rows as a list of objects."""
    path.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.phase,
        str(row.right),
        str(row.wrong),
        str(row.error),
        _seconds(row.wait_p50_s),
        _seconds(row.wait_p99_s),
        str(row.timeouts),
        str(row.failed),
        str(row.unprotected_steps),
        str(row.exposed),
        str(row.wrong_not_exposed),
    )


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    if value < 1e-3:
        return f"{value * 1e6:.0f} µs"
    return f"{value * 1e3:.1f} ms" if value < 1 else f"{value:.2f} s"
