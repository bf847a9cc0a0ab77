from dataclasses import replace

from moriio_observed.demo.client import Answer
from moriio_observed.demo.exposures import EXPOSURE, PHANTOM_HIT, STALE_READ
from tests.faults.verdict import Asked, flags, judge

REFERENCE = Answer("cmpl-reference-0", tokens=(1, 2, 3))
RIGHT = Asked(Answer("cmpl-right-0", tokens=(1, 2, 3)), REFERENCE)
WRONG = Asked(Answer("cmpl-wrong-0", tokens=(1, 2, 4)), REFERENCE)
ERROR = Asked(Answer("cmpl-error-0", error="HTTP 500"), REFERENCE)
EVERYONE = [RIGHT, WRONG, ERROR]


def row(asked=EVERYONE, flagged=None):
    return judge("slow", "0.32.0", "report", asked, flagged or {})


def test_every_request_is_right_an_error_or_wrong_with_200():
    counted = row()
    assert (counted.requests, counted.right, counted.error, counted.wrong_200) == (3, 1, 1, 1)


def test_a_truncated_answer_is_wrong():
    assert row([replace(RIGHT, answer=Answer("cmpl-a-0", tokens=(1, 2)))]).wrong_200 == 1


def test_a_request_is_flagged_by_its_own_id_alone():
    counted = row(flagged={"cmpl-right-0-1234abcd": True, "cmpl-other-0-1234abcd": True})
    assert (counted.exposed, counted.right_flagged, counted.wrong_flagged) == (1, 1, 0)
    assert counted.unflagged == ("cmpl-wrong-0",)


def test_a_flagged_error_is_exposed_but_neither_right_nor_wrong():
    counted = row(flagged={"cmpl-error-0-1234abcd": True})
    assert (counted.exposed, counted.right_flagged, counted.wrong_flagged) == (1, 0, 0)


def test_each_choice_of_a_request_has_an_id_of_its_own():
    first = replace(WRONG, answer=Answer("0_cmpl-wrong-0", tokens=(9,)))
    second = replace(WRONG, answer=Answer("1_cmpl-wrong-0", tokens=(9,)))
    counted = row([first, second], {"1_cmpl-wrong-0-1234abcd": True})
    assert counted.unflagged == ("0_cmpl-wrong-0",)


def test_precision_is_the_share_of_wrong_answers_among_the_flagged_of_each_certainty():
    flagged = {"cmpl-right-0-1": False, "cmpl-wrong-0-1": True}
    assert row(flagged=flagged).precision == (1.0, 0.0)
    assert row(flagged=dict.fromkeys(flagged, True)).precision == (0.5, None)
    assert row(flagged=dict.fromkeys(flagged, False)).precision == (None, 0.5)


def test_errors_do_not_count_for_precision():
    assert row(flagged={"cmpl-error-0-1": True}).precision == (None, None)


def test_all_kinds_of_log_lines_flag():
    events = {
        EXPOSURE: [{"request_id": "a", "certainty": "possible"}],
        PHANTOM_HIT: [{"request_id": "b"}],
        STALE_READ: [{"request_id": "c"}],
    }
    assert flags(events) == {"a": False, "b": True, "c": False}


def test_one_certain_line_makes_a_request_certain_whatever_comes_after():
    lines = [
        {"request_id": "a", "certainty": certainty}
        for certainty in ("possible", "certain", "possible")
    ]
    assert flags({EXPOSURE: lines}) == {"a": True}
