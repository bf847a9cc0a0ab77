import importlib
import importlib.util
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from moriio_observed.loopback import LoopbackSettingError, activate, deactivate
from moriio_observed.loopback.engine import IOEngine, IOEngineSession
from moriio_observed.loopback.status import TransferStatus

ON = {"MORIIO_OBSERVED_LOOPBACK": "1"}
AUTO = {"MORIIO_OBSERVED_LOOPBACK": "auto"}
MODULES = ("mori", "mori.io", "mori.cpp")


def hiding(words: str) -> dict[str, str]:
    return {**ON, "MORIIO_OBSERVED_LOOPBACK_HIDE": words}


@pytest.fixture(autouse=True)
def _clean(caplog):
    caplog.set_level(logging.INFO)
    # Other tests of this process may run upstream's connector on the loopback.
    in_use = activate({})
    deactivate()
    saved = {name: sys.modules.pop(name) for name in MODULES if name in sys.modules}
    yield
    deactivate()
    for name in MODULES:
        sys.modules.pop(name, None)
    sys.modules.update(saved)
    if in_use:
        activate(ON)


@pytest.fixture
def real_mori(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    package = tmp_path / "mori"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "io.py").write_text("REAL = True")
    monkeypatch.syspath_prepend(tmp_path)
    return package


@pytest.mark.parametrize("environ", [{}, {"MORIIO_OBSERVED_LOOPBACK": "0"}])
def test_not_asked_for_it_does_nothing(environ, caplog):
    assert not activate(environ)
    assert "mori" not in sys.modules
    assert caplog.records == []


@pytest.mark.parametrize("environ", [ON, AUTO])
def test_asked_for_it_is_what_mori_io_imports(environ):
    assert activate(environ)
    assert importlib.import_module("mori.io").IOEngine is IOEngine
    assert importlib.import_module("mori").io is sys.modules["mori.io"]
    assert importlib.util.find_spec("mori.io") is not None


def test_what_the_loopback_lacks_is_a_missing_module():
    activate(ON)
    with pytest.raises(ModuleNotFoundError, match=r"mori\.ops"):
        importlib.import_module("mori.ops")


def test_asked_for_it_replaces_a_real_mori_and_says_so_in_one_line(real_mori, caplog):
    assert activate(ON)
    assert importlib.import_module("mori.io").IOEngine is IOEngine
    [record] = caplog.records
    assert str(real_mori) in record.getMessage()


def test_asked_for_it_replaces_a_real_mori_that_is_imported_already(real_mori):
    importlib.import_module("mori.io")
    assert activate(ON)
    assert importlib.import_module("mori.io").IOEngine is IOEngine


@pytest.mark.parametrize("imported", [False, True])
def test_auto_steps_aside_for_a_real_mori_with_one_clear_line(real_mori, caplog, imported):
    if imported:
        importlib.import_module("mori")
    assert not activate(AUTO)
    assert importlib.import_module("mori.io").REAL
    [record] = caplog.records
    assert "steps aside" in record.getMessage()
    assert "MORIIO_OBSERVED_LOOPBACK=auto" in record.getMessage()
    assert str(real_mori) in record.getMessage()


@pytest.mark.parametrize("value", ["yes", "", "2", "AUTO"])
def test_any_other_value_is_an_error_that_names_it_and_the_right_ones(value):
    with pytest.raises(LoopbackSettingError) as caught:
        activate({"MORIIO_OBSERVED_LOOPBACK": value})
    for part in ("MORIIO_OBSERVED_LOOPBACK=", repr(value), "1 ", "auto ", "0 "):
        assert part in str(caught.value)


def test_a_second_activation_changes_nothing(caplog):
    activate(ON)
    first = sys.modules["mori.io"]
    assert activate(ON)
    assert sys.modules["mori.io"] is first
    assert len(caplog.records) == 1


def test_deactivation_takes_the_stand_in_away():
    activate(ON)
    deactivate()
    assert not any(name in sys.modules for name in MODULES)


def test_deactivation_brings_a_displaced_mori_back(real_mori):
    real = importlib.import_module("mori.io")
    activate(ON)
    deactivate()
    assert importlib.import_module("mori.io") is real


def test_deactivation_without_activation_is_harmless():
    deactivate()
    deactivate()


def test_everything_is_there_when_nothing_is_hidden():
    activate(ON)
    assert all(map(hasattr, (TransferStatus, IOEngine), ("WaitFor", "wait_all")))
    assert all(map(hasattr, (IOEngineSession, IOEngine), ("alive", "pop_peer_failure")))
    assert hasattr(sys.modules["mori.io"], "PeerFailureEvent")


def test_waits_can_be_hidden_as_before_mori_1_2_0():
    activate(hiding("waits"))
    assert not hasattr(TransferStatus(), "WaitFor")
    assert not hasattr(IOEngine, "wait_all")
    assert hasattr(IOEngine, "pop_peer_failure")


def test_peer_failures_can_be_hidden_as_before_mori_1_2_4():
    activate(hiding("waits, peers"))
    assert not hasattr(IOEngine, "pop_peer_failure")
    assert not hasattr(IOEngineSession, "alive")
    assert not hasattr(sys.modules["mori.io"], "PeerFailureEvent")
    assert not hasattr(sys.modules["mori.io"], "PeerFailureReason")


def test_a_wait_without_limit_works_with_the_timed_ones_hidden():
    activate(hiding("waits"))
    status = TransferStatus()
    status.SetCode(sys.modules["mori.io"].StatusCode.SUCCESS)
    status.Wait()


def test_deactivation_shows_again_what_was_hidden():
    activate(hiding("waits,peers"))
    deactivate()
    assert all(map(hasattr, (TransferStatus, IOEngine), ("WaitFor", "wait_all")))
    assert all(map(hasattr, (IOEngineSession, IOEngine), ("alive", "pop_peer_failure")))


def test_an_unknown_word_to_hide_is_an_error_that_names_it_and_changes_nothing():
    with pytest.raises(LoopbackSettingError) as caught:
        activate(hiding("waits,wait"))
    for part in ("MORIIO_OBSERVED_LOOPBACK_HIDE='waits,wait'", "waits hides", "peers"):
        assert part in str(caught.value)
    assert "mori" not in sys.modules


def test_importing_and_activating_imports_no_torch():
    program = (
        "import sys; from moriio_observed import loopback;"
        "loopback.activate({'MORIIO_OBSERVED_LOOPBACK': '1'});"
        "import mori.io; assert 'torch' not in sys.modules; assert 'vllm' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
