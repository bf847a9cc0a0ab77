"""The one shape of every result: a row with its spread, its budget, and the load at that time."""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from pathlib import Path

from moriio_observed.accept.interval import REACHED, WIDTH, interval

__all__ = [
    "RESULTS",
    "Budget",
    "On",
    "Row",
    "compared",
    "exponent",
    "from_json",
    "measured",
    "merge",
    "middle",
    "over_budget",
    "paired",
    "ratio_of",
    "table",
    "throughput",
    "to_json",
]

RESULTS = Path(__file__).parents[1] / "build" / "bench.json"

MIDDLE_HALF = (0, 2)
"""The first and the last of the three quartiles."""


class On(Enum):
    """What of a row its budget bounds."""

    RATIO = "ratio"
    OURS = "ours"
    MORE = "ours - bare"


@dataclass(frozen=True)
class Budget:
    """What a row may at most be.

    Attributes:
        on: Of what.
        limit: In the row's unit, or as a ratio.
    """

    on: On
    limit: float

    def __str__(self) -> str:
        return f"{self.on.value} ≤ {self.limit:g}"

    def kept(self, ours: float, bare: float | None) -> bool:
        """Whether it is, by what the row says; without upstream's part only ours can be bounded.

        Raises:
            ValueError: The budget compares with upstream's part, and there is none.
        """
        if self.on is On.OURS:
            return ours <= self.limit
        if bare is None:
            raise ValueError(f"the budget {self} needs what upstream takes")
        return (ours / bare if self.on is On.RATIO else ours - bare) <= self.limit


@dataclass(frozen=True)
class Row:
    """One result.

    Attributes:
        name: What was measured.
        unit: Of `ours` and `bare`; empty for a number of things, or a ratio.
        ours: Ours, the median.
        bare: Bare upstream's in the same run, the median; None where it has nothing like it.
        ratio: Ours over upstream's.
        spread: Between which values the middle half of the rounds lay: of the ratio where there is
            one, else of ours.
        budget: In words; None where design and issue name none.
        ok: Whether it is within its budget; None where it has none.
        load: The machine's load average over the minute before.
        runs: In how many runs it was measured: see `middle`.
    """

    name: str
    unit: str
    ours: float
    bare: float | None
    ratio: float | None
    spread: tuple[float, float] | None
    budget: str | None
    ok: bool | None
    load: float
    runs: int = 1


def middle(runs: Sequence[Row]) -> Row:
    """The middle one of the same row's runs; within its budget only if each of them is."""
    by_size = sorted(runs, key=lambda row: row.ours if row.ratio is None else row.ratio)
    ok = None if runs[0].ok is None else all(row.ok for row in runs)
    return replace(by_size[len(runs) // 2], ok=ok, runs=len(runs))


def compared(
    name: str, unit: str, ours: Sequence[float], bare: Sequence[float], budget: Budget | None = None
) -> Row:
    """A row of two sides that were measured in alternating rounds, round by round."""
    ratios = [one / other for one, other in zip(ours, bare, strict=True)]
    return _row(name, unit, statistics.median(ours), statistics.median(bare), ratios, budget)


def measured(name: str, unit: str, ours: Sequence[float], budget: Budget | None = None) -> Row:
    """A row of something that bare upstream does not have."""
    return _row(name, unit, statistics.median(ours), None, ours, budget)


def ratio_of(name: str, unit: str, ours: float, bare: float, budget: Budget | None = None) -> Row:
    """A row of two sides of which a run has one number each."""
    return _row(name, unit, ours, bare, [ours / bare], budget)


def throughput(name: str, unit: str, ours: Sequence[float], bare: Sequence[float]) -> Row:
    """A row of pairs of runs of two real engines, which must do about as much: see `REACHED`."""
    found = interval(ours, bare)
    return replace(
        paired(name, unit, ours, bare),
        budget=f"95 % interval reaches {REACHED} and is ≤ {WIDTH} wide",
        ok=found.reaches and found.narrow,
    )


def paired(name: str, unit: str, ours: Sequence[float], bare: Sequence[float]) -> Row:
    """A row of pairs of runs, or of starts, of two real engines, without a budget.

    The ratio is the geometric mean of the pairs', the spread its 95 % interval.
    """
    low, ratio, high = interval(ours, bare)
    return Row(
        name=name,
        unit=unit,
        ours=statistics.median(ours),
        bare=statistics.median(bare),
        ratio=ratio,
        spread=(low, high),
        budget=None,
        ok=None,
        load=os.getloadavg()[0],
    )


def over_budget(rows: Iterable[Row]) -> list[str]:
    """The names of those that are."""
    return [row.name for row in rows if row.ok is False]


def _row(
    name: str,
    unit: str,
    ours: float,
    bare: float | None,
    rounds: Sequence[float],
    budget: Budget | None,
) -> Row:
    low, high = MIDDLE_HALF
    quartiles = statistics.quantiles(rounds, n=4) if len(rounds) > 1 else None
    return Row(
        name=name,
        unit=unit,
        ours=ours,
        bare=bare,
        ratio=None if bare is None else ours / bare,
        spread=None if quartiles is None else (quartiles[low], quartiles[high]),
        budget=None if budget is None else str(budget),
        ok=None if budget is None else budget.kept(ours, bare),
        load=os.getloadavg()[0],
    )


def exponent(points: Sequence[tuple[float, float]]) -> float:
    """The exponent with which y grows with x: least squares through the points' logarithms."""
    xs, ys = zip(*((math.log(x), math.log(y)) for x, y in points), strict=True)
    return statistics.linear_regression(xs, ys).slope


def to_json(rows: Iterable[Row]) -> str:
    """The rows as a list of objects."""
    return json.dumps([asdict(row) for row in rows], indent=1)


def from_json(text: str) -> list[Row]:
    """What `to_json` wrote."""
    return [
        Row(**{**row, "spread": None if row["spread"] is None else tuple(row["spread"])})
        for row in json.loads(text)
    ]


def merge(rows: Sequence[Row], path: Path = RESULTS) -> None:
    """Put rows among those that other runs have left, in place of those of the same name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    known = {row.name: row for row in from_json(path.read_text())} if path.exists() else {}
    path.write_text(to_json((known | {row.name: row for row in rows}).values()))


def table(rows: Iterable[Row]) -> str:
    """The rows as a Markdown table, which is also how they are printed."""
    cells = [("what", "unit", "ours", "bare", "ratio", "middle half", "budget", "within")]
    for row in rows:
        within = {None: "", True: "yes", False: "NO"}[row.ok]
        spread = "" if row.spread is None else " … ".join(map(_short, row.spread))
        cells.append(
            (
                row.name,
                row.unit,
                *map(_short, (row.ours, row.bare, row.ratio)),
                spread,
                row.budget or "",
                within,
            )
        )
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    head, *body = (
        "| "
        + " | ".join(text.ljust(width) for text, width in zip(line, widths, strict=True))
        + " |"
        for line in cells
    )
    return "\n".join([head, "|" + "|".join("-" * (width + 2) for width in widths) + "|", *body])


def _short(value: float | None) -> str:
    """Three digits that matter, without an exponent."""
    if value is None:
        return ""
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{digits}f}"
