import json

from moriio_observed.demo.client import Answer
from moriio_observed.demo.exposures import PHANTOM_HIT, LogFollower, judge

SINGLE_ENGINE = Answer("cmpl-reference-0", tokens=(1, 2, 3))


def line(request_id, marker="moriio_exposure "):
    event = {"request_id": request_id, "step": 7, "cause": "timeout"}
    return f"(Worker pid=1) WARNING 01-01 00:00:00 [x.py:1] {marker}{json.dumps(event)}\n"


def judge_one(answer, exposed=()):
    return judge([answer], [SINGLE_ENGINE], exposed)


def test_an_answer_with_the_reference_tokens_is_right():
    verdict = judge_one(Answer("cmpl-a-0", tokens=(1, 2, 3)))
    assert (verdict.right, verdict.wrong, verdict.error) == (1, 0, 0)


def test_an_answer_with_other_tokens_is_wrong_though_it_has_no_error():
    verdict = judge_one(Answer("cmpl-a-0", tokens=(1, 2, 4)))
    assert (verdict.right, verdict.wrong, verdict.error) == (0, 1, 0)


def test_a_failed_request_is_an_error_and_not_a_wrong_answer():
    verdict = judge_one(Answer("cmpl-a-0", error="HTTP 500"))
    assert (verdict.right, verdict.wrong, verdict.error) == (0, 0, 1)


def test_a_wrong_answer_is_joined_to_its_exposure_by_the_engines_id():
    wrong = Answer("cmpl-a-0", tokens=(9,))
    assert judge_one(wrong, ["cmpl-a-0-1234abcd"]).wrong_not_exposed == ()


def test_the_exposure_of_another_request_does_not_excuse_a_wrong_answer():
    wrong = Answer("cmpl-a-0", tokens=(9,))
    others = ["cmpl-b-0-1234abcd", "cmpl-a-01-1234abcd"]
    assert judge_one(wrong, others).wrong_not_exposed == ("cmpl-a-0",)


def test_events_are_those_written_after_the_follower_was_made(tmp_path):
    log = tmp_path / "decode.log"
    log.write_text(line("before"))
    follower = LogFollower(log)
    with log.open("a") as more:
        more.write("INFO nothing of ours\n" + line("after") + "INFO more\n")
    assert [event["request_id"] for event in follower.events()] == ["after"]


def test_kinds_of_events_are_told_apart(tmp_path):
    log = tmp_path / "decode.log"
    log.touch()
    follower = LogFollower(log)
    log.write_text(line("exposed") + line("phantom", PHANTOM_HIT))
    assert [event["request_id"] for event in follower.events()] == ["exposed"]
    assert [event["request_id"] for event in follower.events(PHANTOM_HIT)] == ["phantom"]


def test_a_line_that_is_still_being_written_is_left_for_later(tmp_path):
    log = tmp_path / "decode.log"
    log.touch()
    follower = LogFollower(log)
    whole = line("late")
    log.write_text(whole[:-10])
    assert follower.events() == []
    log.write_text(whole)
    assert [event["request_id"] for event in follower.events()] == ["late"]
