"""The command on a terminal of its own."""

from __future__ import annotations

import codecs
import fcntl
import os
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

MAIN = "import sys; from moriio_observed.cli import main; sys.exit(main())"
COMMAND = [sys.executable, "-c", MAIN, "top"]
ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"
HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"
CONTROL = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
WAIT_S = 120.0


class Terminal:
    """A pseudo-terminal with a program in it.

    Attributes:
        process: The program.
        output: All it has written.
    """

    def __init__(self, command: list[str], size: tuple[int, int], **env: str) -> None:
        self._ours, self._its = os.openpty()
        self.resize(*size)
        self.before = self.modes
        self.output = ""
        # What is read may end within a character.
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        inherited = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            command,
            stdin=self._its,
            stdout=self._its,
            stderr=self._its,
            start_new_session=True,
            # So that Ctrl-C and Ctrl-Z reach it.
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509
            env={**inherited, "TERM": "xterm", "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8", **env},
        )

    @property
    def modes(self) -> list[Any]:
        """How the terminal treats what is typed."""
        return termios.tcgetattr(self._its)

    def resize(self, lines: int, columns: int) -> None:
        fcntl.ioctl(self._its, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def type(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def see(self, wanted: str, *, since: int = 0) -> str:
        """Wait until a text stands in what was written after so many characters."""
        deadline = time.monotonic() + WAIT_S
        while wanted not in (written := CONTROL.sub("", self.output[since:])) and (
            wanted not in self.output[since:]
        ):
            assert time.monotonic() < deadline, f"{wanted!r} not in {self.output!r}"
            assert self._read(1.0) or self.process.poll() is None, self.output
        return written

    def end(self) -> int:
        """Wait for the end and return the exit status."""
        deadline = time.monotonic() + WAIT_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.output
            self._read(0.1)
        while self._read(0.1):
            pass
        return self.process.returncode

    def frames(self) -> list[list[str]]:
        """The pictures that were drawn, as lines."""
        drawn = self.output.split("\x1b[H")[1:]
        return [CONTROL.sub("", frame).replace("\r", "").split("\n") for frame in drawn]

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self._its)

    def _read(self, timeout_s: float) -> bool:
        ready, _, _ = select.select([self._ours], [], [], timeout_s)
        if ready:
            self.output += self._decoder.decode(os.read(self._ours, 65536))
        return bool(ready)


@contextmanager
def terminal(
    *arguments: str, size: tuple[int, int] = (24, 80), command: list[str] | None = None, **env: str
) -> Iterator[Terminal]:
    """The command, or another, on a terminal; ended with the block."""
    its = Terminal(command or [*COMMAND, *arguments], size, **env)
    try:
        yield its
    finally:
        its.close()
