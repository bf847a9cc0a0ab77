"""The canary's catalogue, as Prometheus sees it."""

from __future__ import annotations

import shutil
import subprocess
from itertools import pairwise

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from moriio_observed.canary.metrics import (
    CATALOG,
    COMMON,
    PREFIX,
    CanaryMetrics,
    Result,
    RoundResult,
    label_sets,
)
from moriio_observed.telemetry.catalog import Kind

SWEEP = (1, 4)
COMMON_LABELS = {"model_name": "m", "target": "t"}


def page(metrics: CanaryMetrics) -> str:
    registry = CollectorRegistry()
    registry.register(metrics)
    return generate_latest(registry).decode()


def samples(metrics: CanaryMetrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name.removeprefix(PREFIX), frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page(metrics))
        for sample in family.samples
    }


def value(metrics: CanaryMetrics, name: str, **labels: str) -> float | None:
    return samples(metrics).get((name, frozenset({**COMMON_LABELS, **labels}.items())))


@pytest.fixture
def metrics() -> CanaryMetrics:
    return CanaryMetrics("m", "t", SWEEP)


def test_every_instrument_is_on_the_page_with_its_kind_and_help(metrics: CanaryMetrics) -> None:
    families = {
        family.name: (family.type, family.documentation)
        for family in text_string_to_metric_families(page(metrics))
    }
    assert families == {
        PREFIX + one.name.removesuffix("_total"): (one.kind, one.help) for one in CATALOG.values()
    }


def test_every_label_set_stands_at_zero_from_the_start(metrics: CanaryMetrics) -> None:
    have = samples(metrics)
    for instrument in CATALOG.values():
        suffix = "_count" if instrument.kind is Kind.HISTOGRAM else ""
        for values in label_sets(instrument, SWEEP):
            labels = {**COMMON_LABELS, **dict(zip(instrument.labels, values, strict=True))}
            assert have[instrument.name + suffix, frozenset(labels.items())] == 0


def test_results_are_told_by_concurrency() -> None:
    probes = CATALOG["probes_total"]
    assert set(label_sets(probes, SWEEP)) == {
        (concurrency, str(result)) for concurrency in ("1", "4") for result in Result
    }


def test_there_are_no_created_series(metrics: CanaryMetrics) -> None:
    metrics.inc("rounds_total", result=RoundResult.RIGHT)
    assert "_created" not in page(metrics)


def test_what_is_counted_is_shown_under_its_labels_alone(metrics: CanaryMetrics) -> None:
    before = samples(metrics)
    metrics.inc("probes_total", concurrency="4", result=Result.SWAPPED)
    changed = {key: now for key, now in samples(metrics).items() if before[key] != now}
    labels = frozenset({**COMMON_LABELS, "concurrency": "4", "result": "swapped"}.items())
    assert changed == {("probes_total", labels): 1}


def test_a_first_token_that_is_wrong_is_in_the_first_bucket(metrics: CanaryMetrics) -> None:
    metrics.observe("divergence_tokens", 0, concurrency="1")
    assert value(metrics, "divergence_tokens_bucket", concurrency="1", le="0.0") == 1


@pytest.mark.parametrize(
    "name", [name for name, one in CATALOG.items() if one.kind is Kind.HISTOGRAM]
)
def test_buckets_ascend(name: str) -> None:
    assert CATALOG[name].buckets
    assert all(lower < upper for lower, upper in pairwise(CATALOG[name].buckets))


def test_every_series_says_which_model_and_target(metrics: CanaryMetrics) -> None:
    assert all({*COMMON} <= {name for name, _ in labels} for _, labels in samples(metrics))


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_prometheus_finds_nothing_to_complain_about(metrics: CanaryMetrics) -> None:
    checked = subprocess.run(
        ["promtool", "check", "metrics"],
        input=page(metrics),
        text=True,
        capture_output=True,
        check=False,
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
