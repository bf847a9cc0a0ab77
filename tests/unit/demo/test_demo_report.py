import json
from dataclasses import replace

from moriio_observed.demo import report
from moriio_observed.demo.report import Row, problems, sentence, table, write_json

HEALTHY = Row(
    phase=report.HEALTHY,
    requests=16,
    right=16,
    wrong=0,
    error=0,
    exposed=0,
    wrong_not_exposed=0,
    unprotected_steps=0,
    timeouts=0,
    failed=0,
    wait_p50_s=None,
    wait_p99_s=None,
)
SALAD = replace(HEALTHY, phase=report.SLOW_OFF, right=0, wrong=16, exposed=16, unprotected_steps=3)
WAITED = replace(HEALTHY, phase=report.SLOW_AUTO, wait_p50_s=0.2, wait_p99_s=0.3)
HUNG = replace(
    HEALTHY,
    phase=report.HUNG,
    right=15,
    wrong=1,
    exposed=1,
    unprotected_steps=3,
    timeouts=3,
    wait_p99_s=2.0,
)
GOOD = [HEALTHY, SALAD, WAITED, HUNG]


def test_the_expected_rows_have_no_problem():
    assert problems(GOOD) == []


def test_a_wrong_answer_that_nothing_exposes_is_a_problem_in_every_phase():
    for row in GOOD:
        assert problems([replace(row, wrong_not_exposed=1)])


def test_a_healthy_phase_must_be_all_right_unexposed_and_protected():
    for spoilt in ({"right": 15, "error": 1}, {"exposed": 1}, {"unprotected_steps": 1}):
        assert problems([replace(HEALTHY, **spoilt)])
        assert problems([replace(WAITED, **spoilt)])


def test_without_the_barrier_there_must_be_wrong_answers():
    assert problems([replace(SALAD, wrong=0, right=16)])


def test_a_hung_read_must_make_a_barrier_give_up():
    assert problems([replace(HUNG, timeouts=0)])


def test_the_table_has_one_aligned_line_per_phase():
    heading, rule, *lines = table(GOOD).splitlines()
    assert len(lines) == 4
    assert {len(line) for line in lines} == {len(heading)} == {len(rule)}
    assert lines[1].startswith("slow reads, barrier off")


def test_waits_are_shown_in_readable_units_and_absent_ones_as_a_dash():
    lines = table(GOOD).splitlines()
    assert " - " in lines[2]
    assert "300.0 ms" in lines[4]
    assert "2.00 s" in lines[5]


def test_the_sentence_says_that_garbage_came_without_an_error_and_was_named():
    assert "16 are garbage with HTTP 200, all named as exposed" in sentence(SALAD)
    assert "1 NOT named" in sentence(replace(SALAD, wrong_not_exposed=1))


def test_the_sentence_of_a_protected_phase_says_so():
    assert "attention ran only on KV that had verifiably landed" in sentence(WAITED)
    assert "verifiably landed" in sentence(SALAD)
    assert "attention ran only" not in sentence(SALAD)


def test_the_json_is_a_list_of_rows_with_every_column(tmp_path):
    path = tmp_path / "demo.json"
    write_json(GOOD, path)
    rows = json.loads(path.read_text())
    assert [row["phase"] for row in rows] == [
        "healthy",
        "slow reads, barrier off",
        "slow reads, barrier auto",
        "one hung read",
    ]
    assert rows[0] == {
        "phase": "healthy",
        "requests": 16,
        "right": 16,
        "wrong": 0,
        "error": 0,
        "exposed": 0,
        "wrong_not_exposed": 0,
        "unprotected_steps": 0,
        "timeouts": 0,
        "failed": 0,
        "wait_p50_s": None,
        "wait_p99_s": None,
    }
