"""Runs one command and sees to it that it never outlives whoever asked for it.

Usage: ``python -m moriio_observed.demo.keeper LOG COMMAND...``. Standard input is the
lifeline: when its other end closes, because the owner wants the command stopped or because
the owner was killed, the command and all it started are ended. Stopping and dying are one
path, so that the second is as well tried as the first.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h

GRACE_S = 5.0
"""How long the command may take to end by itself after SIGTERM, in seconds."""


def keep(log: Path, command: list[str]) -> int:
    """Run a command in a session of its own until it ends or the lifeline closes.

    Args:
        log: The file that gets the command's output.
        command: The command and its arguments.

    Returns:
        The command's exit status, 128 + n when signal n ended it.
    """
    _adopt_orphans()
    with log.open("wb") as output:
        child = subprocess.Popen(  # noqa: S603 - the owner's own command
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        print(child.pid, flush=True)
        select.select([sys.stdin, os.pidfd_open(child.pid)], [], [])
    finally:
        _end(child)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _end(child: "subprocess.Popen[bytes]") -> None:
    child.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(GRACE_S)
    child.kill()
    child.wait()
    # Also when the command ended well: what it started may still be there, and became ours.
    while orphans := _children():
        for pid in orphans:
            os.kill(pid, signal.SIGKILL)
        os.waitpid(-1, 0)


def _adopt_orphans() -> None:
    """Make this process the parent of every descendant that loses its own."""
    if ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError("prctl(PR_SET_CHILD_SUBREAPER) failed")


def _children() -> list[int]:
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(keep(Path(sys.argv[1]), sys.argv[2:]))
