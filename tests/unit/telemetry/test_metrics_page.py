"""One rank's own page, in both of Prometheus' text formats."""

import math
import shutil
import subprocess
import threading
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_classic

from moriio_observed.config import Settings
from moriio_observed.telemetry.aggregate import Aggregate
from moriio_observed.telemetry.catalog import CATALOG, PREFIX, Kind, Scope, label_sets
from moriio_observed.telemetry.exposition import OF_A_RANK, Exposition
from moriio_observed.telemetry.page import Page
from moriio_observed.telemetry.readings import Readings

LABELS = {"model_name": "m", "engine": "0"}
TRACE = 0x0AF7651916CD43DD8448EB211C80319C
SPAN = 0x00F067AA0BA902B7


def page(*aggregates: Aggregate, settings: Settings | None = None, **options: Any) -> Page:
    given = {"static": {}, "scopes": OF_A_RANK, "layers": 4, "tp_ranks": [0]}
    exposition = Exposition(settings or Settings())
    return Page(Readings(aggregates, exposition, **{**given, **options}), LABELS)


def registry(collector: Page) -> CollectorRegistry:
    made = CollectorRegistry()
    made.register(collector)
    return made


def classic(collector: Page) -> str:
    return generate_latest(registry(collector)).decode()


def openmetrics(collector: Page) -> str:
    return generate_openmetrics(registry(collector)).decode()


def samples(families: Any) -> dict[tuple[str, frozenset[tuple[str, str]]], Any]:
    return {
        (sample.name.removeprefix(PREFIX), frozenset(sample.labels.items())): sample
        for family in families
        for sample in family.samples
    }


def value(collector: Page, name: str, **labels: str) -> float | None:
    have = samples(read_classic(classic(collector)))
    sample = have.get((name, frozenset({**LABELS, **labels}.items())))
    return None if sample is None else sample.value


def exemplars(collector: Page) -> dict[str, Any]:
    """Those there are, by the upper bound of their bucket."""
    have = samples(read_openmetrics(openmetrics(collector)))
    return {
        dict(labels)["le"]: sample.exemplar
        for (_, labels), sample in have.items()
        if sample.exemplar
    }


def test_every_instrument_has_its_help_and_kind() -> None:
    families = {
        family.name: (family.type, family.documentation) for family in read_classic(classic(page()))
    }
    assert families == {
        PREFIX + instrument.name.removesuffix("_total"): (instrument.kind, instrument.help)
        for instrument in CATALOG.values()
    }


def test_every_series_this_rank_counts_stands_at_zero_from_the_start() -> None:
    found = samples(read_classic(classic(page(tp_ranks=[3]))))
    suffix = {Kind.COUNTER: "", Kind.GAUGE: "", Kind.HISTOGRAM: "_count"}
    for instrument in CATALOG.values():
        if instrument.scope in (Scope.START, Scope.SCHEDULER):
            continue
        for values in label_sets(instrument, layers=4, tp_ranks=1):
            labels = {**LABELS, **dict(zip(instrument.labels, values, strict=True))}
            if "tp_rank" in labels:
                labels["tp_rank"] = "3"
            key = instrument.name + suffix[instrument.kind], frozenset(labels.items())
            assert found[key].value == 0
    assert {dict(labels).get("tp_rank") for _, labels in found} == {None, "3"}


def test_what_only_the_scheduler_counts_does_not_stand_at_zero() -> None:
    names = {name for name, _ in samples(read_classic(classic(page())))}
    assert not names & {name for name, one in CATALOG.items() if one.scope is Scope.SCHEDULER}


def test_the_scopes_given_say_what_stands_at_zero() -> None:
    names = {name for name, _ in samples(read_classic(classic(page(scopes={Scope.SCHEDULER}))))}
    assert names == {name for name, one in CATALOG.items() if one.scope is Scope.SCHEDULER}


def test_it_shows_what_was_counted_until_now() -> None:
    ours = Aggregate(source="rank 0")
    shown = page(ours)
    posted, waits = ours.counter("reads_posted_total"), ours.histogram("post_seconds")
    for expected in (1, 2):
        posted.inc()
        waits.observe(0.003)
        assert value(shown, "reads_posted_total") == expected
        assert value(shown, "post_seconds_bucket", le="0.0025") == 0
        assert value(shown, "post_seconds_bucket", le="0.005") == expected
        assert value(shown, "post_seconds_bucket", le="+Inf") == expected
        assert value(shown, "post_seconds_sum") == pytest.approx(0.003 * expected)


def test_several_aggregates_add_up_and_gauges_fold_as_the_catalogue_says() -> None:
    one, other = Aggregate(source="a"), Aggregate(source="b")
    for ours, reading in ((one, 0), (other, 1)):
        ours.counter("telemetry_dropped_total", signal="traces").inc(2)
        ours.gauge("hook_installed", hook="x").set(reading)
        ours.gauge("reads_in_flight").set(reading + 1)
    shown = page(one, other)
    assert value(shown, "telemetry_dropped_total", signal="traces") == 4
    assert value(shown, "hook_installed", hook="x") == 0
    assert value(shown, "reads_in_flight", tp_rank="0") == 3


def test_a_gauge_nobody_knows_any_more_is_no_number() -> None:
    ours = Aggregate(source="a")
    ours.gauge("reads_in_flight").set(math.nan)
    shown = value(page(ours), "reads_in_flight", tp_rank="0")
    assert shown is not None
    assert math.isnan(shown)


def test_static_gauges_are_there_until_an_aggregate_knows_better() -> None:
    ours = Aggregate(source="a")
    shown = page(ours, static={"full_graph_protected": 1, "transfer_timeout_seconds": 30})
    assert value(shown, "full_graph_protected") == 1
    ours.gauge("full_graph_protected").set(0)
    assert value(shown, "full_graph_protected") == 0
    assert value(shown, "transfer_timeout_seconds") == 30


def test_a_gauge_set_once_is_absent_until_somebody_knows_it() -> None:
    assert value(page(), "full_graph_protected") is None


def test_without_the_rank_label_no_series_carries_it() -> None:
    ours = Aggregate(source="rank 1", tp_rank="1")
    ours.gauge("reads_in_flight").set(2)
    shown = page(ours, settings=Settings(rank_label=False), tp_ranks=[1])
    assert value(shown, "reads_in_flight") == 2
    assert "tp_rank" not in classic(shown)


def test_without_per_layer_the_two_counters_are_absent() -> None:
    ours = Aggregate(source="rank 0")
    ours.counter("layer_waits_total", layer="1").inc()
    assert "layer_wait" not in classic(page(ours, settings=Settings(per_layer=False)))


def test_histograms_have_the_bounds_of_the_settings() -> None:
    settings = Settings(wait_buckets=(0.5, 1.0))
    ours = Aggregate(source="w", wait_buckets=settings.wait_buckets)
    ours.histogram("post_seconds").observe(0.7)
    found = {
        dict(labels)["le"]: sample.value
        for (name, labels), sample in samples(
            read_classic(classic(page(ours, settings=settings)))
        ).items()
        if name == "post_seconds_bucket"
    }
    assert found == {"0.5": 0, "1.0": 1, "+Inf": 1}


def test_label_values_may_hold_anything() -> None:
    remote = 'a|b%7C"\n\\'
    ours = Aggregate(source="w")
    ours.counter("remote_reads_total", remote=remote).inc()
    assert value(page(ours), "remote_reads_total", remote=remote) == 1


@pytest.mark.parametrize("render", [classic, openmetrics])
def test_there_are_no_created_series(render: Any) -> None:
    ours = Aggregate(source="w")
    ours.counter("reads_posted_total").inc()
    ours.histogram("post_seconds").observe(1)
    assert "_created" not in render(page(ours))


# --- exemplars -------------------------------------------------------------------------------


def waited(source: str, value: float, at: float, trace: int = TRACE) -> Aggregate:
    ours = Aggregate(source=source)
    waits = ours.histogram("barrier_wait_seconds", site="step")
    waits.observe(value)
    waits.exemplify(value, at, trace, SPAN)
    return ours


def test_a_bucket_shows_its_exemplar_in_openmetrics() -> None:
    found = exemplars(page(waited("a", 0.3, 1700000000.5), waited("b", 500, 1700000001.5)))
    assert set(found) == {"0.5", "+Inf"}
    assert found["0.5"].value == 0.3
    assert float(found["0.5"].timestamp) == 1700000000.5
    assert found["0.5"].labels == {
        "trace_id": "0af7651916cd43dd8448eb211c80319c",
        "span_id": "00f067aa0ba902b7",
    }


def test_the_latest_exemplar_of_a_bucket_is_shown_whoever_has_it() -> None:
    late, early = waited("a", 0.3, 20.0), waited("b", 0.4, 10.0, trace=1)
    assert exemplars(page(late, early)) == exemplars(page(early, late))
    assert exemplars(page(early, late))["0.5"].value == 0.3


def test_an_exemplar_with_small_ids_keeps_their_full_length() -> None:
    found = exemplars(page(waited("a", 0.3, 10.0, trace=1)))
    assert found["0.5"].labels["trace_id"] == "0" * 31 + "1"


def test_the_classic_text_has_no_exemplars() -> None:
    text = classic(page(waited("a", 0.3, 10.0)))
    assert "trace_id" not in text
    assert " # {" not in text


# --- as a whole ------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_prometheus_own_checker_finds_nothing_wrong_with_the_text() -> None:
    text = classic(page(waited("a", 0.3, 10.0), static={"transfer_timeout_seconds": 30}))
    check = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    assert (check.returncode, check.stdout, check.stderr) == (0, "", "")


def test_it_can_be_made_while_counting_goes_on() -> None:
    ours = Aggregate(source="rank 0")
    shown = page(ours)
    stop = threading.Event()

    def count() -> None:
        remote = 0
        while not stop.is_set():
            ours.counter("remote_reads_total", remote=str(remote % 100)).inc()
            ours.histogram("barrier_wait_seconds", site="layer").observe(remote % 7)
            remote += 1

    counting = threading.Thread(target=count)
    counting.start()
    try:
        before = 0.0
        for _ in range(20):
            have = samples(_only(shown, "moriio_barrier_wait_seconds"))
            labels = {**LABELS, "site": "layer", "tp_rank": "0"}
            seen = have["barrier_wait_seconds_count", frozenset(labels.items())].value
            highest = have[
                "barrier_wait_seconds_bucket", frozenset({**labels, "le": "+Inf"}.items())
            ]
            assert before <= seen == highest.value
            before = seen
    finally:
        stop.set()
        counting.join()


def _only(collector: Page, name: str) -> list[Metric]:
    return [family for family in collector.collect() if family.name == name]
