"""Prometheus' own tool: does it take the rules, and do they do what their tests say."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from moriio_observed.alerting.errors import AlertsError
from moriio_observed.alerting.formats import plain
from moriio_observed.alerting.rules import Group
from moriio_observed.alerting.yaml_text import to_yaml

RULES = "rules.yaml"


def find() -> str | None:
    """Where promtool is installed, None when it is not."""
    return shutil.which("promtool")


def check(groups: list[Group]) -> tuple[bool, str]:
    """Return whether promtool takes the rules without a complaint, and what it said."""
    with _files(groups, {}) as folder:
        return _run("check", "rules", "--lint=all", "--lint-fatal", RULES, folder=folder)


def test(groups: list[Group], tests: Mapping[str, Any]) -> tuple[bool, str]:
    """Return whether the rules pass promtool tests, and what it said.

    Args:
        groups: Rendered groups.
        tests: Test files by name; what they name as `rule_files` and as
            `group_eval_order` is replaced by the groups, in their order.
    """
    with _files(groups, tests) as folder:
        return _run("test", "rules", *tests, folder=folder)


@contextmanager
def _files(groups: list[Group], tests: Mapping[str, Any]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="moriio-alerts-") as name:
        folder = Path(name)
        (folder / RULES).write_text(to_yaml(plain(groups, {})), encoding="utf-8")
        # Without an order promtool evaluates groups in another one each time.
        order = [group["name"] for group in groups]
        for file, test in tests.items():
            text = to_yaml({**test, "rule_files": [RULES], "group_eval_order": order})
            (folder / file).write_text(text, encoding="utf-8")
        yield folder


def _run(*arguments: str, folder: Path) -> tuple[bool, str]:
    if (executable := find()) is None:
        raise AlertsError("promtool is not installed: it comes with Prometheus")
    done = subprocess.run(  # noqa: S603 - our own arguments
        [executable, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    return done.returncode == 0, done.stdout + done.stderr
