"""Calls that begin at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

Got = TypeVar("Got")


def at_once(calls: Sequence[Callable[[], Got]]) -> list[Got]:
    """Make each call in a thread of its own and give what they return, in their order.

    The threads are daemons: a process that is told to end does not wait for a server's answer.

    Args:
        calls: What to call.

    Raises:
        Exception: What the first of them that raises does.
    """
    together = threading.Barrier(len(calls)) if calls else None

    def make(call: Callable[[], Got], outcome: Future[Got]) -> None:
        try:
            if together is not None:
                together.wait()
            outcome.set_result(call())
        except Exception as error:  # noqa: BLE001 - raised again for the caller
            outcome.set_exception(error)

    outcomes: list[Future[Got]] = [Future() for _ in calls]
    for one in zip(calls, outcomes, strict=True):
        threading.Thread(target=make, args=one, daemon=True).start()
    return [outcome.result() for outcome in outcomes]
