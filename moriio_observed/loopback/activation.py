"""Putting the stand-in in the place of `mori`, and taking it away again."""

import importlib.util
import os
import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from types import ModuleType

from moriio_observed.log import get_logger
from moriio_observed.loopback import descriptors, engine, enums, status

logger = get_logger(__name__)

SWITCH_VARIABLE = "MORIIO_OBSERVED_LOOPBACK"
HIDE_VARIABLE = "MORIIO_OBSERVED_LOOPBACK_HIDE"

VERSION = "0+loopback"

_API: dict[str, type] = {
    api.__name__: api
    for api in (
        descriptors.EngineDesc,
        descriptors.FabricBackendConfig,
        descriptors.IOEngineConfig,
        descriptors.MemoryDesc,
        descriptors.PeerFailureEvent,
        descriptors.RdmaBackendConfig,
        descriptors.XgmiBackendConfig,
        engine.IOEngine,
        engine.IOEngineSession,
        enums.BackendType,
        enums.MemoryLocationType,
        enums.PeerFailureReason,
        enums.PollCqMode,
        enums.StatusCode,
        status.TransferStatus,
    )
}

# What mori had not yet before 1.2.0 ("waits") and before 1.2.4 ("peers").
_METHODS: dict[str, tuple[tuple[type, str], ...]] = {
    "waits": ((status.TransferStatus, "WaitFor"), (engine.IOEngine, "wait_all")),
    "peers": ((engine.IOEngine, "pop_peer_failure"), (engine.IOEngineSession, "alive")),
}
_CLASSES = {"waits": frozenset[str](), "peers": {"PeerFailureEvent", "PeerFailureReason"}}


class LoopbackSettingError(ValueError):
    """A `MORIIO_OBSERVED_LOOPBACK…` variable has a value it cannot have."""


class _Standin:
    """The stand-in while it is in place: what it displaced, and what it hides."""

    def __init__(self, hidden: set[str]) -> None:
        self._methods = {
            (owner, name): getattr(owner, name) for word in hidden for owner, name in _METHODS[word]
        }
        for owner, name in self._methods:
            delattr(owner, name)
        hidden_classes = {name for word in hidden for name in _CLASSES[word]}
        api = {name: value for name, value in _API.items() if name not in hidden_classes}
        self._displaced = {
            name: sys.modules.pop(name)
            for name in list(sys.modules)
            if name == "mori" or name.startswith("mori.")
        }
        mori = _module("mori", {"__path__": [], "__version__": VERSION})
        # The real package keeps the transfer status in `mori.cpp` alone; the rest is in both.
        for name in ("io", "cpp"):
            setattr(mori, name, _module(f"mori.{name}", api))

    def remove(self) -> None:
        for (owner, name), method in self._methods.items():
            setattr(owner, name, method)
        for name in ("mori", "mori.io", "mori.cpp"):
            sys.modules.pop(name, None)
        sys.modules.update(self._displaced)


_standin: _Standin | None = None


def activate(environ: Mapping[str, str] = os.environ) -> bool:
    """Put the stand-in in the place of `mori`, if the environment asks for it. Idempotent.

    Args:
        environ: Where `MORIIO_OBSERVED_LOOPBACK` (`1`, `auto`, `0` or unset) and
            `MORIIO_OBSERVED_LOOPBACK_HIDE` (`waits`, `peers`, or both with a comma) are looked up.

    Returns:
        Whether `mori` is the stand-in now.

    Raises:
        LoopbackSettingError: A variable has another value; the text names it.
    """
    global _standin  # noqa: PLW0603 (as there is one sys.modules)
    if _standin is not None:
        return True
    wanted, hidden = _wanted(environ), _hidden(environ)
    if wanted == "0":
        logger.debug(
            "the loopback steps aside: %s does not ask for it; mori is whatever is installed",
            SWITCH_VARIABLE,
        )
        return False
    real = _real_mori()
    if real and wanted == "auto":
        logger.info(
            "a real mori is installed (%s) and is used; the loopback steps aside because %s=auto, "
            "set it to 1 to have the loopback instead",
            real,
            SWITCH_VARIABLE,
        )
        return False
    _standin = _Standin(hidden)
    logger.info(
        "mori is the loopback of moriio_observed: one machine, no RDMA%s%s",
        f"; the real mori ({real}) is not used" if real else "",
        f"; hidden as in older releases: {', '.join(sorted(hidden))}" if hidden else "",
    )
    return True


def deactivate() -> None:
    """Undo `activate`: what stood in the place of `mori` before stands there again."""
    global _standin  # noqa: PLW0603
    if _standin is not None:
        _standin.remove()
        _standin = None


def _wanted(environ: Mapping[str, str]) -> str:
    value = environ.get(SWITCH_VARIABLE, "0")
    if value not in ("0", "1", "auto"):
        raise LoopbackSettingError(
            f"{SWITCH_VARIABLE}={value!r} is not understood: 1 puts the loopback in the place of "
            "mori, auto does so only where no mori is installed, 0 (or unset) leaves mori alone"
        )
    return value


def _hidden(environ: Mapping[str, str]) -> set[str]:
    value = environ.get(HIDE_VARIABLE, "")
    words = {word.strip() for word in value.split(",") if word.strip()}
    if words - _METHODS.keys():
        raise LoopbackSettingError(
            f"{HIDE_VARIABLE}={value!r} is not understood: waits hides what mori has since 1.2.0, "
            "peers what it has since 1.2.4; give one, or both with a comma between"
        )
    return words


def _real_mori() -> str | None:
    """Return where the real mori is installed, without importing it; None if it is not."""
    loaded = sys.modules.get("mori")
    if loaded is not None:
        return str(getattr(loaded, "__file__", "imported already"))
    spec = importlib.util.find_spec("mori")
    return None if spec is None else str(spec.origin)


def _module(name: str, contents: Mapping[str, object]) -> ModuleType:
    module = ModuleType(name, "moriio_observed's loopback in the place of mori.")
    # Without a spec, importlib.util.find_spec would call the module broken.
    module.__spec__ = ModuleSpec(name, None, is_package="__path__" in contents)
    module.__dict__.update(contents)
    sys.modules[name] = module
    return module
