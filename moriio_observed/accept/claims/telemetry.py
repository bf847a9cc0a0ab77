"""Do the numbers arrive, whole and few enough?"""

from __future__ import annotations

from moriio_observed.accept.claims.counted import by_counters, plural
from moriio_observed.accept.facts import Facts, Number, Watched
from moriio_observed.accept.verdicts import Claim, Ruling, not_proven, proven, refuted
from moriio_observed.doctor.checks.scrape import wanted
from moriio_observed.telemetry.catalog import CATALOG, PREFIX, Kind

SERIES, SERIES_PER_LAYER = 400, 2
"""The most series of an engine for each of its ranks."""
_SHOWN = 5
_SELDOM = frozenset({"full_graph_protected"})
"""Absent where there is nothing to say."""


@by_counters
def metrics(facts: Facts) -> Ruling:
    """Everything that an engine has to say is on its page."""
    side = facts.decode
    numbers = (
        *(Number(f"{one.name}: series of ours", _series(one)) for one in side.engines),
        side.number("telemetry_errors_total"),
        side.number("telemetry_dropped_total"),
    )
    if errors := side.after("telemetry_errors_total"):
        return refuted(
            f"our own code failed {plural(errors, 'time')}: the log has the line", *numbers
        )
    missing = sorted({name for one in side.engines for name in _missing(one)})
    if missing:
        return refuted(f"not on the page: {', '.join(missing[:_SHOWN])}", *numbers)
    for one in side.engines:
        most = _engines(one) * one.ranks * (SERIES + SERIES_PER_LAYER * (one.layers or 0))
        if _series(one) > most:
            return refuted(f"{_series(one)} series, more than {most}", *numbers)
    return proven("every metric is on the page, and grew while probes were sent", *numbers)


def prometheus(facts: Facts) -> Ruling:
    """And in Prometheus, under our names."""
    if facts.stored is None:
        return not_proven("no --prometheus was given")
    if facts.stored.names is None:
        return not_proven(f"it cannot be asked: {facts.stored.trouble}")
    names = wanted([one.latest for one in facts.decode.engines])
    missing = [name for name in names if name not in facts.stored.names]
    number = Number("our metrics in Prometheus", f"{len(names) - len(missing)} of {len(names)}")
    if missing:
        return refuted(f"Prometheus lacks {', '.join(missing[:_SHOWN])}", number)
    return proven(f"Prometheus has all {len(names)}", number)


def _missing(one: Watched) -> list[str]:
    """Metrics that every engine has from its start on, and this one has not."""
    seeded = [
        f"{PREFIX}{name}{'_bucket' if instrument.kind is Kind.HISTOGRAM else ''}"
        for name, instrument in CATALOG.items()
        if not instrument.is_open and "layer" not in instrument.labels and name not in _SELDOM
    ]
    return [name for name in seeded if name not in one.latest.page.names]


def _series(one: Watched) -> int:
    return sum(name.startswith(PREFIX) for name, _, _ in one.latest.page.samples)


def _engines(one: Watched) -> int:
    """Engines behind one server, as data parallelism has several."""
    found = one.latest.page.of(f"{PREFIX}requests_total")
    return max(1, len({labels.get("engine") for labels, _ in found}))


CLAIMS = (
    Claim(
        "metrics",
        "Every metric is on /metrics, and no more series than promised.",
        "What OpenTelemetry gets.",
        metrics,
    ),
    Claim(
        "prometheus",
        "Prometheus has every metric, under our names.",
        "That alerts reach somebody: `moriio-observed alerts` and deploy/ say how to see to it.",
        prometheus,
    ),
)
