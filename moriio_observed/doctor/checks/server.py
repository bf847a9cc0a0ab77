"""A running server: is it observed, is it as configured, and do its requests read?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from moriio_observed.doctor.checks import counters
from moriio_observed.doctor.checks.deadlines import VLLMS, are_vllms
from moriio_observed.doctor.engines import Engine
from moriio_observed.doctor.findings import Finding, Place, Severity, runbook
from moriio_observed.doctor.server import Server
from moriio_observed.doctor.versions import minor_of
from moriio_observed.telemetry.catalog import PREFIX


def check(server: Server, engines: Sequence[Engine]) -> Iterator[Finding]:
    """What is wrong with a running server."""
    if server.metrics is None:
        yield Finding(
            "server-silent",
            Severity.CRITICAL,
            "the server's /metrics cannot be had",
            (Place("--url", server.url), Place("answer", server.trouble)),
            "Nothing can be said of it, and Prometheus cannot scrape it either.",
            "Check the address, and that the server is up: /metrics is on its API port.",
            (runbook("MoriioTelemetryAbsent"),),
            server.url,
        )
    elif not any(name.startswith(PREFIX) for name in server.metrics.names):
        yield _without_ours(server, engines)
    else:
        yield from _in_force(server)
        yield from counters.check(server)
        yield from _router(server)


def versions(server: Server, given: str | None) -> Iterator[Finding]:
    """Whether the server runs what it is said to."""
    if given and server.version and minor_of(given) != minor_of(server.version):
        yield Finding(
            "other-version",
            Severity.WARNING,
            f"the server runs vLLM {server.version}, not {given}",
            (Place("/version", server.version), Place("--vllm-version", given)),
            "What is said of the configuration is said for the server's.",
            "Give the version that runs, or none.",
            ("docs/versions.md",),
            server.url,
        )


def deadlines(servers: Sequence[Server]) -> Iterator[Finding]:
    """Whether prefill engines that run hold blocks as long as decode engines may read them."""
    held = _in_force_at(servers, "kv_producer", "defer_timeout_seconds")
    limits = _in_force_at(servers, "kv_consumer", "recv_abort_timeout_seconds")
    for sender, lease in held:
        for reader, limit in limits:
            upstreams = are_vllms(held=lease, limit=limit)
            if lease < limit:
                yield Finding(
                    "lease-shorter-than-reads",
                    Severity.NOTE if upstreams else Severity.WARNING,
                    f"the prefill engine frees blocks after {lease:g} s, the decode engine may "
                    f"read them for {limit:g} s",
                    (
                        Place(f"moriio_defer_timeout_seconds ({sender.url})", f"{lease:g}"),
                        Place(f"moriio_recv_abort_timeout_seconds ({reader.url})", f"{limit:g}"),
                    ),
                    "A read that comes, or lands, in between succeeds and brings another request's "
                    "KV. A guard does not trust it." + (f" {VLLMS}" if upstreams else ""),
                    f"Set defer_timeout on the prefill engine to more than {limit:g}.",
                    (runbook("MoriioStaleReads"), "docs/doctor.md#deadlines"),
                    reader.url,
                )


def _in_force_at(servers: Sequence[Server], role: str, gauge: str) -> list[tuple[Server, float]]:
    return [
        (server, value)
        for server in servers
        if server.info.get("role") == role and server.info.get("mode") == "read"
        for _, value in _of(server, gauge)
    ]


def _without_ours(server: Server, engines: Sequence[Engine]) -> Finding:
    has_vllms = server.metrics is not None and any(
        name.startswith("vllm:") for name in server.metrics.names
    )
    ours = any(connector.is_ours for engine in engines for connector in engine.connectors)
    if not has_vllms:
        why = "It has none of vLLM's own either: it was started with --disable-log-stats, or is no "
        why += "vLLM server."
        do = "Start it without --disable-log-stats."
    elif ours:
        why = "The configuration names our connector: it is not the one this server was started "
        why += "with, or vLLM's Rust front end dropped its numbers."
        do = "Restart it with that configuration, and without VLLM_USE_RUST_FRONTEND."
    else:
        why = "vLLM's own connector runs there, or none: nothing is observed."
        do = "Start it with our connector, and grep its log for moriio_observed."
    return Finding(
        "server-unobserved",
        Severity.WARNING,
        "the server has no moriio_ series",
        (Place("/metrics", server.url),),
        why,
        do,
        (runbook("MoriioTelemetryAbsent"), "README.md"),
        server.url,
    )


def _in_force(server: Server) -> Iterator[Finding]:
    hooks = [
        labels.get("hook", "") for labels, value in _of(server, "hook_installed") if value == 0
    ]
    if hooks:
        yield Finding(
            "hook-missing",
            Severity.CRITICAL,
            f"{len(hooks)} of our hooks are not in force",
            (Place("moriio_hook_installed = 0", ", ".join(sorted(set(hooks)))),),
            "vLLM's own barrier serves there, and our numbers stand still.",
            "The log says at error level what is different on this vLLM.",
            (runbook("MoriioHookMissing"), "docs/versions.md"),
            server.url,
        )
    if any(value == 0 for _, value in _of(server, "full_graph_protected")):
        yield Finding(
            "full-graphs-unprotected",
            Severity.CRITICAL,
            "FULL CUDA graph steps wait for no read on this server",
            (
                Place("moriio_full_graph_protected", "0"),
                *_facts(server, "cudagraph_mode", "barrier", "vllm_version"),
            ),
            "A FULL replay runs no Python between layers, so nothing waits for a read in it.",
            "Set observed.barrier to 'auto', or cudagraph_mode to PIECEWISE.",
            (runbook("MoriioFullGraphUnprotected"), "docs/versions.md"),
            server.url,
        )
    if server.info.get("barrier") == "off":
        yield Finding(
            "barrier-off",
            Severity.CRITICAL,
            "the server runs with barrier 'off'",
            _facts(server, "barrier"),
            "Requests are answered from memory that no read has filled.",
            "Restart it with barrier 'auto'.",
            ("docs/settings.md#barriers",),
            server.url,
        )


def _router(server: Server) -> Iterator[Finding]:
    """Requests, and none of them read: whoever sends them does not do READ."""
    info, answered = server.info, server.page.total("vllm:request_success_total")
    decode = info.get("mode") == "read" and info.get("role") == "kv_consumer"
    posted = server.page.total("moriio_reads_posted_total")
    if not decode or answered == 0 or posted > 0:
        return
    yield Finding(
        "router-does-not-read",
        Severity.CRITICAL,
        f"a decode engine in READ mode has answered {answered:g} requests and read for none",
        (
            Place("vllm:request_success_total", f"{answered:g}"),
            Place("moriio_reads_posted_total", "0"),
        ),
        "The router does not do READ, or requests reach the engine past it: in READ the prefill "
        "must have ended before the request is sent on with the prefill engine's answer. Up to "
        "vLLM 0.32 such requests decode on memory that nobody filled.",
        "Use a router that does READ, such as vLLM's moriio_toy_proxy_server.py, and send nothing "
        "to the decode engine past it.",
        (runbook("MoriioPhantomHits"), "docs/doctor.md#routers"),
        server.url,
    )


def _facts(server: Server, *labels: str) -> tuple[Place, ...]:
    return tuple(
        Place(f"moriio_config_info {label}", server.info[label])
        for label in labels
        if label in server.info
    )


def _of(server: Server, name: str, **labels: str) -> list[tuple[dict[str, str], float]]:
    return [(dict(found), value) for found, value in server.page.of(PREFIX + name, **labels)]
