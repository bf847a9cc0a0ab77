"""Engines as their /metrics show them, and what was seen of them before and after probes."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from moriio_observed.accept.claims import CLAIMS
from moriio_observed.accept.facts import UNANSWERED, Facts, Side, Watched
from moriio_observed.accept.verdicts import Ruling
from moriio_observed.canary.metrics import Result
from moriio_observed.canary.probes import Probe
from moriio_observed.doctor.exposition import Page
from moriio_observed.doctor.server import Server
from moriio_observed.telemetry.catalog import CATALOG, PREFIX, Kind, label_sets

LAYERS = 4
PROBES = 21
INFO = {
    "role": "kv_consumer",
    "mode": "read",
    "cudagraph_mode": "FULL_AND_PIECEWISE",
    "barrier": "auto",
    "guard": "report",
    "vllm_version": "0.32.0",
    "mori_version": "1.2.4",
    "version": "0.1.0",
}
PREFILL = {**INFO, "role": "kv_producer"}
STAND_IN = {**INFO, "mori_version": "0+loopback"}
CAUSE = {"cause": "failed", "certainty": "certain", "action": "reported"}
HIDDEN = ("full_graph_protected", "config_info", "hook_installed")
"""Shown only where it is said."""

Key = tuple[str, frozenset[tuple[str, str]]]


def one(name: str, /, **labels: str) -> Key:
    """A series of ours."""
    return name, frozenset(labels.items())


def healthy(requests: int = PROBES, ranks: int = 1) -> dict[Key, float]:
    """What a decode engine has counted after so many requests that nothing was wrong with."""
    read, reads = requests * ranks, requests * ranks * LAYERS
    return {
        one("requests_total"): read,
        one("reads_posted_total"): reads,
        one("reads_landed_total"): reads,
        one("request_read_bytes_count"): read,
        one("request_read_bytes_sum"): read * 4096.0,
        one("barrier_wait_seconds_count", site="layer", tp_rank="0"): read,
        one("barrier_wait_seconds_bucket", site="layer", tp_rank="0", le="0.0025"): read,
        one("barrier_wait_seconds_bucket", site="layer", tp_rank="0", le="+Inf"): read,
        one("barrier_wait_seconds_sum", site="layer", tp_rank="0"): read * 0.002,
        one("step_blocked_seconds_count", tp_rank="0"): read,
        one("step_seconds_count"): read,
        one("step_seconds_sum"): read * 0.02,
        one("steps_total", runtime_mode="FULL", reads="true"): read,
        one("full_graph_skips_total", protected="true"): read,
        one("telemetry_overhead_seconds_total"): read * 1e-6,
    }


def page(
    counted: Mapping[Key, float] | None = None,
    *,
    info: Mapping[str, str] | None = INFO,
    ranks: int = 1,
    hooks: float = 1,
    without: str = "",
) -> Page:
    """A page of /metrics: every series at 0, but for what was counted.

    Args:
        counted: By series.
        info: What is running; None: not our connector.
        ranks: How many count.
        hooks: Whether they are in force.
        without: A metric that is missing.
    """
    if info is None:
        return Page((("vllm:request_success_total", {"model_name": "m"}, 3.0),))
    found = dict.fromkeys(_always(ranks), 0.0)
    found |= {one("config_info", **info): 1.0, one("hook_installed", hook="start_load_kv"): hooks}
    found |= counted or {}
    return Page(
        tuple(
            (f"{PREFIX}{name}", {"model_name": "m", "engine": "0", **dict(labels)}, value)
            for (name, labels), value in found.items()
            if not without or not name.startswith(without)
        )
    )


def text_of(shown: Page) -> str:
    """A page as it is sent."""
    lines = []
    for name, labels, value in shown.samples:
        inside = ",".join(f'{label}="{text}"' for label, text in labels.items())
        lines.append(f"{name}{{{inside}}} {value}\n")
    return "".join(lines)


@functools.cache
def _always(ranks: int) -> tuple[Key, ...]:
    return tuple(
        key
        for name, instrument in CATALOG.items()
        if name not in HIDDEN
        for values in label_sets(instrument, layers=LAYERS, tp_ranks=ranks)
        for key in _series(instrument.kind, name, dict(zip(instrument.labels, values, strict=True)))
    )


def _series(kind: Kind, name: str, labels: Mapping[str, str]) -> list[Key]:
    if kind is not Kind.HISTOGRAM:
        return [one(name, **labels)]
    bucket = one(f"{name}_bucket", **labels, le="+Inf")
    return [bucket, *(one(f"{name}_{part}", **labels) for part in ("sum", "count"))]


def seen(shown: Page | None) -> Server:
    """A server that has shown this page; None: nothing."""
    url = "http://decode.example:8000"
    if shown is None:
        return Server(url, None, trouble=f"{url}/metrics does not answer: refused")
    return Server(url, shown)


def side(
    name: str,
    counted: Mapping[Key, float],
    *,
    before: Mapping[Key, float] | None = None,
    **how: Any,
) -> Side:
    """One engine that has counted this between two looks."""
    return Side((Watched(name, seen(page(before, **how)), seen(page(counted, **how))),))


def probes(
    wrong: int = 0, total: int = PROBES, result: Result = Result.DIVERGED
) -> tuple[Probe, ...]:
    """Probes that were answered, so many of them in a certain way."""
    good = Probe(0, 4, Result.MATCH, "a" * 32, 0.5)
    bad = Probe(
        0, 4, result, "b" * 32, 0.5, divergence=0, error="away" if result in UNANSWERED else None
    )
    return (bad,) * wrong + (good,) * (total - wrong)


def facts(
    counted: Mapping[Key, float] | None = None,
    *,
    info: Mapping[str, str] | None = INFO,
    prefill: Mapping[str, str] | None = PREFILL,
    ranks: int = 1,
    hooks: float = 1,
    before: Mapping[Key, float] | None = None,
    without: str = "",
    **more: Any,
) -> Facts:
    """A healthy run, but for what is said.

    Args:
        counted: What the decode engine has counted otherwise.
        info: What runs there.
        prefill: And on the prefill engine.
        ranks: The decode engine's.
        hooks: Whether its hooks are in force.
        before: What it had counted before.
        without: A metric that it has not.
        **more: Other facts.
    """
    now = healthy(ranks=ranks) | dict(counted or {})
    released = {one("releases_total"): float(PROBES), one("defer_timeout_seconds"): 60.0}
    usual = Facts(
        decode=side(
            "decode", now, before=before, info=info, ranks=ranks, hooks=hooks, without=without
        ),
        prefill=side("prefill", released, info=prefill),
        probes=probes(),
        settled=True,
        seconds=10.0,
        apart=True,
    )
    return replace(usual, **more)


def ruling(name: str, seen_of_it: Facts) -> Ruling:
    """What is said of one claim."""
    [claim] = [claim for claim in CLAIMS if claim.name == name]
    return claim.judged(seen_of_it).ruling
