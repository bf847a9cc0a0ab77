"""A recording: what a pair's two servers exposed over some minutes, and how its answers were."""

from __future__ import annotations

import dataclasses
import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "alerts" / "incident"
HEALTHY, INCIDENT = FOLDER / "healthy.json.gz", FOLDER / "incident.json.gz"
"""The committed recordings."""

RIGHT, WRONG, ERROR = "right", "wrong", "error"
CERTAIN = "certain"
"""An exposure in which a read was still in flight, or had failed, when its step ended."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer, held against that of a single engine.

    Attributes:
        asked_s: When it was asked for, seconds since the recording began.
        given_s: When it was complete.
        outcome: `RIGHT`, `WRONG` or `ERROR`.
        exposed: What the decode engine's log says of its request: `certain`, `possible` or nothing.
    """

    asked_s: float
    given_s: float
    outcome: str
    exposed: str = ""


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that happened once.

    Attributes:
        at_s: When, seconds since the recording began.
        what: In words.
    """

    at_s: float
    what: str


@dataclass(frozen=True, slots=True)
class Recording:
    """Some minutes of a real pair.

    Attributes:
        about: What was recorded, in words, by subject; and whether something disturbed it.
        interval_s: The time from one scrape to the next, seconds.
        series: What each series showed, by its name and labels, scrape by scrape; None where a
            scrape did not have it.
        answers: Every answer, in the order they were given.
        stages: When load or faults were changed.
        first_late_s: When a read was first known not to have been there in time; None if none was.
        pages: One whole exposition of each server, by job.
    """

    about: Mapping[str, str]
    interval_s: float
    series: Mapping[str, Sequence[float | None]]
    answers: Sequence[Answer]
    stages: Sequence[Moment]
    first_late_s: float | None
    pages: Mapping[str, str]

    @property
    def scrapes(self) -> int:
        """How many times each server was scraped."""
        return max(map(len, self.series.values()))

    @property
    def length_s(self) -> float:
        """From the first scrape to the last, seconds."""
        return (self.scrapes - 1) * self.interval_s


def load(path: Path) -> Recording:
    """Read a recording.

    Raises:
        OSError: There is none, or it is not gzip.
    """
    with gzip.open(path, "rt", encoding="utf-8") as file:
        loaded = json.load(file)
    return Recording(
        **{
            **loaded,
            "answers": [Answer(*each) for each in loaded["answers"]],
            "stages": [Moment(*each) for each in loaded["stages"]],
        }
    )


def save(recording: Recording, path: Path) -> None:
    """Write a recording; the same one gives the same bytes."""
    plain = {field.name: getattr(recording, field.name) for field in dataclasses.fields(recording)}
    for name in ("answers", "stages"):
        plain[name] = [dataclasses.astuple(each) for each in plain[name]]
    text = json.dumps(plain, separators=(",", ":"), sort_keys=True)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))
