"""The file through which a running loopback is told which reads to harm."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class FaultFile:
    """Switches faults while servers run; `docs/loopback.md` has the format.

    Args:
        path: The file that the servers were started with.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.clear()

    def set(self, faults: Mapping[str, Any]) -> None:
        """Replace all faults by these."""
        fresh = self.path.with_suffix(".new")
        fresh.write_text(json.dumps(faults))
        # Atomic, so that a server never reads half a file.
        fresh.replace(self.path)

    def clear(self) -> None:
        """Let all reads be healthy."""
        self.set({})
