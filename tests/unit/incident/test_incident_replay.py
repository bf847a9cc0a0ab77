"""How a recording is replayed."""

from __future__ import annotations

import pytest

from tests.incident.recording import RIGHT, WRONG, Answer, Recording, load, save
from tests.incident.rules import evaluate, words
from tests.incident.story import firings, wrong_at
from tests.incident.timeline import Timeline, in_a_row, repeated, scraped
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


@needs("promtool")
def test_an_alert_fires_at_the_evaluation_at_which_prometheus_says_so() -> None:
    timeline = scraped(recording({COUNTER: list(range(20))}))
    samples = evaluate(RULES, timeline)
    assert [(one.at_s, one.alert) for one in firings(samples)] == [(45.0, "Above")]
    assert [s.value for s in samples if s.labels["__name__"] == "job:a:sum"][:3] == [0, 3, 6]
    assert words(RULES, timeline, "Above", 45.0) == {"summary": '9 of "j"'}


def test_a_recording_is_read_as_it_was_written(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("tests.incident.recording.FOLDER", tmp_path)
    one = recording({GAUGE: [1, None]}, answers(RIGHT, WRONG), first_late_s=2.5)
    save(one, tmp_path / "one.json.gz")
    assert load("one") == one
