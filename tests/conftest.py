"""What every suite shares: signals, and how long each one took, before pytest's summary."""

import signal
from collections import Counter

import pytest

BUDGETS_S = {"unit": 180, "contract": 400, "e2e": 1200}
"""For two cores; of the contract tests, what is left to wait for when all else is done. Printed,
never asserted; together they leave room below CI's 40 minutes."""


def pytest_configure() -> None:
    """Have the programs that tests start end by the signals that are sent to them.

    A session that was started in the background, or under nohup, ignores some of them, and so would
    whatever it starts.
    """
    for number, handler in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGHUP, signal.SIG_DFL),
    ):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    seconds: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid.split("/")[1]] += report.duration
    terminalreporter.section("time of each suite")
    for suite, total in seconds.items():
        terminalreporter.write_line(f"{suite:<10} {total:6.0f} s of {BUDGETS_S.get(suite, 0)} s")
