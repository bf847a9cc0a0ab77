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
        ({"thresholds": {"shere": 1}}, "thresholds.shere is no value, thresholds.share is"),
        ({"zebra": {"q": 1}}, "zebra.q is no value"),
        ({"thresholds": {"steps": "many"}}, "thresholds.steps is a number, not 'many'"),
        ({"selectors": {"engines": 7}}, "selectors.engines is a text, not 7"),
    ],
)
def test_what_is_misspelt_or_of_another_kind_is_refused(theirs, says) -> None:
    with pytest.raises(AlertsError, match=says):
        override(OURS, theirs)


@pytest.mark.parametrize("loaded", [None, [], {"thresholds": 7}])
def test_values_without_sections_are_refused(loaded) -> None:
    with pytest.raises(AlertsError, match="sections"):
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
