"""Takes away one hook of ours at a time, and says which contract test notices, per vLLM version.

    python -m scripts.mutate [--version 0.32.0 ...] [--hook _read_blocks ...]

Ends with 1 if a version needs a hook whose absence no test has noticed, or if the tests did not
run to their end.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tests.contract.mutation import HOOKS, NOTHING
from tests.contract.versions import Case, Run, run_on
from tests.trees import VERSIONS

SUITES = tuple(f"tests/contract/on_each/test_{name}.py" for name in ("steps", "hooks", "guard"))
AT_ONCE = 2
"""Versions at the same time: each spends much of its run waiting for reads."""
LONGEST_S = 60
"""For one test: without a hook it may wait for something that never comes."""

SURVIVED = "SURVIVED"
NOT_NEEDED = "-"


@dataclass(frozen=True)
class Verdicts:
    """What one version's run has shown.

    Attributes:
        version: The version.
        noticed_by: The test that has noticed each hook's absence, `SURVIVED` where none has.
    """

    version: str
    noticed_by: Mapping[str, str]

    @classmethod
    def of(cls, run: Run) -> Verdicts:
        """Read a run's tests; those that fail with nothing removed have noticed nothing."""
        tried = [(hook, test, case) for case in run.cases for hook, test in _without(case)]
        failing = {test for hook, test, case in tried if _failed(case) and hook == NOTHING}
        noticed_by: dict[str, str] = {}
        for hook, test, case in tried:
            if hook != NOTHING:
                noticed_by.setdefault(hook, SURVIVED)
                if _failed(case) and test not in failing:
                    noticed_by[hook] = test
        return cls(run.version, noticed_by)


def _without(case: Case) -> Iterable[tuple[str, str]]:
    """What was removed in a test, and the test's own name."""
    for (subject, *key), hook in case.observed.items():
        if subject == "without":
            yield hook, *key


def _failed(case: Case) -> bool:
    return case.outcome == "failed"


def table(verdicts: Sequence[Verdicts]) -> list[str]:
    """Hook by version, as lines of text; a test that has noticed has a number, told below."""
    hooks = list(dict.fromkeys(hook for each in verdicts for hook in each.noticed_by))
    width = max(map(len, hooks), default=0)
    numbers: dict[str, str] = {}
    lines = [" " * width + "".join(f"{each.version:>10}" for each in verdicts)]
    for hook in hooks:
        cells = [each.noticed_by.get(hook, NOT_NEEDED) for each in verdicts]
        for cell in cells:
            if cell not in (SURVIVED, NOT_NEEDED):
                numbers.setdefault(cell, str(len(numbers) + 1))
        shown = (numbers.get(cell, cell) for cell in cells)
        lines.append(hook.ljust(width) + "".join(f"{cell:>10}" for cell in shown))
    legend = f"{NOT_NEEDED}: the version has no use for the hook; a number: the test that noticed"
    return [*lines, "", legend, *(f"{number:>3} {test}" for test, number in numbers.items())]


def survivors(verdicts: Iterable[Verdicts]) -> list[str]:
    """The hooks whose absence nobody has noticed, each with its version."""
    return [
        f"{hook} on {each.version}"
        for each in verdicts
        for hook, noticed_by in each.noticed_by.items()
        if noticed_by == SURVIVED
    ]


def try_all(version: str, hooks: Sequence[str]) -> Run:
    """Run the suites of one version without each of the hooks; without hooks, every one."""
    print(f"{version}: started", flush=True)
    run = run_on(
        version,
        SUITES,
        PYTEST_ADDOPTS=f"-p tests.contract.mutation --timeout={LONGEST_S} --timeout-method=signal",
        MUTATE_HOOKS=",".join(hooks),
    )
    print(f"{version}: {run.seconds:.0f} s", flush=True)
    return run


def report(runs: Sequence[Run]) -> int:
    """Print what the runs have shown; the answer is the exit code."""
    broken = [run for run in runs if run.returncode not in (0, 1) or not run.cases]
    for run in broken:
        print(f"{run.version}: the tests did not run to their end:\n{run.output[-4000:]}")
    verdicts = [Verdicts.of(run) for run in runs if run not in broken]
    print("\n".join(table(verdicts)))
    for each in survivors(verdicts):
        print(f"nobody has noticed that there was no {each}")
    return 1 if broken or survivors(verdicts) else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Try hooks on versions, and report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--version", action="append", choices=VERSIONS, help="default: all")
    parser.add_argument("--hook", action="append", choices=HOOKS, help="default: all")
    given = parser.parse_args(arguments)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        runs = list(
            pool.map(lambda version: try_all(version, given.hook or ()), given.version or VERSIONS)
        )
    return report(runs)


if __name__ == "__main__":
    sys.exit(main())
