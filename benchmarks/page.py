"""Write docs/performance.md of what the benchmarks have left: ``python -m benchmarks.page``."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template

from benchmarks.picture import picture
from benchmarks.result import RESULTS, Row, from_json, over_budget, table

ROOT = Path(__file__).parents[1]
TEXT = Path(__file__).with_name("performance.in.md")
OVERSHOOTS = RESULTS.with_name("bench-overshoots.json")
PAGE = ROOT / "docs" / "performance.md"
PICTURE = ROOT / "docs" / "performance-waits.svg"
NAMES = {
    "bare": "upstream's poll",
    "wait_all": "ours: wait_all",
    "WaitFor": "ours: WaitFor",
    "neither": "ours: neither (old mori)",
    "a lock alone": "a lock alone",
}
"""What the picture calls the ways of waiting, in its order."""


WITHIN = "Every row that has a budget is within it."


def page(rows: Sequence[Row]) -> str:
    """The page: the method, the machine and the table."""
    over = over_budget(rows)
    return Template(TEXT.read_text()).substitute(
        table=table(rows),
        picture=PICTURE.name,
        machine=f"{os.cpu_count()} cores, Python {platform.python_version()}",
        runs=max(row.runs for row in rows),
        load=f"{min(row.load for row in rows):.1f} to {max(row.load for row in rows):.1f}",
        verdict=f"Over budget: {'; '.join(over)}." if over else WITHIN,
    )


def named(overshoots: Mapping[str, Sequence[float]]) -> dict[str, Sequence[float]]:
    """The overshoots under the picture's names."""
    return {shown: overshoots[name] for name, shown in NAMES.items()}


def main() -> int:
    """Write the page and its picture; the exit code is 1 if there is nothing to write them of."""
    missing = [str(path) for path in (RESULTS, OVERSHOOTS) if not path.exists()]
    if missing:
        print(f"not there: {', '.join(missing)}; run `make bench` first", file=sys.stderr)
        return 1
    PICTURE.write_text(picture(named(json.loads(OVERSHOOTS.read_text()))))
    PAGE.write_text(page(from_json(RESULTS.read_text())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
