"""Calls that begin at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

Got = TypeVar("Got")


def at_once(calls: Sequence[Callable[[], Got]]) -> list[Got]:
    """Make each call in a thread of its own and give what they return, in their order.

    The threads are daemons: a process that is told to end does not wait for a server's answer.

    Args:
        calls: What to call. None may raise.
    """
    got: dict[int, Got] = {}
    together = threading.Barrier(len(calls)) if calls else None

    def make(number: int, call: Callable[[], Got]) -> None:
        if together is not None:
            together.wait()
        got[number] = call()

    threads = [
        threading.Thread(target=make, args=numbered, daemon=True) for numbered in enumerate(calls)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [got[number] for number in range(len(calls))]
