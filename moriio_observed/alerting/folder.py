"""The sources on disk: `values.yaml`, `rules/`, `alerts/` and `tests/` of one folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from moriio_observed.alerting.errors import AlertsError
from moriio_observed.alerting.rules import Group
from moriio_observed.alerting.values import Values, override, parse_values


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
        ours = parse_values(_load(self.path / "values.yaml"))
        return ours if own is None else override(ours, parse_values(_load(own)))

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
        return {path.name: _load(path) for path in sorted((self.path / "tests").glob("*.yaml"))}

    def _groups(self, kind: str) -> Iterator[Group]:
        for path in sorted((self.path / kind).glob("*.yaml")):
            try:
                yield from _load(path)["groups"]
            except (KeyError, TypeError):
                raise AlertsError(f"{path} has no groups") from None


def _load(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise AlertsError(f"{path} is no YAML: {error}") from error
    except OSError as error:
        raise AlertsError(f"{path} cannot be read: {error.strerror}") from error
