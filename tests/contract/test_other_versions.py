"""What holds on the installed vLLM holds on the seed's own release, on its own classes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trees import vllm_tree

pytestmark = pytest.mark.contract

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "suite", ["tests/unit/test_connector.py", "tests/unit/telemetry/test_vllm_stats.py"]
)
def test_the_suite_passes_on_vllm_0_30_0(suite: str) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", suite],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(vllm_tree("0.30.0")), "VLLM_TARGET_DEVICE": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-4000:]
    passed = re.search(r"(\d+) passed", run.stdout)
    assert passed is not None
    assert int(passed.group(1)) > 10
