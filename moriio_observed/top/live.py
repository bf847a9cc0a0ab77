"""Pictures of engines: one, or a new one every few seconds until somebody has seen enough."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from moriio_observed.top.board import Board
from moriio_observed.top.draw import lines
from moriio_observed.top.picture import Picture
from moriio_observed.top.terminal import QUIT, keyboard, signals, stop
from moriio_observed.traces.style import IN_ASCII

POLL_S = 0.1
UNBOUNDED = 1000
"""Columns of a pipe or a file."""


def once(board: Board, interval_s: float) -> Picture:
    """A picture from two looks.

    Args:
        board: What is watched.
        interval_s: The time between them, in seconds.
    """
    for pause_s in (interval_s, 0.0):
        began = time.monotonic()
        board.begin()
        while not board.settled:
            time.sleep(POLL_S)
        board.collect()
        time.sleep(max(0.0, began + pause_s - time.monotonic()))
    return board.picture()


def watch(board: Board, console: Console, interval_s: float) -> int:
    """Show pictures until ``q``, Ctrl-C or a signal; Ctrl-Z sets it aside, as with any program.

    Args:
        board: What is watched.
        console: Where to.
        interval_s: The time from one look to the next, in seconds.

    Returns:
        The exit status: 0, or as the shell has it for a signal that ended it.
    """
    with signals() as noted:
        while True:
            with (
                keyboard() as typed,
                Live(console=console, screen=True, auto_refresh=False) as screen,
            ):
                _show(board, console, screen, interval_s, typed, noted)
            if set(noted) != {signal.SIGTSTP}:
                break
            noted.clear()
            stop()
    ended_by = next((number for number in noted if number != signal.SIGTSTP), signal.SIGINT)
    return 0 if ended_by == signal.SIGINT else 128 + ended_by


def printable(picture: Picture, console: Console, height: int | None) -> list[Text]:
    """A picture as lines that this console can show."""
    width = console.width if console.is_terminal else UNBOUNDED
    shown = lines(picture, width, height)
    if not console.encoding.lower().startswith("utf"):
        for line in shown:
            line.plain = line.plain.translate(IN_ASCII)
    return shown


def _show(
    board: Board,
    console: Console,
    screen: Live,
    interval_s: float,
    typed: Callable[[float], str],
    noted: list[int],
) -> None:
    due, size = 0.0, None
    while not noted:
        now = time.monotonic()
        if now >= due:
            board.begin()
            due = now + interval_s
        if board.collect() or size != console.size:
            size = console.size
            screen.update(Group(*printable(board.picture(), console, size.height)), refresh=True)
        if QUIT in typed(POLL_S).lower():
            return
