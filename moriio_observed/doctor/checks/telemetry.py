"""Options that keep our numbers from ever reaching Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from moriio_observed.doctor.engines import Engine
from moriio_observed.doctor.findings import Finding, Place, Severity, runbook

_RUST = "VLLM_USE_RUST_FRONTEND"


def check(engine: Engine) -> Iterator[Finding]:
    """Whether vLLM passes on what the connector counts."""
    if engine.has("disable-log-stats"):
        yield Finding(
            "log-stats-off",
            Severity.WARNING,
            "--disable-log-stats drops every number, ours and vLLM's",
            (Place("--disable-log-stats", "given"),),
            "Nothing of it reaches /metrics: no alert can fire, no dashboard shows anything. "
            "Exposed requests are then told in the log only.",
            "Remove the option. Or send metrics by OTLP (OTEL_EXPORTER_OTLP_ENDPOINT), or use "
            "observed.exporter.enabled.",
            ("README.md", runbook("MoriioTelemetryAbsent")),
            engine.name,
        )
    if engine.environ.get(_RUST, "0") not in ("", "0"):
        yield Finding(
            "rust-front-end",
            Severity.WARNING,
            "vLLM's Rust front end drops the statistics of connectors",
            (Place(_RUST, engine.environ[_RUST]),),
            "No moriio_ series reaches /metrics.",
            f"Unset {_RUST}, or send metrics by OTLP.",
            ("README.md", runbook("MoriioTelemetryAbsent")),
            engine.name,
        )
