"""What every version's run brought, as one table at the end."""

from __future__ import annotations

import pytest

from tests.contract.versions import BUDGET_S, SCENARIOS, VERSIONS_RUN, table

collect_ignore = ["on_each"]
"""Run on every version by `test_every_version.py`, each in a process of its own."""


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    runs = config.stash.get(VERSIONS_RUN, [])
    if runs:
        terminalreporter.section("every version by every scenario")
        for line in table(runs, SCENARIOS):
            terminalreporter.write_line(line)
        took = ", ".join(f"{run.version} {run.seconds:.0f} s" for run in runs)
        terminalreporter.write_line(f"each version, of a budget of {BUDGET_S} s: {took}")
