"""What `moriio-observed alerts` does: check, test and render a folder's rules."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from moriio_observed.alerting import conventions, promtool
from moriio_observed.alerting.folder import Folder
from moriio_observed.alerting.formats import FORMATS
from moriio_observed.alerting.rules import Group, render_groups
from moriio_observed.alerting.values import Values
from moriio_observed.alerting.yaml_text import to_yaml


@dataclass(frozen=True, slots=True)
class Copy:
    """Somebody's copy of the rules and how they want them.

    Attributes:
        folder: Where the sources are.
        own: A file with values of their own, None for ours.
        keep_firing_for: Whether their engine knows the key.
    """

    folder: Folder
    own: Path | None
    keep_firing_for: bool

    def values(self) -> Values:
        """The folder's values with the user's in their place.

        Raises:
            AlertsError: A file cannot be read, or names what is not there.
        """
        return self.folder.values(self.own)

    def groups(self, values: Values) -> list[Group]:
        """The rules with values in place.

        Raises:
            AlertsError: A file cannot be read, or a placeholder has no value.
        """
        return render_groups(self.folder.sources(), values, keep_firing_for=self.keep_firing_for)


def check(copy: Copy) -> int:
    """Print what is wrong with the rules; the answer is the exit code.

    Raises:
        AlertsError: The rules or values cannot be used.
    """
    values, sources = copy.values(), copy.folder.sources()
    problems = [
        *conventions.problems(sources, values),
        *conventions.untested(sources, copy.folder.tests()),
    ]
    for problem in problems:
        print(problem, file=sys.stderr)
    if promtool.find() is None:
        print("promtool is not installed: its own checks were left out", file=sys.stderr)
        return int(bool(problems))
    passed, said = promtool.check(copy.groups(values))
    print(said.strip(), file=sys.stdout if passed else sys.stderr)
    return int(bool(problems) or not passed)


def test(copy: Copy) -> int:
    """Run the folder's promtool tests; the answer is the exit code.

    Raises:
        AlertsError: The rules or values cannot be used, or promtool is not installed.
    """
    # The series of the tests are not the user's, and what they say is ours: thresholds are tried.
    values = {**copy.folder.values(), "thresholds": copy.values()["thresholds"]}
    passed, said = promtool.test(copy.groups(values), copy.folder.tests())
    print(said.strip(), file=sys.stdout if passed else sys.stderr)
    return int(not passed)


def render(copy: Copy, form: str, out: Path | None) -> int:
    """Write the rules in one of the `FORMATS`, to standard output when no file is named.

    Raises:
        AlertsError: The rules or values cannot be used.
    """
    values = copy.values()
    text = to_yaml(FORMATS[form](copy.groups(values), values))
    if out is None:
        print(text, end="")
    else:
        out.write_text(text, encoding="utf-8")
    return 0
