import re

import pytest

from moriio_observed.alerting.errors import AlertsError
from moriio_observed.alerting.values import override, parse_values, substitute

OURS = {"selectors": {"engines": 'job!=""'}, "thresholds": {"steps": 0, "share": 0.25}}


def test_what_the_user_does_not_name_stays_ours() -> None:
    theirs = {"thresholds": {"share": 0.5}}
    assert override(OURS, theirs) == {
        "selectors": {"engines": 'job!=""'},
        "thresholds": {"steps": 0, "share": 0.5},
    }


@pytest.mark.parametrize(
    ("theirs", "says"),
    [
        ({"thresholds": {"shere": 1}}, "thresholds.shere (1) is no value; thresholds.share is"),
        ({"zebra": {"q": 1}}, "zebra.q (1) is no value"),
        ({"thresholds": {"steps": "1e-4"}}, "thresholds.steps is a number such as 0, not '1e-4'"),
        ({"selectors": {"engines": 7}}, "selectors.engines is a text such as 'job!=\"\"', not 7"),
    ],
)
def test_what_is_misspelt_or_of_another_kind_is_refused(theirs, says) -> None:
    with pytest.raises(AlertsError, match=re.escape(says)):
        override(OURS, theirs)


@pytest.mark.parametrize(
    ("loaded", "says"),
    [
        (None, "values are sections of names"),
        ([], "values are sections of names"),
        ({"thresholds": 7}, "thresholds is a section, not 7"),
        ({"thresholds": None}, "thresholds is a section, not None"),
    ],
)
def test_values_without_sections_are_refused(loaded, says) -> None:
    with pytest.raises(AlertsError, match=says):
        parse_values(loaded)


@pytest.mark.parametrize("value", [True, None, [1], {"a": 1}])
def test_a_value_is_a_number_or_a_text(value) -> None:
    with pytest.raises(AlertsError, match=r"thresholds\.steps is a number or a text"):
        parse_values({"thresholds": {"steps": value}})


def test_values_stand_where_they_are_named_however_deep() -> None:
    source = {"rules": [{"expr": "x{${selectors.engines}} > ${thresholds.share}", "limit": 3}]}
    assert substitute(source, OURS) == {"rules": [{"expr": 'x{job!=""} > 0.25', "limit": 3}]}


def test_what_prometheus_itself_replaces_is_left_alone() -> None:
    text = "{{ $labels.job }} has {{ $value | humanize }}"
    assert substitute(text, OURS) == text


def test_a_placeholder_without_a_value_is_an_error() -> None:
    with pytest.raises(AlertsError, match=r"\$\{thresholds.none\} is in a rule"):
        substitute("${thresholds.none}", OURS)


def test_a_misspelt_placeholder_is_told_what_may_be_meant() -> None:
    with pytest.raises(AlertsError, match=r"\$\{thresholds.shares\} .*; thresholds.share is"):
        substitute("> ${thresholds.shares}", OURS)


@pytest.mark.parametrize("text", ["x > ${thresholds.share", "x > ${thresholds.share\nand y"])
def test_a_placeholder_that_is_not_closed_is_an_error(text) -> None:
    with pytest.raises(AlertsError, match=r"\$\{thresholds.share in a rule is not closed"):
        substitute(text, OURS)
