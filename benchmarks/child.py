"""One benchmark in a process of its own: ``python -m benchmarks.child NAME ROWS_FILE``."""

from __future__ import annotations

import gc
import importlib
import logging
import os
import sys
from pathlib import Path

import pytest

from benchmarks.result import to_json


def main(name: str, file: Path) -> None:
    """Run a benchmark's module and write its rows."""
    # Exposures and timeouts are made on purpose here, by the hundred.
    logging.disable(logging.ERROR)
    module = importlib.import_module(f"benchmarks.{name}")
    gc.collect()
    gc.freeze()
    with pytest.MonkeyPatch.context() as patch:
        file.write_text(to_json(module.rows(patch)))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
    sys.stdout.flush()
    sys.stderr.flush()
    # Without the interpreter's own end, in which vLLM's dependencies bury the result in warnings.
    os._exit(0)
