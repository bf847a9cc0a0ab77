"""What the rules made of the incident, and what users had been answered by then."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from moriio_observed.alerting.rules import Group
from tests.incident.recording import RIGHT, WRONG, Recording
from tests.incident.rules import ALERTS, Sample, evaluate, words
from tests.incident.timeline import EVERY_S, Timeline, aligned, repeated, scraped

ONE_IN = 100
"""Somebody must be paged before one in so many answers is wrong."""
PAGE = "MoriioUnprotectedSteps"
"""What must page."""
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


@dataclass(frozen=True, slots=True)
class Story:
    """What came of an incident, and of healthy minutes.

    Times of the result count from the first late read; the slowest of the replays counts.

    Attributes:
        incident: The recording.
        replays: The incident, however scrapes and evaluations fall upon it.
        first_page: What the first page of the slowest replay says; None where nobody is paged.
        false_alarms: Whatever fired in the healthy minutes, pages and tickets.
        healthy_s: How long those were.
    """

    incident: Recording
    replays: Sequence[Replay]
    first_page: Mapping[str, str] | None
    false_alarms: Sequence[Firing]
    healthy_s: float

    @property
    def slowest(self) -> Replay:
        """The replay in which the first page comes last."""
        return max(self.replays, key=_paged_at)

    @property
    def paged_s(self) -> Sequence[float]:
        """When each replay's first page comes, the fastest first; infinite where none does."""
        return sorted(_paged_at(replay) - _late(self.incident) for replay in self.replays)

    @property
    def wrong_s(self) -> float | None:
        """When so many answers are wrong that somebody must have been paged; None if never."""
        wrong = wrong_at(self.incident)
        return None if wrong is None else wrong - _late(self.incident)

    def result(self) -> dict[str, Any]:
        """Return it as `build/incident.json` has it."""
        wrong = self.wrong_s
        return {
            "first_page_s": round(self.paged_s[-1], 1) if self.first_page else None,
            "wrong_1pct_s": None if wrong is None else round(wrong, 1),
            "first_page": self.first_page,
            "false_alarms": len(self.false_alarms),
            "healthy_minutes": round(self.healthy_s / 60, 1),
        }

    def shortfalls(self) -> Iterator[str]:
        """Yield whatever is not as it must be, in words."""
        yield from self._unfit()
        fastest, slowest = self.paged_s[0], self.paged_s[-1]
        if (wrong := self.wrong_s) is not None and slowest >= wrong:
            yield f"1 % was wrong after {wrong:.1f} s, the first page comes after {slowest:.1f} s"
        if fastest < 0:
            yield f"somebody is paged {-fastest:.1f} s before a read is known to be late"
        if firsts := {_first(replay) for replay in self.replays} - {PAGE}:
            yield f"what pages first is not always {PAGE}: {', '.join(sorted(firsts))}"
        for named in ("cause", "runbook_url"):
            if self.first_page and not self.first_page.get(named):
                yield f"the first page names no {named}"
        if self.false_alarms:
            fired = ", ".join(sorted({firing.alert for firing in self.false_alarms}))
            yield f"in healthy minutes fired {fired}"

    def _unfit(self) -> Iterator[str]:
        """Yield why the recordings cannot show what they are there for."""
        late = _late(self.incident)
        if self.incident.first_late_s is None:
            yield "no read was late"
        if any(each.outcome == WRONG and each.given_s < late for each in self.incident.answers):
            yield "an answer was wrong before a read was known to be late"
        if self.wrong_s is None:
            yield f"at no time was one answer in {ONE_IN} wrong"
        if self.healthy_s < HEALTHY_S:
            yield f"there were {self.healthy_s / 60:.1f} healthy minutes, not {HEALTHY_S / 60:.0f}"


def story(groups: list[Group], incident: Recording, before: Recording) -> Story:
    """Play an incident, and the healthy minutes of another recording."""
    played = replays(groups, incident)
    slowest = max(played, key=_paged_at)
    page = slowest.first_page
    calm = healthy(before)
    return Story(
        incident,
        played,
        told(groups, slowest, page) if page else None,
        firings(evaluate(groups, calm, ALERTS)),
        calm.length_s,
    )


def _paged_at(replay: Replay) -> float:
    return replay.first_page.at_s if replay.first_page else math.inf


def _first(replay: Replay) -> str:
    return replay.first_page.alert if replay.first_page else "nothing"


def _late(incident: Recording) -> float:
    return incident.first_late_s or 0.0


def replays(groups: list[Group], recording: Recording) -> Sequence[Replay]:
    """Replay a recording with scrapes and evaluations at each of the recorder's beats."""
    steps = range(round(EVERY_S / recording.interval_s))

    def replay(first: int, delay: int) -> Replay:
        timeline = scraped(recording, first, delay)
        delay_s = delay * recording.interval_s
        return Replay(timeline, delay_s, firings(evaluate(groups, timeline, ALERTS), delay_s))

    with ThreadPoolExecutor() as threads:
        return list(threads.map(replay, *zip(*itertools.product(steps, repeat=2), strict=True)))


def healthy(recording: Recording) -> Timeline:
    """Half an hour made of the healthy minutes that were recorded."""
    return repeated(aligned(recording), HEALTHY_S)


def firings(samples: Sequence[Sample], delay_s: float = 0.0) -> Sequence[Firing]:
    """Return the alerts that fire, each once, at the time it began to."""
    began: dict[tuple[tuple[str, str], ...], Firing] = {}
    for sample in samples:
        if sample.labels["__name__"] == ALERTS and sample.firing:
            began.setdefault(
                tuple(sorted(sample.labels.items())), Firing(sample.at_s - delay_s, sample.labels)
            )
    return sorted(began.values(), key=lambda firing: (firing.at_s, firing.alert))


def wrong_at(recording: Recording) -> float | None:
    """Return when one in a hundred of the answers given since the first late read was wrong.

    Returns:
        Seconds since the recording began; None if that never came.
    """
    if (late_s := recording.first_late_s) is None:
        return None
    wrong = 0
    since = (answer for answer in recording.answers if answer.given_s >= late_s)
    judged = (answer for answer in since if answer.outcome in {RIGHT, WRONG})
    for number, answer in enumerate(judged, 1):
        wrong += answer.outcome == WRONG
        if wrong * ONE_IN >= number:
            return answer.given_s
    return None


def told(groups: list[Group], replay: Replay, firing: Firing) -> Mapping[str, str]:
    """Return what a page says: its labels that lead somewhere, and its annotations."""
    shown = ("severity", "incident", "job", "instance", "model_name", "engine", "cause")
    labels = {name: firing.labels[name] for name in shown if name in firing.labels}
    at_s = firing.at_s + replay.delay_s
    return {"alert": firing.alert, **labels, **words(groups, replay.timeline, firing.alert, at_s)}
