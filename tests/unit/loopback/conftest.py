import functools
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from moriio_observed.loopback import engine as engine_module
from moriio_observed.loopback import memory, transport
from moriio_observed.loopback.engine import FAULTS_VARIABLE, IOEngineSession
from moriio_observed.loopback.faultfile import FaultFile
from tests.unit.loopback.pair import Faults, Local, Peer


class Clock:
    """Stands in for the transport's `time`: transfers land when a test moves `now` on."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.kill()


@pytest.fixture
def faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Faults:
    path = tmp_path / "faults.json"
    monkeypatch.setenv(FAULTS_VARIABLE, str(path))
    # Every post looks, so that no test has to wait for the next look.
    always = functools.partial(FaultFile, check_interval_s=0.0)
    monkeypatch.setattr(engine_module, "FaultFile", always)
    return Faults(path)


@pytest.fixture
def local(peer: Peer, faults: Faults) -> Local:
    return Local(peer)


@pytest.fixture
def session(local: Local) -> IOEngineSession:
    return local.session()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(transport, "time", clock)
    return clock


@pytest.fixture
def held_copies(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """No byte moves until this event is set."""
    release = threading.Event()
    read = memory._readv

    def held(*arguments: int) -> int:
        release.wait()
        return read(*arguments)

    monkeypatch.setattr(memory, "_readv", held)
    yield release
    release.set()
