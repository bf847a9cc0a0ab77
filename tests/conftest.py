"""What every suite shares: how long each one took, printed before pytest's summary."""

from collections import Counter

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    seconds: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid.split("/")[1]] += report.duration
    terminalreporter.section("time of each suite")
    for suite, total in seconds.items():
        terminalreporter.write_line(f"{suite:<10} {total:8.1f} s")
