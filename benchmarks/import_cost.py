"""What importing our connector costs beyond upstream's own, which vLLM imports in either case.

Each round is a process of its own: an import is paid for once in a process.
"""

from __future__ import annotations

import compileall
import json
import statistics
import subprocess
import sys
from pathlib import Path

import moriio_observed

ROUNDS = 5
BUDGET_S = 0.050

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


def import_cost() -> bool:
    """Seconds that our connector's module adds to the import of upstream's."""
    # As an installation does: compiling is paid for once, not at every start.
    compileall.compile_dir(Path(moriio_observed.__file__).parent, quiet=1)
    rounds = [imports() for _ in range(ROUNDS)]
    upstreams, ours = (statistics.median(each) for each in zip(*rounds, strict=True))
    print(
        f"import of the connector, median of {ROUNDS} processes: upstream's {upstreams:.2f} s, "
        f"ours {ours * 1e3:.1f} ms more (budget {BUDGET_S * 1e3:.0f} ms), ratio "
        f"{(upstreams + ours) / upstreams:.4f}"
    )
    return ours <= BUDGET_S


def imports() -> tuple[float, float]:
    """Seconds of upstream's import and of ours after it, in a new process."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS], stdout=subprocess.PIPE, text=True, check=True
    )
    upstreams, ours = json.loads(done.stdout.splitlines()[-1])
    return upstreams, ours


if __name__ == "__main__":
    sys.exit(not import_cost())
