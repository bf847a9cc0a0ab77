"""Every version's run, beside all other tests; and what they brought, as one table at the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.versions import BUDGET_S, SCENARIOS, Runs, table
from tests.trees import VERSIONS

collect_ignore = ["on_each"]
"""Run on every version by `test_every_version.py`, each in a process of its own."""

EVERY_VERSION = Path(__file__).with_name("test_every_version.py")
RUNS: pytest.StashKey[Runs] = pytest.StashKey()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What the runs brought is looked at last, so that they go on beside everything else."""
    items.sort(key=_of_a_run)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start the runs of the versions that are asked for."""
    asked = {
        item.callspec.params["version"]
        for item in session.items
        if isinstance(item, pytest.Function) and hasattr(item, "callspec") and _of_a_run(item)
    }
    if asked and not session.config.option.collectonly:
        session.config.stash[RUNS] = Runs(version for version in VERSIONS if version in asked)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Leave none running."""
    if RUNS in session.config.stash:
        session.config.stash[RUNS].stop()


@pytest.fixture(scope="session")
def runs(pytestconfig: pytest.Config) -> Runs:
    """The runs of the versions that are asked for."""
    return pytestconfig.stash[RUNS]


def _of_a_run(item: pytest.Item) -> bool:
    return item.path == EVERY_VERSION


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if RUNS not in config.stash:
        return
    ended = config.stash[RUNS].ended()
    terminalreporter.section("every version by every scenario")
    for line in table(ended, SCENARIOS):
        terminalreporter.write_line(line)
    took = ", ".join(f"{run.version} {run.seconds:.0f} s" for run in ended)
    terminalreporter.write_line(f"each version, of a budget of {BUDGET_S} s: {took}")
