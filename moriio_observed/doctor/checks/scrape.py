"""Does Prometheus have what the servers have, under our names?"""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterator, Sequence

from moriio_observed.doctor.findings import Finding, Place, Severity, runbook
from moriio_observed.doctor.prometheus import Stored, Target
from moriio_observed.doctor.server import Server
from moriio_observed.telemetry.catalog import CATALOG, PREFIX, Kind

_SHOWN = 8
# Without a server to compare with: what every observed engine has from its start.
ALWAYS = ("moriio_config_info", "moriio_hook_installed", "moriio_steps_total")


def wanted(servers: Sequence[Server]) -> list[str]:
    """The names that Prometheus should have: those of the servers, or what every engine has."""
    known = {
        PREFIX + name + ("_bucket" if instrument.kind is Kind.HISTOGRAM else "")
        for name, instrument in CATALOG.items()
    }
    live = {name for server in servers if server.metrics for name in server.metrics.names & known}
    return sorted(live or ALWAYS)


def check(stored: Stored, servers: Sequence[Server]) -> Iterator[Finding]:
    """What is missing in a Prometheus, and why it is likely to be."""
    if stored.names is None:
        yield Finding(
            "prometheus-silent",
            Severity.WARNING,
            "Prometheus cannot be asked",
            (Place("--prometheus", stored.url), Place("answer", stored.trouble)),
            "Whether our metrics arrive cannot be said.",
            "Check the address; for Mimir or Thanos it ends where /api/v1/query begins.",
            (),
            stored.url,
        )
        return
    for server in servers:
        yield from _target(stored, server)
    names = wanted(servers)
    missing = [name for name in names if name not in stored.names]
    if not missing:
        return
    renamed = {name: new for name in missing if (new := _renamed(name, stored.names))}
    if renamed:
        yield _relabelled(stored, renamed)
    dropped = [name for name in missing if name not in renamed]
    if dropped:
        yield _absent(stored, dropped, everything=len(missing) == len(names) and not renamed)


def _renamed(name: str, names: frozenset[str]) -> str | None:
    """The name that a metric of ours may have been given."""
    end = name.removeprefix(PREFIX)
    return next((other for other in sorted(names) if other.endswith(end) and other != name), None)


def _relabelled(stored: Stored, renamed: dict[str, str]) -> Finding:
    return Finding(
        "names-relabelled",
        Severity.WARNING,
        f"Prometheus has {len(renamed)} of our metrics under other names",
        tuple(Place(name, new) for name, new in list(renamed.items())[:_SHOWN]),
        "Our rules, alerts and dashboards ask for the names as they are: none of them sees "
        "anything.",
        "Take the rename of __name__ out of metric_relabel_configs (or write_relabel_configs).",
        (runbook("MoriioTelemetryAbsent"), "docs/doctor.md#prometheus"),
        stored.url,
    )


def _absent(stored: Stored, missing: Sequence[str], *, everything: bool) -> Finding:
    more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
    if not everything:
        what = f"Prometheus lacks {len(missing)} of our metrics that the servers have"
        why = "They are dropped on the way, or by name: metric_relabel_configs, or a sample limit."
    elif stored.vllm:
        what = "Prometheus has vLLM's series and none of ours"
        why = "Ours are dropped by name (metric_relabel_configs that keep only vllm:.*), or the "
        why += "engines that it scrapes are not observed."
    else:
        what = "Prometheus has no series of ours or vLLM's: the servers are not scraped"
        why = "No alert can fire and no dashboard shows anything."
    return Finding(
        "not-scraped",
        Severity.WARNING,
        what,
        (Place("missing", ", ".join(missing[:_SHOWN]) + more),),
        why,
        "Scrape /metrics of every engine's API port, and keep moriio_.* in metric_relabel_configs.",
        (runbook("MoriioTelemetryAbsent"), "docs/doctor.md#prometheus"),
        stored.url,
    )


def _target(stored: Stored, server: Server) -> Iterator[Finding]:
    if stored.targets is None:
        return
    address = urllib.parse.urlsplit(server.url).netloc
    found = [target for target in stored.targets if _netloc(target) == address]
    for target in found:
        if target.health == "down":
            yield Finding(
                "scrape-fails",
                Severity.WARNING,
                "Prometheus fails to scrape the server",
                (Place(target.url, target.error or target.health),),
                "It has nothing of it since then.",
                "Mend what the error names: the target's address, path or permission.",
                (runbook("MoriioTelemetryAbsent"),),
                server.url,
            )
    if not found:
        yield Finding(
            "no-target-by-address",
            Severity.NOTE,
            f"none of Prometheus' {len(stored.targets)} targets has this address",
            (Place("--url", server.url),),
            "It may scrape it under another name, as with service discovery.",
            "Look for it on Prometheus' page of targets.",
            ("docs/doctor.md#prometheus",),
            server.url,
        )


def _netloc(target: Target) -> str:
    try:
        return urllib.parse.urlsplit(target.url).netloc
    except ValueError:
        return ""
