"""YAML that users have written: read, or refused with the place and the reason."""

from __future__ import annotations

import pytest

from moriio_observed.alerting.yaml_text import NotYamlError, from_yaml, to_yaml


def test_what_is_written_is_read() -> None:
    document = {"expr": "a\n  > b", "for": "5m", "n": [1, 2.5, True, None]}
    assert from_yaml(to_yaml(document)) == document


def test_an_anchor_may_be_used_again() -> None:
    text = "a: &a {x: 1}\nb: *a\nc: {<<: *a, y: 2}\n"
    assert from_yaml(text) == {"a": {"x": 1}, "b": {"x": 1}, "c": {"x": 1, "y": 2}}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [", "while parsing"),
        ("a: 2001-99-99", "'2001-99-99' is no timestamp\n  .* line 1, column 4"),
        ("a: !!timestamp x", "'x' is no timestamp"),
        ("a: !!float x", "'x' is no float"),
        ("a: !!bool x", "'x' is no bool"),
        ("a:\n  b: 0x_", "'0x_' is no int\n  .* line 2, column 6"),
        ("a: " + "1" * 5000, "is no int"),
        ("a: &a [*a]", "recursive"),
        ("[" * 5000, "nested too deeply"),
    ],
)
def test_what_is_no_yaml_is_told_with_its_place(text: str, says: str) -> None:
    with pytest.raises(NotYamlError, match=says):
        from_yaml(text)
