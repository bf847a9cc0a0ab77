"""What we promise holds on the sources of every supported vLLM, through its own classes."""

from __future__ import annotations

import pytest

from tests.contract.versions import BUILD, HYBRID, SUITES, Runs
from tests.contract.versions_page import pages
from tests.trees import VERSIONS

# The first use of a version downloads it.
pytestmark = [pytest.mark.contract, pytest.mark.timeout(1800)]

HAS_NOTHING = {(version, HYBRID) for version in ("0.28.0", "0.29.0", "0.30.0")}
"""Suites of what a version does not have: MoRIIO reads recurrent state from 0.31 on."""


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("suite", SUITES)
def test_suite(runs: Runs, version: str, suite: str) -> None:
    run = runs.of(version)
    cases = run.of(suite)
    assert cases, f"it did not run on {version}:\n{run.output[-4000:]}"
    assert any(case.outcome == "passed" for case in cases) or (version, suite) in HAS_NOTHING
    failed = [case for case in cases if case.outcome == "failed"]
    told = "\n".join(f"{case.name}: {case.message}" for case in failed)
    assert not failed, f"on vLLM {version}:\n{told}\n{run.output[-8000:]}"


@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_has_failed_beside_the_suites(runs: Runs, version: str) -> None:
    run = runs.of(version)
    assert {case.suite for case in run.cases} <= set(SUITES)
    assert run.returncode == int(any(case.outcome == "failed" for case in run.cases))


@pytest.mark.parametrize("version", VERSIONS)
def test_the_docs_say_what_was_seen(runs: Runs, version: str) -> None:
    for page, seen in pages(runs.all()).items():
        fresh = BUILD / page.name
        fresh.write_text(seen)
        assert _about(version, page.read_text()) == _about(version, seen), (
            f"if what was seen is right, copy {fresh} to {page}"
        )


def _about(version: str, text: str) -> list[str]:
    """The text, without the rows of other versions."""
    lines = text.splitlines()
    return [line for line in lines if line.startswith(f"| {version}") or line[:3] != "| 0"]
