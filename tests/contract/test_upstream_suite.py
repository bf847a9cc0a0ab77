"""Upstream's own MoRIIO unit tests of each version do with our class what they do without it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.contract.versions import BUILD
from tests.trees import VERSIONS, source_tree

# The first use of a version downloads it.
pytestmark = [pytest.mark.contract, pytest.mark.timeout(1200)]

SUITE = Path(__file__).with_name("upstream_suite")
KNOWN_OUTCOMES = tomllib.loads((SUITE / "known_outcomes.toml").read_text())

# A gate that no longer lifts what upstream skips would leave fewer.
AT_LEAST = {"0.28.0": 98, "0.29.0": 98, "0.30.0": 109, "0.31.0": 198, "0.32.0": 236, "0.33.0": 872}

BUDGET_S = 60
"""For both runs of a version on two free cores; printed, not asserted."""


@dataclass(frozen=True)
class Run:
    """One run of the suite: what became of each test, and how much of us took part."""

    outcomes: Mapping[str, str]
    ours: Mapping[str, int]
    output: str


@dataclass(frozen=True)
class Runs:
    """The suite of one version without us, and with our class in the place of upstream's."""

    version: str
    bare: Run
    observed: Run


@pytest.fixture(scope="module", params=VERSIONS)
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    version: str = request.param
    tree = source_tree(version)
    bare_folder, observed_folder = (tmp_path_factory.mktemp(version) for _ in range(2))
    started = time.monotonic()
    with ThreadPoolExecutor() as pool:
        without = pool.submit(run_suite, tree, bare_folder, observed=False)
        with_ours = pool.submit(run_suite, tree, observed_folder, observed=True)
        bare, observed = without.result(), with_ours.result()
    took_s = time.monotonic() - started
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(
            f"\nupstream's MoRIIO tests on {version}: "
            f"bare {tally(bare)}, with our class {tally(observed)}, "
            f"{took_s:.0f} s of a budget of {BUDGET_S} s"
        )
    return Runs(version, bare, observed)


def run_suite(tree: Path, folder: Path, *, observed: bool) -> Run:
    report = folder / "report.json"
    suite = sorted((tree / "tests/v1/kv_connector/unit").glob("test_moriio_*.py"))
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "--continue-on-collection-errors"),
            *("-c", os.devnull, "--rootdir", str(tree), "-p", "no:cacheprovider", "-W", "ignore"),
            # Upstream's conftest wants packages that these tests do not.
            *("--noconftest", "-p", "lifted_gate", *map(str, suite)),
        ],
        cwd=tree,
        env=os.environ
        | {
            "PYTHONPATH": os.pathsep.join([str(tree), str(SUITE)]),
            "PYTEST_ADDOPTS": "",
            "VLLM_TARGET_DEVICE": "cpu",
            "VLLM_PLUGINS": "",
            "VLLM_CACHE_ROOT": str(BUILD / "vllm-cache" / tree.name),
            "VLLM_MODEL_REDIRECT_PATH": str(local_models(folder)),
            "HF_HUB_OFFLINE": "1",
            "MORIIO_OBSERVED_LOOPBACK": "1",
            "UPSTREAM_SUITE_REPORT": str(report),
            "UPSTREAM_SUITE_OBSERVED": str(int(observed)),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if not report.exists():
        pytest.fail(f"upstream's tests did not run to their end:\n{done.stdout[-4000:]}")
    return Run(**json.loads(report.read_text()), output=done.stdout)


def local_models(folder: Path) -> Path:
    """vLLM's own redirection of a model's name, to a folder that holds its shape alone."""
    model = folder / "opt-125m"
    model.mkdir()
    # OPT's default shape is that of opt-125m.
    config = {"model_type": "opt", "architectures": ["OPTForCausalLM"], "torch_dtype": "float16"}
    (model / "config.json").write_text(json.dumps(config))
    redirections = folder / "models.json"
    redirections.write_text(json.dumps({"facebook/opt-125m": str(model)}))
    return redirections


def tally(run: Run) -> str:
    counts = Counter(run.outcomes.values())
    return ", ".join(f"{counts[outcome]} {outcome}" for outcome in sorted(counts))


def not_passing(run: Run) -> dict[str, str]:
    return {test: outcome for test, outcome in run.outcomes.items() if outcome != "passed"}


def test_the_gate_is_lifted_for_as_many_tests_as_are_known(runs: Runs) -> None:
    assert len(runs.bare.outcomes) >= AT_LEAST[runs.version]


def test_what_does_not_pass_without_us_is_listed_by_name(runs: Runs) -> None:
    listed = {test: known["outcome"] for test, known in KNOWN_OUTCOMES.items()}
    assert not_passing(runs.bare) == listed, runs.bare.output[-4000:]


def test_every_test_does_with_our_class_what_it_does_without(runs: Runs) -> None:
    assert not_passing(runs.observed) == not_passing(runs.bare), runs.observed.output[-4000:]
    assert runs.observed.outcomes.keys() == runs.bare.outcomes.keys()


def test_our_class_is_what_the_tests_make_and_its_hooks_are_installed(runs: Runs) -> None:
    assert not runs.bare.ours
    assert runs.observed.ours["connectors"] > 0
    assert runs.observed.ours["hook installations"] > 0
