"""The terminal of whoever watches: keys, signals, and leaving it as it was."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager

QUIT = "q"
_AT_ONCE = 64
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP)


@contextmanager
def signals() -> Iterator[list[int]]:
    """The signals that come while in it, which have no other effect then.

    So nothing is left half done: whoever draws looks here in between.
    """
    noted: list[int] = []
    # One that is ignored, as under nohup, stays so.
    before = {
        number: handler
        for number in _SIGNALS
        if (handler := signal.getsignal(number)) not in (signal.SIG_IGN, None)
    }
    for number in before:
        signal.signal(number, lambda number, _: noted.append(number))
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stop() -> None:
    """Stop until somebody lets us go on, as Ctrl-Z does.

    By SIGTSTP and its default, which does nothing where no shell could let us go on, as under
    `ssh -t HOST moriio-observed top …`.
    """
    before = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    signal.raise_signal(signal.SIGTSTP)
    signal.signal(signal.SIGTSTP, before)


@contextmanager
def keyboard() -> Iterator[Callable[[float], str]]:
    """Get what is typed, key by key and unseen: waits so many seconds for it at most.

    Where standard input is no terminal nothing is ever typed.
    """
    if not sys.stdin or not sys.stdin.isatty():
        yield _nothing
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    try:
        tty.setcbreak(terminal)
        yield lambda timeout_s: _typed(terminal, timeout_s)
    finally:
        # What was typed and not read was meant for us, not for the shell. A terminal that is gone
        # needs nothing.
        with contextlib.suppress(termios.error):
            termios.tcsetattr(terminal, termios.TCSAFLUSH, before)


def _nothing(timeout_s: float) -> str:
    time.sleep(timeout_s)
    return ""


def _typed(terminal: int, timeout_s: float) -> str:
    ready, _, _ = select.select([terminal], [], [], timeout_s)
    if not ready:
        return ""
    # The end of the input means that nobody is there any more.
    return os.read(terminal, _AT_ONCE).decode(errors="replace") or QUIT
