"""Each version we support is named wherever versions are; what the checklist names is there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from tests.trees import VERSIONS

ROOT = Path(__file__).parents[3]
CHECKLIST = (ROOT / "docs" / "new-version.md").read_text()
SOURCES = "\n".join(
    path.read_text()
    for part in ("moriio_observed", "tests")
    for path in (ROOT / part).rglob("*.py")
)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("page", ["README.md", "docs/versions.md", "docs/guard.md"])
def test_a_supported_version_is_told(page: str, version: str) -> None:
    rows = [line for line in (ROOT / page).read_text().splitlines() if line.startswith("| 0.")]
    assert any(version in row for row in rows)


def test_the_extra_takes_the_supported_versions_and_not_the_next() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    [requirement] = extras["vllm"]
    taken = SpecifierSet(requirement.removeprefix("vllm"))
    major, minor, _ = map(int, VERSIONS[-1].split("."))
    assert all(version in taken for version in VERSIONS)
    assert f"{major}.{minor + 1}.0" not in taken


def code_names() -> list[str]:
    """What the checklist sets in backticks that names something in the code."""
    return sorted(set(re.findall(r"`(_?[A-Z][A-Z_]{3,}|test_\w+|[A-Z][a-z]+\.\w+)`", CHECKLIST)))


def paths() -> list[str]:
    found = re.findall(r"`((?:tests|moriio_observed|scripts)/[\w/.]+|pyproject\.toml)`", CHECKLIST)
    return sorted(set(found))


@pytest.mark.parametrize("name", code_names())
def test_what_the_checklist_names_is_in_the_code(name: str) -> None:
    is_file = (ROOT / "tests").rglob(f"{name}.py")
    last = name.rpartition(".")[2]
    assert any(is_file) or re.search(rf"^\s*(def |class )?{last}\b", SOURCES, re.MULTILINE)


@pytest.mark.parametrize("path", paths())
def test_what_the_checklist_sends_to_is_there(path: str) -> None:
    assert (ROOT / path).exists()


def test_the_checklist_names_what_it_should() -> None:
    assert {"VERSIONS", "ERAS", "AT_LEAST", "KNOWN", "NOT_RIGHT"} <= set(code_names())
    assert {"tests/trees.py", "pyproject.toml"} <= set(paths())
