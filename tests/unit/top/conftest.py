import pytest


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    # Servers of tests are on this machine.
    monkeypatch.setenv("no_proxy", "*")
