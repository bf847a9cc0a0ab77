"""Run the benchmarks and print one table: ``python -m benchmarks [NAME …]``.

Upstream's own methods run on both sides; only devices, network and peer are replaced. The rounds of
the sides alternate and medians are compared, so that a busy machine hits both. Each benchmark has a
process of its own; those that compare with a release other than the installed one see its sources.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.result import RESULTS, Row, from_json, merge, table
from tests.trees import source_tree

ROOT = Path(__file__).parents[1]
INSTALLED = None
BENCHMARKS: dict[str, tuple[str | None, ...]] = {
    "idle": ("0.30.0", INSTALLED, "0.33.0"),
    "in_flight": ("0.30.0", INSTALLED, "0.33.0"),
    "waits": (INSTALLED,),
    "payload": (INSTALLED,),
    "memory": (INSTALLED,),
    "tracing": (INSTALLED,),
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
    asked = parser.parse_args().names
    if unknown := set(asked) - BENCHMARKS.keys():
        parser.error(f"no benchmark named {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    found: list[Row] = []
    for name in asked or BENCHMARKS:
        for version in BENCHMARKS[name]:
            print(f"benchmarks: {name}" + (f" on vLLM {version}" if version else ""), flush=True)
            rows = rows_of(name, version)
            # At once, so that what comes later and fails takes nothing with it.
            merge(rows)
            found += rows
    print(table(found))
    print(f"benchmarks: written to {RESULTS.relative_to(ROOT)}")
    if over := [row.name for row in found if not row.ok]:
        print(f"benchmarks: over budget: {', '.join(over)}", file=sys.stderr)
        return 1
    print("benchmarks: all within budget")
    return 0


if __name__ == "__main__":
    sys.exit(main())
