"""How a recording is replayed."""

from __future__ import annotations

import pytest

from tests.incident.recording import ERROR, RIGHT, WRONG, Answer, Recording, load, save
from tests.incident.rules import evaluate, words
from tests.incident.story import PAGE, Firing, Replay, Story, firings, wrong_at
from tests.incident.timeline import Timeline, aligned, in_a_row, repeated, scraped
from tests.tools import needs

COUNTER, GAUGE = 'a_total{job="j"}', 'b{job="j"}'
RULES = [
    {
        "name": "group",
        "rules": [
            {"record": "job:a:sum", "expr": "sum by (job) (a_total)"},
            {
                "alert": "Above",
                "expr": "job:a:sum > 3",
                "for": "15s",
                "labels": {"severity": "page"},
                "annotations": {"summary": '{{ $value }} of "{{ $labels.job }}"'},
            },
        ],
    }
]


def recording(series, answers=(), first_late_s=None) -> Recording:
    return Recording({}, 5.0, series, answers, [], first_late_s, {})


def answers(*outcomes: str) -> list[Answer]:
    return [Answer(number, number + 1, outcome) for number, outcome in enumerate(outcomes)]


def test_prometheus_sees_every_third_of_scrapes_that_are_five_seconds_apart() -> None:
    seen = scraped(recording({GAUGE: [0, 1, 2, 3, 4, 5, 6]}), first=1, delay=2)
    assert seen.series[GAUGE] == [None, None, None, 1, None, None, 4, None, None]


def test_a_prometheus_that_scrapes_when_it_evaluates_sees_every_third_from_the_first() -> None:
    seen = aligned(recording({GAUGE: [0, 1, 2, 3, None, 5, 6]}))
    assert seen == Timeline(15, {GAUGE: [0, 3, 6]})


def test_counters_go_on_from_where_they_stood_and_gauges_begin_again() -> None:
    longer = repeated(Timeline(15.0, {COUNTER: [7, 9, 12], GAUGE: [1, 5, 2]}), 75.0)
    assert longer.series == {COUNTER: [7, 9, 12, 12, 14, 17], GAUGE: [1, 5, 2, 1, 5, 2]}


def test_between_two_recordings_nothing_is_scraped() -> None:
    first, second = Timeline(15.0, {GAUGE: [1, 2]}), Timeline(15.0, {GAUGE: [3], COUNTER: [4]})
    joined = in_a_row(first, 30.0, second).series
    assert joined == {GAUGE: [1, 2, None, None, 3], COUNTER: [None, None, None, None, 4]}


@pytest.mark.parametrize(
    ("outcomes", "at"),
    [
        ([RIGHT] * 99 + [WRONG], 100),
        ([RIGHT] * 100 + [WRONG], None),
        ([WRONG], 1),
        ([RIGHT] * 200, None),
    ],
)
def test_one_in_a_hundred_is_counted_from_the_very_first_answer(outcomes, at) -> None:
    assert wrong_at(recording({}, answers(*outcomes), first_late_s=0.0)) == at


def test_answers_from_before_the_first_late_read_count_for_nothing() -> None:
    assert wrong_at(recording({}, answers(*[RIGHT] * 500, WRONG), first_late_s=500.0)) == 501


def test_a_request_that_failed_is_no_answer() -> None:
    outcomes = [*[RIGHT] * 98, ERROR, ERROR, WRONG]
    assert wrong_at(recording({}, answers(*outcomes), first_late_s=0.0)) == len(outcomes)


def test_without_a_late_read_nothing_is_counted() -> None:
    assert wrong_at(recording({}, answers(WRONG))) is None


SALAD = recording({}, answers(*[RIGHT] * 150, WRONG, WRONG), first_late_s=0.0)
"""1 % is wrong at 152."""


def told(*first_pages: Firing | None, incident=SALAD, first_page=None, **other) -> Story:
    empty = Timeline(15.0, {})
    replays = [Replay(empty, 0.0, [page] if page else []) for page in first_pages]
    page = {"cause": "full_graph", "runbook_url": "there"} if first_page is None else first_page
    return Story(incident, replays, page, other.get("false_alarms", []), 1800.0)


def page(at_s: float, alert: str = PAGE) -> Firing:
    return Firing(at_s, {"alertname": alert, "severity": "page"})


def test_a_page_before_one_in_a_hundred_is_wrong_is_accepted() -> None:
    one = told(page(10), page(30))
    assert list(one.shortfalls()) == []
    assert one.result() == {
        "first_page_s": 30.0,
        "wrong_1pct_s": 152.0,
        "first_page": {"cause": "full_graph", "runbook_url": "there"},
        "false_alarms": 0,
        "healthy_minutes": 30.0,
    }


TICKET = Firing(5, {"alertname": "Reads", "severity": "ticket"})
QUIET = recording({}, answers(*[RIGHT] * 9), first_late_s=1.0)
EARLY = recording({}, answers(*[WRONG] * 9), first_late_s=5.0)


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (told(page(10), page(152)), "1 % was wrong after 152.0 s, the first page"),
        (told(page(10), None), "not always MoriioUnprotectedSteps: nothing"),
        (told(page(-5), page(10)), "somebody is paged 5.0 s before a read"),
        (told(page(10, "Other"), page(10)), "not always MoriioUnprotectedSteps: Other"),
        (told(page(10), first_page={"cause": "full_graph"}), "names no runbook_url"),
        (told(page(10), first_page={"runbook_url": "there"}), "names no cause"),
        (told(page(10), false_alarms=[TICKET]), "in healthy minutes fired Reads"),
        (told(page(10), incident=recording({}, answers(WRONG))), "no read was late"),
        (told(page(10), incident=QUIET), "at no time was one answer in 100 wrong"),
        (told(page(10), incident=EARLY), "an answer was wrong before a read was known to be late"),
    ],
)
def test_whatever_falls_short_is_said(one: Story, why: str) -> None:
    assert any(why in said for said in one.shortfalls())


@needs("promtool")
def test_rules_that_prometheus_cannot_evaluate_are_not_taken_for_quiet_ones() -> None:
    twice = [{"name": "group", "rules": [{"record": "a:b:c", "expr": "b * on (job) group_left b"}]}]
    many = {f'b{{job="j",at="{at}"}}': [1, 1, 1, 1] for at in range(2)}
    with pytest.raises(ValueError, match="many-to-many"):
        evaluate(twice, scraped(recording(many)))
    with pytest.raises(ValueError, match="could not evaluate"):
        evaluate(RULES, scraped(recording({COUNTER: [1, 2]})), "no query at all")


@needs("promtool")
def test_an_alert_fires_at_the_evaluation_at_which_prometheus_says_so() -> None:
    timeline = scraped(recording({COUNTER: list(range(20))}))
    samples = evaluate(RULES, timeline)
    assert [(one.at_s, one.alert) for one in firings(samples)] == [(45.0, "Above")]
    assert [s.value for s in samples if s.labels["__name__"] == "job:a:sum"][:3] == [0, 3, 6]
    assert words(RULES, timeline, "Above", 45.0) == {"summary": '9 of "j"'}


def test_a_recording_is_read_as_it_was_written(tmp_path) -> None:
    one = recording({GAUGE: [1, None]}, answers(RIGHT, WRONG), first_late_s=2.5)
    save(one, tmp_path / "one.json.gz")
    assert load(tmp_path / "one.json.gz") == one
