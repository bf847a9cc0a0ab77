import os

import pytest


@pytest.fixture(autouse=True)
def _nobodys_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The doctor looks at its own environment where none is given: let there be nothing in it."""
    for name in os.environ:
        if name.startswith(("MORIIO_", "VLLM_", "OTEL_")):
            monkeypatch.delenv(name)
    # Servers of tests are on this machine.
    monkeypatch.setenv("no_proxy", "*")
