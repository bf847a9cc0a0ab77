"""YAML: read with one clear error, and written so that a person can read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from moriio_observed.config import shown


class NotYamlError(ValueError):
    """A text is not YAML; the message says where it stops to be."""


def from_yaml(text: str) -> Any:
    """Read YAML.

    Raises:
        NotYamlError: It is none, or a value is not what it is said to be, or holds itself.
    """
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506  (a safe one)
    except yaml.YAMLError as error:
        raise NotYamlError(str(error)) from None
    except RecursionError:
        raise NotYamlError("it is nested too deeply") from None


class _Loader(yaml.SafeLoader):
    """Says of every value that cannot be had where it stands."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: ARG002
        try:
            # Deep, because only then a list that holds itself is refused.
            return super().construct_object(node, deep=True)
        except (ValueError, LookupError, AttributeError, TypeError):
            # PyYAML stumbles in any of these ways, as over 2001-99-99 or !!float x.
            kind = node.tag.rpartition(":")[2]
            raise yaml.constructor.ConstructorError(
                problem=f"{shown(node.value)} is no {kind}", problem_mark=node.start_mark
            ) from None


class _Dumper(yaml.SafeDumper):
    """Writes queries as they were written: over several lines."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def to_yaml(document: Mapping[str, Any]) -> str:
    """Return a document as YAML."""
    text: str = yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=1000, allow_unicode=True)
    return text
