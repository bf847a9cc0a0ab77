import math
import re

import pytest

from moriio_observed.alerting.errors import AlertsError
from moriio_observed.alerting.forms import check_forms


@pytest.mark.parametrize(
    ("section", "value", "form"),
    [
        ("selectors", "job=decode", "a list of matchers"),
        ("selectors", 'job="decode"}', "a list of matchers"),
        ("labels", "job instance", "a list of labels"),
        ("labels", "", "a list of labels"),
        ("labels", "job, instance,", "a list of labels"),
        ("thresholds", "7", "a number from 0 on"),
        ("thresholds", -1, "a number from 0 on"),
        ("thresholds", math.nan, "a number from 0 on"),
        ("thresholds", math.inf, "a number from 0 on"),
    ],
)
def test_what_would_make_rules_that_no_engine_takes_is_refused(section, value, form) -> None:
    with pytest.raises(
        AlertsError, match=f"{section}.name is {form}.*not {re.escape(repr(value))}"
    ):
        check_forms({section: {"name": value}})


@pytest.mark.parametrize(
    ("section", "value"),
    [
        ("selectors", 'job=~"a|b", namespace!="x"'),
        ("selectors", ""),
        ("labels", "cluster,job , model_name"),
        ("thresholds", 0),
        ("thresholds", 1e-5),
    ],
)
def test_what_is_of_the_right_form_is_taken(section, value) -> None:
    check_forms({section: {"name": value}})
