"""Other processes: who they are, whether they live, and a call when one dies."""

import ctypes
import os
import select
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from moriio_observed.log import get_logger

logger = get_logger(__name__)

_PR_SET_PTRACER = 0x59616D61
_PR_SET_PTRACER_ANY = ctypes.c_ulong(-1)


class ProcessId(NamedTuple):
    """A process, told from a later one with the same pid by its start time (clock ticks)."""

    pid: int
    start_time: int

    @classmethod
    def own(cls) -> "ProcessId":
        """Return the calling process."""
        pid = os.getpid()
        return cls(pid, _stat(pid)[1])

    def alive(self) -> bool:
        """Tell whether it still runs; a zombie does not."""
        try:
            state, start_time = _stat(self.pid)
        except OSError:
            return False
        return state not in "ZX" and start_time == self.start_time


def node_id() -> str:
    """Name the processes that can reach each other: one boot of a machine, one pid namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"


def allow_peers() -> None:
    """Let other processes of this user read our memory where Yama restricts that to ancestors."""
    # Fails without harm where Yama is not built in: nothing is restricted there.
    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, _PR_SET_PTRACER_ANY, 0, 0, 0)


def _stat(pid: int) -> tuple[str, int]:
    # The command name may hold anything, parentheses too: count from the last one.
    line = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    state, *numbers = line.rpartition(")")[2].split()
    return state, int(numbers[18])


class DeathWatch:
    """Calls back, on a thread of its own, when a process ends; costs nothing until then."""

    def __init__(self, process: ProcessId, on_death: Callable[[], None]) -> None:
        """Start watching; a process that is gone already is reported at once.

        Args:
            process: Whom to watch.
            on_death: Called once, from the watching thread.
        """
        self._process = process
        self._on_death = on_death
        self._stop = os.eventfd(0)
        threading.Thread(target=self._run, name="loopback-death-watch", daemon=True).start()

    def stop(self) -> None:
        """Stop watching; idempotent, and harmless after the death."""
        os.eventfd_write(self._stop, 1)

    def __del__(self) -> None:
        os.close(self._stop)

    def _run(self) -> None:
        if self._wait():
            self._on_death()

    def _wait(self) -> bool:
        try:
            pidfd = os.pidfd_open(self._process.pid)
        except ProcessLookupError:
            return True
        except OSError as error:
            logger.info("no pidfd here (%s): a dead peer is noticed at the next copy only", error)
            return False
        try:
            # Opened by pid: only now is it certain which process it stands for.
            if not self._process.alive():
                return True
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            poll.register(self._stop, select.POLLIN)
            return any(fd == pidfd for fd, _ in poll.poll())
        finally:
            os.close(pidfd)
