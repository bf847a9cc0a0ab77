"""The sources on disk: `values.yaml`, `rules/`, `alerts/` and `tests/` of one folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moriio_observed.alerting.errors import AlertsError, ValuesError
from moriio_observed.alerting.forms import check_forms
from moriio_observed.alerting.rules import Group, malformed
from moriio_observed.alerting.values import Values, override, parse_values
from moriio_observed.alerting.yaml_text import NotYamlError, from_yaml


@dataclass(frozen=True, slots=True)
class Folder:
    """A user's own copy of our `alerts/`, or ours.

    Attributes:
        path: Where it is.
    """

    path: Path

    def values(self, own: Path | None = None) -> Values:
        """Return the folder's values with those of the user's file in their place.

        Raises:
            AlertsError: A file cannot be read, or names what is not there.
        """
        ours = _values(self.path / "values.yaml")
        return ours if own is None else _values(own, over=ours)

    def sources(self) -> list[Group]:
        """Return every rule group with its placeholders, recording rules first.

        Raises:
            AlertsError: A file cannot be read, or there are no rules.
        """
        groups = [*self._groups("rules"), *self._groups("alerts")]
        if not groups:
            raise AlertsError(f"{self.path} has no rules: name the folder with --dir")
        return groups

    def tests(self) -> Mapping[str, Any]:
        """Return every file of promtool tests by its name.

        Raises:
            AlertsError: A file cannot be read.
        """
        return {path.name: _tests(path) for path in sorted((self.path / "tests").glob("*.yaml"))}

    def _groups(self, kind: str) -> Iterator[Group]:
        for path in sorted((self.path / kind).glob("*.yaml")):
            loaded = _load(path)
            groups = loaded.get("groups") if isinstance(loaded, Mapping) else None
            if not isinstance(groups, list):
                raise AlertsError(f"{path} has no groups")
            for group in groups:
                if (problem := malformed(group)) is not None:
                    raise AlertsError(f"{path}: {problem}")
                yield group


def _values(path: Path, *, over: Values | None = None) -> Values:
    try:
        values = parse_values(_load(path))
        values = values if over is None else override(over, values)
        check_forms(values)
    except ValuesError as error:
        raise AlertsError(f"{path}: {error}") from error
    return values


def _tests(path: Path) -> Mapping[str, Any]:
    loaded: Any = _load(path)
    cases = loaded.get("tests") if isinstance(loaded, Mapping) else None
    if not isinstance(cases, list) or not all(isinstance(case, Mapping) for case in cases):
        raise AlertsError(f"{path} has no tests")
    return {**loaded}


def _load(path: Path) -> Any:
    try:
        return from_yaml(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise AlertsError(f"{path} is no text in UTF-8") from error
    except NotYamlError as error:
        raise AlertsError(f"{path} is no YAML: {error}") from error
    except OSError as error:
        raise AlertsError(f"{path} cannot be read: {error.strerror}") from error
