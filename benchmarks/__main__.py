"""Run the benchmarks and print one table: ``python -m benchmarks [NAME …]``.

Upstream's own methods run on both sides; only devices, network and peer are replaced. The rounds of
the sides alternate and medians are compared, so that a busy machine hits both. Each benchmark has a
process of its own; those that compare with a release other than the installed one see its sources.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.result import RESULTS, Row, from_json, merge, middle, over_budget, table
from tests.trees import source_tree

ROOT = Path(__file__).parents[1]
INSTALLED = None
BENCHMARKS: dict[str, tuple[str | None, ...]] = {
    "idle": ("0.30.0", INSTALLED, "0.33.0"),
    "in_flight": ("0.30.0", INSTALLED, "0.33.0"),
    "reading": ("0.30.0", INSTALLED, "0.33.0"),
    "waits": (INSTALLED,),
    "polling": (INSTALLED,),
    "overlap": ("0.30.0", INSTALLED, "0.33.0"),
    "payload": (INSTALLED,),
    "memory": (INSTALLED,),
    "tracing": (INSTALLED,),
    "import_cost": (INSTALLED,),
    "rule_evaluation": (INSTALLED,),
}
"""Each benchmark's module, and on which releases of vLLM it runs."""


def rows_of(name: str, version: str | None) -> list[Row]:
    """Run one benchmark on one release.

    Raises:
        subprocess.CalledProcessError: It has failed.
    """
    path = [] if version is None else [str(source_tree(version))]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.json"
        subprocess.run(
            [sys.executable, "-m", "benchmarks.child", name, str(file)],
            cwd=ROOT,
            env=os.environ
            | {
                "PYTHONPATH": os.pathsep.join([*path, str(ROOT)]),
                "VLLM_TARGET_DEVICE": "cpu",
            },
            check=True,
        )
        return from_json(file.read_text())


def main() -> int:
    """Run every benchmark, or those named; the exit code tells whether all kept their budget."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}")
    parser.add_argument("--times", type=int, default=1, help="how often each is run")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - BENCHMARKS.keys():
        parser.error(f"no benchmark named {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    if arguments.times < 1:
        parser.error(f"--times {arguments.times}: each is run once at least")
    runs: dict[str, list[Row]] = {}
    for time, name in itertools.product(range(arguments.times), arguments.names or BENCHMARKS):
        for version in BENCHMARKS[name]:
            where = f" on vLLM {version}" if version else ""
            print(f"benchmarks: {name}{where}, {time + 1} of {arguments.times}", flush=True)
            rows = rows_of(name, version)
            for row in rows:
                runs.setdefault(row.name, []).append(row)
            # At once, so that what comes later and fails takes nothing with it.
            merge([middle(runs[row.name]) for row in rows])
    found = [middle(rows) for rows in runs.values()]
    print(table(found))
    print(f"benchmarks: written to {RESULTS.relative_to(ROOT)}")
    if over := over_budget(found):
        print(f"benchmarks: over budget: {'; '.join(over)}", file=sys.stderr)
        return 1
    print("benchmarks: every row that has a budget is within it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
