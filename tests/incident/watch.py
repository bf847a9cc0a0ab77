"""What a pair's servers say while it serves: their pages, scrape by scrape, and their exposures."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from moriio_observed.demo import web
from moriio_observed.demo.exposures import EXPOSURE, parse_events
from tests.incident.quiet import (
    LOG_UNSEEN,
    OTHERS,
    SCRAPE_LATE,
    SCRAPE_TOOK,
    STOLEN,
    Machine,
    Quiet,
)

LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class Exposed:
    """A line `moriio_exposure`, and when it was first seen (`time.monotonic`)."""

    seen: float
    request_id: str
    certainty: str


class Log:
    """Reads what a server adds to its log, as it comes.

    Args:
        path: The log.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = path.stat().st_size
        self.exposed: list[Exposed] = []

    def look(self) -> None:
        """Take the lines that were ended since the last look."""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._offset += len(whole)
        now = time.monotonic()
        for event in parse_events(whole.decode(errors="replace"), EXPOSURE):
            self.exposed.append(Exposed(now, event["request_id"], event["certainty"]))


class Watch:
    """Scrapes servers on a fixed beat and follows one log; ends with the block.

    Args:
        urls: The servers, by job.
        log: The decode engine's.
        interval_s: From one scrape to the next, seconds.
        quiet: Is told whatever kept this from its beat.

    Attributes:
        began: When the first scrape was due (`time.monotonic`).
        ended: When the block was left.
        pages: Each job's pages, in order; an empty one where a scrape failed.
    """

    def __init__(self, urls: Mapping[str, str], log: Log, interval_s: float, quiet: Quiet) -> None:
        self.began = time.monotonic()
        self.ended = math.inf
        self.pages: Mapping[str, list[str]] = {job: [] for job in urls}
        self._urls = urls
        self._log = log
        self._interval_s = interval_s
        self._quiet = quiet
        self._ended = threading.Event()
        self._failed: list[Exception] = []
        self._threads = [
            threading.Thread(target=self._contain, args=work)
            for work in (
                (self._follow,),
                (self._weigh,),
                *((self._scrape, job) for job in urls),
            )
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.ended = time.monotonic()
        self._ended.set()
        for thread in self._threads:
            thread.join()
        self._log.look()
        if error is None and self._failed:
            raise self._failed[0]

    def _contain(self, work: Any, *args: Any) -> None:
        try:
            work(*args)
        except Exception as error:  # noqa: BLE001 - raised where the block ends
            self._failed.append(error)

    def _follow(self) -> None:
        looked = time.monotonic()
        while not self._ended.wait(LOOK_S):
            self._log.look()
            now = time.monotonic()
            self._quiet.saw(LOG_UNSEEN, now - looked, looked - self.began)
            looked = now

    def _weigh(self) -> None:
        machine = Machine()
        while not self._ended.wait(self._interval_s):
            others, stolen = machine.beat()
            at_s = time.monotonic() - self.began
            self._quiet.saw(OTHERS, others, at_s)
            self._quiet.saw(STOLEN, stolen, at_s)

    def _scrape(self, job: str) -> None:
        pages = self.pages[job]
        due_s = 0.0
        while not self._ended.wait(max(0.0, self.began + due_s - time.monotonic())):
            asked = time.monotonic()
            pages.append(self._page(job))
            took_s = time.monotonic() - asked if pages[-1] else self._interval_s
            self._quiet.saw(SCRAPE_LATE, asked - self.began - due_s, due_s)
            self._quiet.saw(SCRAPE_TOOK, took_s, due_s)
            due_s = len(pages) * self._interval_s

    def _page(self, job: str) -> str:
        try:
            return web.get(f"{self._urls[job]}/metrics", self._interval_s)
        except OSError:
            return ""
