"""A vLLM log as events: its lines taken apart, and what MoRIIO says in them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from moriio_observed.doctor.messages import Kind, Message, recognise

LONGEST_LINE = 16_384
"""What is beyond so many characters of a line is not looked at."""

_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_PROCESS = re.compile(r"\((?P<name>[^()\s]{1,100}) pid=(?P<pid>\d{1,10})\)")
_HEAD = re.compile(
    r"\b(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) (?P<time>\d\d-\d\d \d\d:\d\d:\d\d) \[[^\]]{1,300}\] ?"
)
_RANK = re.compile(r"(?P<kind>DP|PP|TP)(?P<rank>\d{1,6})")
_DETAILS = (Kind.TIMED_OUT, Kind.FAILED, Kind.SHARE)
_BARRIERS = (
    Kind.LAYER_TIMEOUT,
    Kind.LAYER_GAVE_UP,
    Kind.STEP_GAVE_UP,
    Kind.STEP_FAILED,
    Kind.HYBRID_FAILED,
)
_NUMBER = re.compile(r"\d\d")
# vLLM writes no year. A leap year takes every date, and ends where the next begins.
_YEAR = 2000
_YEAR_LONG = timedelta(days=366)


@dataclass
class Event:
    """One message of MoRIIO's in a log.

    Attributes:
        message: Which.
        line: The number of its line, from 1.
        at: When, in a made-up year; None where the log does not say.
        shown: The time as the log has it.
        process: The process it came from; empty where the log does not say.
        fields: What the message says.
        details: What more of the message followed, by kind.
    """

    message: Message
    line: int
    at: datetime | None
    shown: str
    process: str
    fields: dict[str, str]
    details: dict[Kind, dict[str, str]] = field(default_factory=dict)

    @property
    def kind(self) -> Kind:
        """What it tells."""
        return self.message.kind

    @property
    def rank(self) -> str:
        """The rank, such as ``DP0 TP3``; empty where the process is no worker."""
        return " ".join(found[0] for found in _RANK.finditer(self.process))


class Lines:
    """The lines of a log, which tells by them whether vLLM wrote it.

    Args:
        lines: As they come.

    Attributes:
        are_vllms: Whether one of those so far has a time and a place as vLLM writes them.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        self.are_vllms = False
        self._lines = lines

    def __iter__(self) -> Iterator[str]:
        for line in self._lines:
            self.are_vllms = self.are_vllms or _HEAD.search(_plain(line)) is not None
            yield line


def events(lines: Iterable[str]) -> Iterator[Event]:
    """Every message of MoRIIO's, in the order of the log."""
    clock = _Clock()
    process = ""
    barriers: dict[str, Event] = {}
    for number, raw in enumerate(lines, start=1):
        line = _plain(raw)
        if (named := _PROCESS.search(line)) is not None:
            process = f"{named['name']} {named['pid']}"
        if (head := _HEAD.search(line)) is not None:
            clock.see(head["time"])
            line = line[head.end() :]
        if (found := recognise(line)) is None:
            continue
        message, fields = found
        if message.kind in _DETAILS:
            if (told := barriers.get(process)) is not None:
                told.details.setdefault(message.kind, fields)
            continue
        event = Event(message, number, clock.now, clock.shown, process, fields)
        if message.kind in _BARRIERS:
            barriers[process] = event
        yield event


def _plain(line: str) -> str:
    return _COLOUR.sub("", line[:LONGEST_LINE]).rstrip()


class _Clock:
    """The time of the latest line that has one."""

    def __init__(self) -> None:
        self.now: datetime | None = None
        self.shown = ""

    def see(self, text: str) -> None:
        if text == self.shown:
            return
        try:
            month, day, hour, minute, second = map(int, _NUMBER.findall(text))
            at = datetime(_YEAR, month, day, hour, minute, second)  # noqa: DTZ001
            if self.now is not None and self.now > at:
                at += round((self.now - at) / _YEAR_LONG) * _YEAR_LONG  # the nearest such day
        except (ValueError, OverflowError):  # no such day: not a time, whatever it looked like
            return
        self.now, self.shown = at, text
