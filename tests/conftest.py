"""What every suite shares: how long each one took against its budget, before pytest's summary."""

from collections import Counter

import pytest

BUDGETS_S = {"unit": 180, "contract": 400, "e2e": 1200}
"""For two cores; of the contract tests, what is left to wait for when all else is done. Printed,
never asserted; together they leave room below CI's 40 minutes."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    seconds: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid.split("/")[1]] += report.duration
    terminalreporter.section("time of each suite")
    for suite, total in seconds.items():
        terminalreporter.write_line(f"{suite:<10} {total:6.0f} s of {BUDGETS_S.get(suite, 0)} s")
