"""What we promise holds on the sources of every supported vLLM, through its own classes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.contract.versions import BUILD, SUITES, VERSIONS_RUN, Run, run_on
from tests.contract.versions_page import PAGE, page
from tests.trees import VERSIONS

# The first use of a version downloads it.
pytestmark = [pytest.mark.contract, pytest.mark.timeout(1800)]

HAS_NOTHING = {
    (version, "tests/contract/on_each/test_hybrid.py") for version in ("0.28.0", "0.29.0", "0.30.0")
}
"""Suites of what a version does not have: MoRIIO reads recurrent state from 0.31 on."""
AT_ONCE = 2
"""Versions at the same time: each spends much of its run waiting for slow reads."""


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[Run]]]:
    """Every version's run, in order, some at the same time."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        running = {version: pool.submit(run_on, version) for version in VERSIONS}
        yield running
        request.config.stash[VERSIONS_RUN] = [future.result() for future in running.values()]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("suite", SUITES)
def test_suite(runs: dict[str, Future[Run]], version: str, suite: str) -> None:
    run = runs[version].result()
    cases = run.of(suite)
    assert cases, f"it did not run on {version}:\n{run.output[-4000:]}"
    assert any(case.outcome == "passed" for case in cases) or (version, suite) in HAS_NOTHING
    failed = [case for case in cases if case.outcome == "failed"]
    told = "\n".join(f"{case.name}: {case.message}" for case in failed)
    assert not failed, f"on vLLM {version}:\n{told}\n{run.output[-8000:]}"


def test_the_version_matrix_in_the_docs_is_what_was_seen(runs: dict[str, Future[Run]]) -> None:
    seen = page([future.result() for future in runs.values()])
    fresh = BUILD / PAGE.name
    fresh.write_text(seen)
    assert PAGE.read_text() == seen, f"if what was seen is right, copy {fresh} to {PAGE}"
