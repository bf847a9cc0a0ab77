import json
from dataclasses import replace

import pytest

from tests.faults.table import HEALTHY, JSON_KEYS, problems, sentence, table, write_json
from tests.faults.verdict import Row

BARE = Row(
    fault="slow",
    vllm="0.32.0",
    mode="bare",
    requests=16,
    right=12,
    error=1,
    wrong_200=3,
    exposed=0,
    wrong_flagged=0,
    right_flagged=0,
    unflagged=("cmpl-a-0", "cmpl-b-0", "cmpl-c-0"),
)
REPORT = replace(
    BARE,
    mode="report",
    exposed=4,
    wrong_flagged=3,
    right_flagged=1,
    certain=2,
    certain_wrong=2,
    unflagged=(),
)
RECOMPUTE = replace(REPORT, mode="recompute", right=15, wrong_200=0, wrong_flagged=0)
FAIL = replace(RECOMPUTE, mode="fail")
CONTROL = replace(BARE, fault=HEALTHY, right=16, error=0, wrong_200=0, unflagged=())
GOOD = [CONTROL, BARE, REPORT, RECOMPUTE, FAIL]


def test_rows_as_promised_have_no_problem():
    assert problems(GOOD) == []


@pytest.mark.parametrize("guarded", [RECOMPUTE, FAIL])
def test_a_wrong_answer_under_a_guard_is_a_problem_flagged_or_not(guarded):
    [problem] = problems([BARE, replace(guarded, wrong_200=1, wrong_flagged=1)])
    assert guarded.mode in problem
    assert "slow" in problem


def test_a_wrong_answer_that_report_did_not_flag_is_a_problem_that_names_it():
    [problem] = problems([BARE, replace(REPORT, unflagged=("cmpl-a-0",))])
    assert "cmpl-a-0" in problem


def test_a_table_in_which_bare_upstream_is_never_wrong_proves_nothing():
    [problem] = problems([replace(BARE, right=15, wrong_200=0), REPORT, RECOMPUTE])
    assert "proves nothing" in problem


def test_rows_without_bare_ones_can_be_as_promised():
    assert problems([REPORT, RECOMPUTE]) == []


@pytest.mark.parametrize("spoilt", [{"right": 15, "error": 1}, {"exposed": 1}])
def test_the_control_must_be_all_right_and_unflagged(spoilt):
    assert len(problems([*GOOD, replace(CONTROL, **spoilt)])) == 1


def test_the_modes_of_a_fault_stand_below_each_other_in_the_order_they_ran():
    other = [replace(row, fault="late") for row in (BARE, REPORT)]
    _, _, *lines = table([BARE, other[0], REPORT, other[1]]).splitlines()
    assert [line.split()[::2][:2] for line in lines] == [
        ["slow", "bare"],
        ["slow", "report"],
        ["late", "bare"],
        ["late", "report"],
    ]


def test_a_version_of_its_own_has_lines_of_its_own():
    older = replace(BARE, vllm="0.30.0")
    _, _, *lines = table([BARE, older, REPORT]).splitlines()
    assert [line.split()[1] for line in lines] == ["0.32.0", "0.32.0", "0.30.0"]


def test_the_table_is_aligned_and_ends_with_the_precision_of_certain_and_possible():
    heading, rule, bare, report = table([BARE, REPORT]).splitlines()
    assert len({len(line) for line in (heading, rule, bare, report)}) == 1
    assert bare.split()[-2:] == ["-", "-"]
    assert report.split()[-2:] == ["100%", "50%"]


def test_precision_is_not_asked_of_a_guard_which_makes_what_it_flags_right():
    assert table([RECOMPUTE]).split()[-2:] == ["-", "-"]


def test_the_json_has_exactly_the_promised_keys(tmp_path):
    write_json(GOOD, tmp_path / "faults.json")
    rows = json.loads((tmp_path / "faults.json").read_text())
    assert [tuple(row) for row in rows] == [JSON_KEYS] * len(GOOD)
    assert rows[1]["wrong_200"] == 3


def test_a_row_says_in_one_line_what_was_wrong_and_what_nobody_flagged():
    assert "3 WRONG WITH 200" in sentence(BARE)
    assert "NOT flagged" not in sentence(BARE)
    assert "1 wrong NOT flagged" in sentence(replace(REPORT, unflagged=("cmpl-a-0",)))
