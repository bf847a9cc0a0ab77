"""What a canary shows Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from moriio_observed.canary.metrics import CanaryMetrics


def fresh_page() -> str:
    """The page of a canary that has only just begun: all its series are there from the start."""
    registry = CollectorRegistry()
    registry.register(CanaryMetrics("tiny", "router", (1, 4)))
    return generate_latest(registry).decode()
