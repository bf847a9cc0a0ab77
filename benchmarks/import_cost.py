"""What importing our connector costs beyond upstream's own, which vLLM imports in either case.

Each round is a process of its own: an import is paid for once in a process.
"""

from __future__ import annotations

import compileall
import json
import subprocess
import sys
from pathlib import Path

import pytest

import moriio_observed
from benchmarks.result import Budget, On, Row, compared

ROUNDS = 5
MORE = Budget(On.MORE, 50)
"""Milliseconds."""

IMPORTS = """
import json, time
from moriio_observed import loopback
loopback.activate({"MORIIO_OBSERVED_LOOPBACK": "auto"})
began = time.perf_counter()
import vllm.distributed.kv_transfer.kv_connector.v1.moriio.moriio_connector
upstreams = time.perf_counter()
import moriio_observed.connector
print(json.dumps([upstreams - began, time.perf_counter() - upstreams]))
"""


def rows(_patch: pytest.MonkeyPatch) -> list[Row]:
    """Milliseconds of importing upstream's connector, and of ours with it."""
    # As an installation does: compiling is paid for once, not at every start.
    compileall.compile_dir(Path(moriio_observed.__file__).parent, quiet=1)
    rounds = [imports() for _ in range(ROUNDS)]
    bare = [upstreams * 1e3 for upstreams, _ in rounds]
    ours = [(upstreams + more) * 1e3 for upstreams, more in rounds]
    return [compared("import of the connector", "ms", ours, bare, MORE)]


def imports() -> tuple[float, float]:
    """Seconds of upstream's import and of ours after it, in a new process."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS], stdout=subprocess.PIPE, text=True, check=True
    )
    upstreams, ours = json.loads(done.stdout.splitlines()[-1])
    return upstreams, ours
