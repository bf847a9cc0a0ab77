"""Suites run on other versions' sources, in a pytest of their own, and what came of each test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree as ET

from tests.trees import source_tree

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "contract"

STEPS = "tests/contract/on_each/test_steps.py"
HYBRID = "tests/contract/on_each/test_hybrid.py"
GUARD = "tests/contract/on_each/test_guard.py"
ASYNC = "tests/contract/on_each/test_async_scheduling.py"
MIXED = "tests/contract/on_each/test_mixed_versions.py"
SUITES = (
    STEPS,
    HYBRID,
    GUARD,
    "tests/contract/on_each/test_full_cache.py",
    ASYNC,
    "tests/contract/on_each/test_ranks.py",
    "tests/contract/on_each/test_own_errors.py",
    "tests/contract/on_each/test_prefix_cache.py",
    "tests/contract/on_each/test_hooks.py",
    "tests/contract/on_each/test_traces.py",
    "tests/contract/on_each/test_known.py",
    "tests/contract/on_each/test_names.py",
    "tests/contract/on_each/test_multi_connector.py",
    MIXED,
    "tests/unit/test_connector.py",
    "tests/unit/telemetry/test_vllm_stats.py",
)
"""What has to pass on every version."""

SCENARIOS = (STEPS, HYBRID, GUARD, ASYNC, MIXED)
"""What the final table shows."""
AXES = ("V1", "V2", "NONE", "PIECEWISE", "FULL")
BUDGET_S = 300
"""For one version's run, with the rest of the tests beside it on two cores; printed, never
asserted."""
STOP_POLL_S = 1.0
WHOLE = (0, 1)
"""What pytest ends with that has run to its end."""


@dataclass(frozen=True)
class Case:
    """One test of one version's run.

    Attributes:
        suite: The file it stands in.
        name: Its name, with its parameters.
        outcome: `passed`, `failed` or `skipped`.
        message: Why, where it has not passed.
        observed: What it saw the version do, by (subject, …).
    """

    suite: str
    name: str
    outcome: str
    message: str = ""
    observed: Mapping[tuple[str, ...], str] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """The suites' run on one version.

    Attributes:
        version: The version.
        cases: Every test of it.
        seconds: How long it took.
        output: What pytest printed.
        returncode: What pytest ended with.
    """

    version: str
    cases: tuple[Case, ...]
    seconds: float
    output: str
    returncode: int

    def of(self, suite: str) -> list[Case]:
        """The tests of one suite."""
        return [case for case in self.cases if case.suite == suite]

    @property
    def observed(self) -> dict[tuple[str, ...], str]:
        """All that the tests saw the version do."""
        return {key: seen for case in self.cases for key, seen in case.observed.items()}


class Runs:
    """The runs of some versions, one after the other, beside whatever else is done.

    Args:
        versions: Which.
    """

    def __init__(self, versions: Iterable[str]) -> None:
        self._stop = threading.Event()
        self._thread = ThreadPoolExecutor(1)
        # As it is now: while a run begins, some test may have changed it for itself.
        environ = dict(os.environ)
        self._running: dict[str, Future[Run]] = {
            version: self._thread.submit(run_on, version, environ=environ, stop=self._stop)
            for version in versions
        }

    def of(self, version: str) -> Run:
        """A version's run, once it has ended."""
        return self._running[version].result()

    def all(self) -> list[Run]:
        """Every version's run, once all have ended."""
        return [self.of(version) for version in self._running]

    def ended(self) -> list[Run]:
        """The runs that have come to their end."""
        return [
            future.result()
            for future in self._running.values()
            if future.done() and not future.cancelled() and not future.exception()
            if future.result().returncode in WHOLE
        ]

    def stop(self) -> None:
        """End those that have not; does nothing to the others."""
        self._stop.set()
        self._thread.shutdown(cancel_futures=True)


def run_on(
    version: str,
    suites: Sequence[str] = SUITES,
    *,
    environ: Mapping[str, str] = os.environ,
    stop: threading.Event | None = None,
    **environment: str,
) -> Run:
    """Run suites on a version's own sources, to their end or until they are to stop."""
    BUILD.mkdir(parents=True, exist_ok=True)
    report = BUILD / f"{version}-{os.getpid()}.xml"
    report.unlink(missing_ok=True)
    tree = source_tree(version, environ)
    started = time.monotonic()
    with subprocess.Popen(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--disable-warnings"),
            *(f"--junitxml={report}", "-o", "junit_logging=no", "-o", "junit_family=xunit1"),
            *suites,
        ],
        cwd=ROOT,
        env={
            **environ,
            "PYTHONPATH": str(tree),
            "VLLM_TARGET_DEVICE": "cpu",
            "VLLM_UNDER_TEST": version,
            "PYTEST_ADDOPTS": "",
            **environment,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # So that all it has started can be ended with it.
        start_new_session=True,
    ) as process:
        output = _output(process, stop)
    cases: tuple[Case, ...] = ()
    if report.exists():
        cases = tuple(map(_case, ET.parse(report).iter("testcase")))  # noqa: S314  (our own)
        report.unlink()
    return Run(version, cases, time.monotonic() - started, output, process.returncode)


def _output(process: subprocess.Popen[str], stop: threading.Event | None) -> str:
    """All that it prints until it ends; it is made to end where it shall stop."""
    how = signal.SIGTERM
    while True:
        try:
            return process.communicate(timeout=STOP_POLL_S)[0]
        except subprocess.TimeoutExpired:
            if stop and stop.is_set():
                os.killpg(process.pid, how)
                how = signal.SIGKILL


def _case(element: ET.Element) -> Case:
    outcome, message = "passed", ""
    for tag in ("failure", "error", "skipped"):
        found = element.find(tag)
        if found is not None:
            outcome = "skipped" if tag == "skipped" else "failed"
            message = found.get("message", "")
    observed: dict[tuple[str, ...], str] = {}
    for said in element.iter("property"):
        if said.get("name") == "observed":
            *key, seen = json.loads(said.get("value", "[]"))
            observed[tuple(key)] = seen
    # A test in a class has the class's name behind its module's.
    parts = [part for part in element.get("classname", "").split(".") if part[:1].islower()]
    return Case(f"{'/'.join(parts)}.py", element.get("name", ""), outcome, message, observed)


def table(runs: Sequence[Run], suites: Sequence[str]) -> list[str]:
    """Version by scenario, as lines of text: what passed, what a version does not have."""
    rows = list(dict.fromkeys(_row(case) for run in runs for case in _of(run, suites)))
    width = max(map(len, rows), default=0)
    lines = [" " * width + "".join(f"{run.version:>10}" for run in runs)]
    for row in rows:
        cells = [_cell([c for c in _of(run, suites) if _row(c) == row]) for run in runs]
        lines.append(row.ljust(width) + "".join(f"{cell:>10}" for cell in cells))
    return lines


def _of(run: Run, suites: Sequence[str]) -> list[Case]:
    return [case for suite in suites for case in run.of(suite)]


def _row(case: Case) -> str:
    """The scenario, with the runner and the CUDA graph mode where there is one."""
    suite = Path(case.suite).stem.removeprefix("test_")
    function, _, parameters = case.name.partition("[")
    axes = [each for each in parameters.rstrip("]").split("-") if each in AXES]
    return " ".join([f"{suite}: {function.removeprefix('test_')}", *axes])


def _cell(cases: Sequence[Case]) -> str:
    outcomes = [case.outcome for case in cases]
    if "failed" in outcomes:
        return f"FAIL {outcomes.count('failed')}/{len(outcomes)}"
    if "passed" in outcomes:
        return f"ok {outcomes.count('passed')}"
    return "-" if outcomes else "not run"
