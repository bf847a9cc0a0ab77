"""What a round adds to the metrics."""

from __future__ import annotations

from moriio_observed.canary.metrics import CanaryMetrics, RoundResult
from moriio_observed.canary.probes import Probe
from moriio_observed.canary.rounds import Round


def count(metrics: CanaryMetrics, done: Round, seconds: float, now: float) -> None:
    """Count a round that has ended.

    Args:
        metrics: Where.
        done: The round.
        seconds: How long it took.
        now: When it ended, Unix seconds.
    """
    for probe in done.probes:
        _count_probe(metrics, probe)
    metrics.inc("rounds_total", result=done.result)
    metrics.observe("round_seconds", seconds)
    metrics.set("last_round_timestamp_seconds", now)
    if done.result is RoundResult.RIGHT:
        metrics.set("last_success_timestamp_seconds", now)


def _count_probe(metrics: CanaryMetrics, probe: Probe) -> None:
    concurrency = str(probe.concurrency)
    metrics.inc("probes_total", concurrency=concurrency, result=probe.result)
    for sign in probe.signs:
        metrics.inc("signs_total", sign=sign)
    for name, value in (
        ("divergence_tokens", probe.divergence),
        ("first_token_logprob_difference", probe.logprob_difference),
        ("probe_seconds", probe.seconds),
    ):
        if value is not None:
            metrics.observe(name, value, concurrency=concurrency)
