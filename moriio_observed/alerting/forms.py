"""What values have to look like, so that rules come of them that an engine takes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping

import promql_parser as promql

from moriio_observed.alerting.errors import ValuesError
from moriio_observed.alerting.values import Values, leaves

_LABELS = re.compile(r"\s*[a-zA-Z_]\w*\s*(,\s*[a-zA-Z_]\w*\s*)*", re.ASCII)


def check_forms(values: Values) -> None:
    """Look at every value of a section that has a form of its own.

    Raises:
        ValuesError: One does not have it.
    """
    for path, value in leaves(values):
        form, has_it = _FORMS.get(path.partition(".")[0], ("", None))
        if has_it is not None and not has_it(value):
            raise ValuesError(f"{path} is {form}, not {value!r}")


def _are_matchers(value: str | float) -> bool:
    try:
        promql.parse(f"x{{{value}}}")
    except ValueError:
        return False
    return True


def _are_labels(value: str | float) -> bool:
    return _LABELS.fullmatch(str(value)) is not None


def _is_threshold(value: str | float) -> bool:
    return not isinstance(value, str) and 0 <= value < math.inf


_FORMS: Mapping[str, tuple[str, Callable[[str | float], bool]]] = {
    "selectors": ('a list of matchers such as job="decode", namespace="prod"', _are_matchers),
    "labels": ("a list of labels such as job, model_name", _are_labels),
    "thresholds": ("a number from 0 on", _is_threshold),
}
"""What a value of a section has to be, and whether it is."""
