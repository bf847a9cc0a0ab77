"""Asking a server again and again, with nobody waiting for one that is slow."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Asker(Generic[T]):
    """Asks one thing of one server, in a thread of its own, never twice at the same time.

    Args:
        ask: Gets the answer; it may take as long as it wants.
        clock: Seconds that only grow.
    """

    def __init__(self, ask: Callable[[], T], clock: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._clock = clock
        self._answers: queue.SimpleQueue[T] = queue.SimpleQueue()
        self._asking: threading.Thread | None = None
        self._began = 0.0

    def begin(self) -> None:
        """Ask, unless the last question has not been answered yet."""
        if not self.busy:
            self._began = self._clock()
            # As a daemon: no server can keep the command from ending.
            self._asking = threading.Thread(
                target=lambda: self._answers.put(self._ask()), daemon=True
            )
            self._asking.start()

    @property
    def busy(self) -> bool:
        """Whether an answer is outstanding."""
        return self._asking is not None and self._asking.is_alive()

    @property
    def waited_s(self) -> float:
        """For how long an answer has been outstanding; 0 if none is."""
        return self._clock() - self._began if self.busy else 0.0

    def answer(self) -> T | None:
        """The answer that has come since the last call; None if none has."""
        try:
            return self._answers.get_nowait()
        except queue.Empty:
            return None
