"""A canary beside the recorded incident, which was recorded without one.

It is ours, round by round, and what it asks is a stand-in: that answers wrong as often as users had
been answered wrong in the minute before. So the canary's panels and alerts have something to say.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

from moriio_observed import __version__
from moriio_observed.canary.answers import Answer
from moriio_observed.canary.counting import count
from moriio_observed.canary.metrics import CanaryMetrics, Mode, Route
from moriio_observed.canary.rounds import Prober
from moriio_observed.canary.schedule import Schedule
from moriio_observed.canary.targets import Question
from tests.incident.recording import ERROR, WRONG, Recording
from tests.incident.recording import Answer as Given
from tests.incident.timeline import EVERY_S, Timeline, aligned, in_a_row
from tests.unit.canary.known import answer, golden
from tests.unit.canary.model_server import right

MODEL = "tiny"
SCRAPED_AS = {"instance": "canary-0:9470", "job": "moriio-canary"}
TARGET = "router:10001"
SWEEP = (1, 4, 16)
PROMPTS = 32
STARTED_S, ROUND_S = 5.0, 1.0
INTERVAL_S, JITTER = 60.0, 0.2
LOOKED_BACK_S = 60.0
LOGPROB, DRIFT = -0.5, 0.3
"""The first token's, as recorded, and how far it moves where the answer is wrong at the most."""
LONGEST_RIGHT = 8
"""Tokens of a wrong answer that may be right before the first that is not."""


def with_canary(before: Timeline, gap_s: float, incident: Recording) -> Timeline:
    """Return healthy minutes, the incident after a gap, and a canary beside both."""
    after = aligned(incident)
    both = in_a_row(before, gap_s, after)
    began_s = both.length_s - after.length_s
    canary = probed(both.beats, lambda at_s: wrong_share(incident.answers, at_s - began_s))
    return Timeline(both.interval_s, {**both.series, **canary.series})


def wrong_share(answers: Sequence[Given], at_s: float) -> float:
    """Return the share of wrong answers among those given in the minute before."""
    recent = [
        each.outcome
        for each in answers
        if at_s - LOOKED_BACK_S < each.given_s <= at_s and each.outcome != ERROR
    ]
    return recent.count(WRONG) / len(recent) if recent else 0.0


def probed(beats: int, share: Callable[[float], float]) -> Timeline:
    """Return what a canary exposes.

    Args:
        beats: How often it is scraped. It is not there yet at the first.
        share: Which share of the probes is answered wrong, by the seconds since the beginning.
    """
    metrics = CanaryMetrics(MODEL, TARGET, SWEEP)
    metrics.set("started_timestamp_seconds", STARTED_S)
    metrics.set("interval_seconds", INTERVAL_S)
    metrics.set("golden_prompts", PROMPTS)
    metrics.set("info", 1, mode=Mode.EXACT, route=Route.ROUTER, version=__version__)
    target = _StandIn()
    prober = Prober(
        golden(PROMPTS, model=MODEL),
        target,
        mode=Mode.EXACT,
        concurrencies=SWEEP,
        draw=random.Random(1),  # noqa: S311 - the same each time
    )
    schedule = Schedule(INTERVAL_S, JITTER, random.Random(1))  # noqa: S311 - likewise
    due = STARTED_S
    series: dict[str, list[float | None]] = defaultdict(lambda: [None])
    for beat in range(1, beats):
        while due + ROUND_S <= beat * EVERY_S:
            target.begin(share(due))
            done = prober.round()
            count(metrics, done, ROUND_S, due + ROUND_S)
            due += ROUND_S + schedule.pause(answered=done.answered)
        for name, value in _page(metrics):
            series[name].append(value)
    return Timeline(EVERY_S, series)


class _StandIn:
    """Answers for servers that are not there."""

    route = Route.ROUTER
    name = TARGET
    metrics_pages = ()

    def __init__(self) -> None:
        self._round = 0
        self._share = 0.0

    def begin(self, share: float) -> None:
        """From now on answer this share wrong."""
        self._round += 1
        self._share = share

    def ask(self, question: Question, probe: str) -> Answer:
        """Answer; by prompt and round alone, not by who asks first."""
        draw = random.Random(f"{self._round} {question.prompt}")  # noqa: S311 - likewise
        tokens = right(question.prompt)
        if draw.random() >= self._share:
            return answer(tokens, first_logprob=LOGPROB)
        kept = draw.randrange(LONGEST_RIGHT)
        wrong = right(f"{self._round} instead of {question.prompt}")
        drifted = LOGPROB - DRIFT * draw.random()
        return answer(tokens[:kept] + wrong[kept:], first_logprob=drifted)


def _page(metrics: CanaryMetrics) -> Iterator[tuple[str, float]]:
    for family in metrics.collect():
        for sample in family.samples:
            yield f"{sample.name}{_labels({**sample.labels, **SCRAPED_AS})}", sample.value


def _labels(labels: Mapping[str, str]) -> str:
    return f"{{{','.join(f'{name}={json.dumps(labels[name])}' for name in sorted(labels))}}}"
