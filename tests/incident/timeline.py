"""What Prometheus would have scraped: recordings thinned to its interval, repeated, joined."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.incident.recording import Recording

EVERY_S = 15
"""How often Prometheus scrapes, and how often it evaluates rules."""

Values = Sequence[float | None]

_COUNTS = re.compile(r"^\w+_(total|bucket|sum|count)\{")
"""Series that only grow while their server runs."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """Series on one beat.

    Attributes:
        interval_s: From one sample to the next, seconds.
        series: What each series showed, beat by beat, from beat 0 on; None where nothing was
            scraped.
    """

    interval_s: float
    series: Mapping[str, Values]

    @property
    def beats(self) -> int:
        """How long it is."""
        return max(map(len, self.series.values()))

    @property
    def length_s(self) -> float:
        """From beat 0 to the last, seconds."""
        return (self.beats - 1) * self.interval_s


def scraped(recording: Recording, first: int = 0, delay: int = 0) -> Timeline:
    """Return what a Prometheus would have seen, on the beat of the recorder.

    Args:
        recording: What was there to be seen.
        first: The first scrape of the recording that it takes.
        delay: By how many of the recording's intervals all is put off.
    """
    step = _step(recording)
    return Timeline(
        recording.interval_s,
        {
            name: [
                *[None] * delay,
                *(value if number % step == first else None for number, value in enumerate(values)),
            ]
            for name, values in recording.series.items()
        },
    )


def aligned(recording: Recording) -> Timeline:
    """Return the same of a Prometheus that scrapes when it evaluates, on its own beat."""
    step = _step(recording)
    return Timeline(EVERY_S, {name: seen[::step] for name, seen in recording.series.items()})


def _step(recording: Recording) -> int:
    return round(EVERY_S / recording.interval_s)


def repeated(timeline: Timeline, at_least_s: float) -> Timeline:
    """Return a timeline that goes on as it was, its counters from where they stood."""
    times = 1
    while (times * timeline.beats - 1) * timeline.interval_s < at_least_s:
        times += 1
    return Timeline(
        timeline.interval_s,
        {
            name: _goes_on(values, times) if _COUNTS.match(name) else [*values] * times
            for name, values in timeline.series.items()
        },
    )


def _goes_on(values: Values, times: int) -> Values:
    known = [value for value in values if value is not None]
    grown = known[-1] - known[0] if known else 0.0
    return [
        None if value is None else value + round_ * grown
        for round_ in range(times)
        for value in values
    ]


def in_a_row(first: Timeline, gap_s: float, second: Timeline) -> Timeline:
    """Return one timeline after another, with nothing scraped between them."""
    gap = round(gap_s / first.interval_s)
    start = first.beats + gap
    names = [*first.series, *(name for name in second.series if name not in first.series)]
    empty: Values = []
    return Timeline(
        first.interval_s,
        {
            name: _padded(first.series.get(name, empty), start)
            + list(second.series.get(name, empty))
            for name in names
        },
    )


def _padded(values: Values, length: int) -> list[float | None]:
    return [*values, *[None] * (length - len(values))]
