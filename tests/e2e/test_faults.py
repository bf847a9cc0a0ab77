"""The fault table's fast part, and a short soak: no wrong token leaves a guard."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from moriio_observed.demo.pair import Fleet
from tests.faults.modes import BARE, FAIL, GUARDS, INSTALLED, RECOMPUTE, REPORT, prefill_settings
from tests.faults.rows import FAST, FAULTS
from tests.faults.run import play_all
from tests.faults.servers import Servers
from tests.faults.soak import soak
from tests.faults.table import problems, table
from tests.faults.verdict import Row

# The soak goes on with the decode engine of the last.
ORDER = (BARE, REPORT, FAIL, RECOMPUTE)
CHOSEN = [fault for fault in FAULTS if fault.name in FAST]


@pytest.fixture(scope="module")
def servers(fleet: Fleet) -> Iterator[Servers]:
    servers = Servers(fleet, "faults", prefill_settings(INSTALLED), None)
    yield servers
    servers.stop()


@pytest.fixture(scope="module")
def rows(servers: Servers) -> list[Row]:
    rows = list(play_all(servers, CHOSEN, modes=ORDER))
    print(table(rows))
    return rows


def test_every_fault_was_played_in_every_mode(rows: list[Row]) -> None:
    assert [(row.mode, row.fault) for row in rows] == [
        (mode, fault.name) for mode in ORDER for fault in CHOSEN
    ]


def test_bare_upstream_answers_wrong_with_200(rows: list[Row]) -> None:
    assert sum(row.wrong_200 for row in rows if row.mode == BARE) > 0


@pytest.mark.parametrize("guard", GUARDS)
def test_no_wrong_answer_leaves_a_guard(rows: list[Row], guard: str) -> None:
    assert [row for row in rows if row.mode == guard and row.wrong_200] == []


def test_report_flags_every_wrong_answer_by_its_own_id(rows: list[Row]) -> None:
    reported = [row for row in rows if row.mode == REPORT]
    assert sum(row.wrong_flagged for row in reported) > 0
    assert [row for row in reported if row.unflagged] == []


def test_the_table_is_as_promised(rows: list[Row]) -> None:
    assert problems(rows) == []


@pytest.mark.parametrize(("requests", "hangs"), [(200, 5)])
def test_a_soak_under_mixed_faults_leaves_nothing_behind(
    servers: Servers, requests: int, hangs: int
) -> None:
    assert soak(servers, INSTALLED, requests, hangs, print) == []
