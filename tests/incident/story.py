"""What the rules made of the incident, and what users had been answered by then."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from moriio_observed.alerting.rules import Group
from tests.incident.recording import RIGHT, WRONG, Recording
from tests.incident.rules import ALERTS, EVERY_S, Sample, evaluate, words
from tests.incident.timeline import Timeline, repeated, scraped

SHARE = 0.01
"""The share of wrong answers before which somebody must be paged."""
HEALTHY_S = 30 * 60.0


@dataclass(frozen=True, slots=True)
class Firing:
    """An alert that began to fire.

    Attributes:
        at_s: At which evaluation, seconds since the recording began.
        labels: Its labels.
    """

    at_s: float
    labels: Mapping[str, str]

    @property
    def alert(self) -> str:
        """Its name."""
        return self.labels["alertname"]

    @property
    def pages(self) -> bool:
        """Whether somebody is woken."""
        return self.labels["severity"] == "page"


@dataclass(frozen=True, slots=True)
class Replay:
    """The incident as one Prometheus would have seen it.

    Attributes:
        timeline: What it scraped.
        delay_s: By how much that is later than the recording.
        firings: The alerts in the order in which they began to fire.
    """

    timeline: Timeline
    delay_s: float
    firings: Sequence[Firing]

    @property
    def first_page(self) -> Firing | None:
        """The first that wakes somebody."""
        return next((firing for firing in self.firings if firing.pages), None)


def replays(groups: list[Group], recording: Recording) -> Iterator[Replay]:
    """Replay a recording with scrapes and evaluations at each of the times they could have had."""
    steps = round(EVERY_S / recording.interval_s)
    for first, delay in itertools.product(range(steps), repeat=2):
        timeline = scraped(recording, EVERY_S, first, delay)
        delay_s = delay * recording.interval_s
        yield Replay(timeline, delay_s, firings(evaluate(groups, timeline), delay_s))


def healthy(recording: Recording) -> Timeline:
    """Half an hour made of the healthy minutes that were recorded."""
    return repeated(scraped(recording, EVERY_S), HEALTHY_S)


def firings(samples: Sequence[Sample], delay_s: float = 0.0) -> Sequence[Firing]:
    """Return the alerts that fire, each once, at the time it began to."""
    began: dict[tuple[tuple[str, str], ...], Firing] = {}
    for sample in samples:
        if sample.labels["__name__"] == ALERTS and sample.firing:
            began.setdefault(
                tuple(sorted(sample.labels.items())), Firing(sample.at_s - delay_s, sample.labels)
            )
    return sorted(began.values(), key=lambda firing: (firing.at_s, firing.alert))


def wrong_at(recording: Recording, share: float = SHARE) -> float | None:
    """Return when so many of the answers given since the first late read were wrong.

    Returns:
        Seconds since the recording began; None if that never came.
    """
    if recording.first_late_s is None:
        return None
    wrong = 0
    since = (answer for answer in recording.answers if answer.given_s >= recording.first_late_s)
    judged = (answer for answer in since if answer.outcome in {RIGHT, WRONG})
    for number, answer in enumerate(judged, 1):
        wrong += answer.outcome == WRONG
        if wrong >= share * number:
            return answer.given_s
    return None


def told(groups: list[Group], replay: Replay, firing: Firing) -> Mapping[str, str]:
    """Return what a page says: its labels that lead somewhere, and its annotations."""
    shown = ("severity", "incident", "job", "instance", "model_name", "engine", "cause")
    labels = {name: firing.labels[name] for name in shown if name in firing.labels}
    at_s = firing.at_s + replay.delay_s
    return {"alert": firing.alert, **labels, **words(groups, replay.timeline, firing.alert, at_s)}
