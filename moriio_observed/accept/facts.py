"""What was seen of a deployment: its engines before and after the probes, and the answers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from moriio_observed.accept.throughput import Runs
from moriio_observed.canary.metrics import Mode, Result
from moriio_observed.canary.probes import Probe
from moriio_observed.demo.metrics import Labels, Scrape
from moriio_observed.doctor.exposition import Page
from moriio_observed.doctor.prometheus import Stored
from moriio_observed.doctor.server import Server
from moriio_observed.telemetry.catalog import PREFIX

UNANSWERED = frozenset({Result.ERROR, Result.BUSY})


@dataclass(frozen=True)
class Number:
    """A number that a verdict rests on.

    Attributes:
        name: What was counted; a metric by its name.
        value: It; at the end, where `before` is given.
        before: What it was before the first probe; None where that says nothing.
    """

    name: str
    value: float | str
    before: float | None = None


@dataclass(frozen=True)
class Watched:
    """One engine.

    Attributes:
        name: What it is called in the report, which has no addresses.
        before: Its numbers before the first probe.
        after: And after the last one; None: it was not asked, or did not answer.
    """

    name: str
    before: Server
    after: Server | None = None

    @property
    def latest(self) -> Server:
        """The last that is known of it."""
        return self.before if self.after is None or self.after.metrics is None else self.after

    @property
    def info(self) -> Mapping[str, str]:
        """The labels of our ``config_info``; empty where there is none."""
        return self.latest.info

    def quantile(self, histogram: str, q: float) -> float | None:
        """A quantile of what was added to a histogram; None without an observation."""
        added = Scrape(_by_series(self.latest.page)).since(Scrape(_by_series(self.before.page)))
        try:
            return added.quantile(histogram, q)
        except (KeyError, ValueError):  # somebody else's buckets, without bounds
            return None

    @property
    def ranks(self) -> int:
        """How many ranks count by themselves, as far as the labels tell; 1 at least."""
        found = self.latest.page.of(f"{PREFIX}reads_in_flight")
        return max(1, len({labels.get("tp_rank") for labels, _ in found}))

    @property
    def layers(self) -> int | None:
        """How many layers its model has; None where the numbers by layer are turned off."""
        found = self.latest.page.of(f"{PREFIX}layer_waits_total")
        return len({labels.get("layer") for labels, _ in found}) or None

    @property
    def untold(self) -> str:
        """Why what it has counted meanwhile is not known; empty if it is."""
        if self.before.metrics is None or not self.before.info:
            return f"the {self.name} engine shows no numbers of ours"
        if self.after is None:
            return f"the {self.name} engine was not asked again after probes"
        if self.after.metrics is None:
            return f"the {self.name} engine did not answer at the end: {self.after.trouble}"
        if not all(math.isfinite(value) for _, value in _counters(self.after.page)):
            return f"the {self.name} engine shows counters that are no numbers"
        if _fell(self.before.page, self.after.page):
            return f"the {self.name} engine was restarted meanwhile: its counters fell"
        return ""


@dataclass(frozen=True)
class Side:
    """All engines of one side; their numbers are added up."""

    engines: tuple[Watched, ...] = ()

    def before(self, metric: str, **labels: str) -> float:
        """A metric of ours before the first probe."""
        return sum(one.before.page.total(PREFIX + metric, **labels) for one in self.engines)

    def after(self, metric: str, **labels: str) -> float:
        """A metric of ours at the end."""
        return sum(one.latest.page.total(PREFIX + metric, **labels) for one in self.engines)

    def growth(self, metric: str, **labels: str) -> float:
        """What was added meanwhile."""
        return self.after(metric, **labels) - self.before(metric, **labels)

    def number(self, metric: str, **labels: str) -> Number:
        """A metric of ours as a number of a verdict."""
        inside = ",".join(f'{label}="{value}"' for label, value in labels.items())
        return Number(
            f"{PREFIX}{metric}{{{inside}}}" if inside else f"{PREFIX}{metric}",
            self.after(metric, **labels),
            self.before(metric, **labels),
        )

    def quantile(self, histogram: str, q: float) -> float | None:
        """A quantile of what was added to a histogram of ours, on the engine with the highest."""
        found = (one.quantile(PREFIX + histogram, q) for one in self.engines)
        return max((value for value in found if value is not None), default=None)

    def quantile_number(self, histogram: str, q: float) -> Number:
        """The same as a number of a verdict."""
        value = self.quantile(histogram, q)
        return Number(f"{PREFIX}{histogram}, quantile {q:g}", "none" if value is None else value)

    def infos(self, label: str) -> tuple[str, ...]:
        """What a label of ``config_info`` says on each engine that has one."""
        return tuple(one.info[label] for one in self.engines if label in one.info)

    @property
    def ranks(self) -> int:
        """The fewest ranks that any of them has."""
        return min((one.ranks for one in self.engines), default=1)

    @property
    def layers(self) -> int | None:
        """How many layers the model has; None where an engine does not tell."""
        known = [one.layers for one in self.engines]
        return None if None in known or not known else min(layer for layer in known if layer)

    @property
    def untold(self) -> str:
        """Why what they have counted meanwhile is not known; empty if it is."""
        return next((one.untold for one in self.engines if one.untold), "")


@dataclass(frozen=True)
class Facts:
    """All that was seen.

    Attributes:
        decode: The engines that read.
        prefill: The engines that are read from, as far as they are known.
        probes: What became of each probe.
        flushes: How many more were answered only to bring the numbers of the last ones.
        settled: Whether those have come, or would have.
        mode: How answers were judged.
        seconds: How long the probes took, all together.
        routed: Whether a router chose the engines.
        apart: Whether MoRIIO's addresses name different hosts; None where none were given.
        runs: Decode engines compared; None: they were not.
        stored: What a Prometheus has; None: none was given.
        ended: Why it did not go on to its end; empty if it did.
    """

    decode: Side = Side()
    prefill: Side = Side()
    probes: tuple[Probe, ...] = ()
    flushes: int = 0
    settled: bool = False
    mode: Mode = Mode.EXACT
    seconds: float = 0.0
    routed: bool = False
    apart: bool | None = None
    runs: Runs | None = None
    stored: Stored | None = None
    ended: str = ""

    @property
    def results(self) -> Counter[Result]:
        """How many probes came to what."""
        return Counter(probe.result for probe in self.probes)

    @property
    def answered(self) -> int:
        """Requests that were answered, and so must have been read for."""
        return self.flushes + sum(probe.result not in UNANSWERED for probe in self.probes)

    @property
    def stand_in(self) -> str:
        """Why nothing here can prove what only hardware can; empty if it can."""
        versions = self.decode.infos("mori_version")
        if not versions:
            return "what reads are posted with is not known: no decode engine tells"
        if any("loopback" in version for version in versions):
            return "reads were made by the loopback, which copies memory on one machine"
        return ""

    @property
    def untold(self) -> str:
        """Why the decode engines' numbers cannot be held against the probes; empty if they can."""
        if not self.decode.engines:
            return "no decode engine is known"
        if not self.probes:
            return "no probe was sent" + (f": {self.ended}" if self.ended else "")
        if not self.answered:
            return f"no probe was answered: {self.errors[0]}"
        if not self.settled:
            return f"the numbers of the last probes were not waited for: {self.ended}"
        return self.decode.untold

    @property
    def errors(self) -> tuple[str, ...]:
        """Why probes were not answered, the most frequent first."""
        found = Counter(probe.error for probe in self.probes if probe.error)
        return tuple(error for error, _ in found.most_common())

    @property
    def alone(self) -> bool:
        """Whether nobody else's requests were read for meanwhile."""
        return self.decode.growth("requests_total") == self.answered * self.decode.ranks


def _fell(before: Page, after: Page) -> bool:
    now = _by_series(after)
    return not all(now.get(key, 0.0) >= value for key, value in _counters(before))


def _counters(page: Page) -> Iterator[tuple[tuple[str, Labels], float]]:
    for key, value in _by_series(page).items():
        if key[0].startswith(PREFIX) and key[0].endswith(("_total", "_count", "_sum")):
            yield key, value


def _by_series(page: Page) -> dict[tuple[str, Labels], float]:
    return {(name, frozenset(labels.items())): value for name, labels, value in page.samples}
