"""The catalogue: names that Prometheus and OTLP both accept, and closed label sets."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from moriio_observed.telemetry import catalog
from moriio_observed.telemetry.catalog import CATALOG, Instrument, Kind, label_sets

ROOT = Path(__file__).parents[3]
INSTRUMENTS = pytest.mark.parametrize("instrument", CATALOG.values(), ids=CATALOG)


@INSTRUMENTS
def test_exactly_the_counters_end_in_total(instrument: Instrument) -> None:
    assert instrument.name.endswith("_total") == (instrument.kind is Kind.COUNTER)


@INSTRUMENTS
def test_a_name_says_its_unit(instrument: Instrument) -> None:
    base = instrument.name.removesuffix("_total")
    assert {"s": base.endswith("_seconds"), "By": base.endswith("_bytes")}.get(
        instrument.unit, not base.endswith(("_seconds", "_bytes"))
    )


@INSTRUMENTS
def test_names_and_labels_are_valid_without_a_colon(instrument: Instrument) -> None:
    for name in (instrument.name, *instrument.labels):
        assert re.fullmatch(r"[a-z][a-z0-9_]*", name)


@INSTRUMENTS
def test_help_is_one_line_that_ends_with_who_counts(instrument: Instrument) -> None:
    assert "\n" not in instrument.help
    assert instrument.help.endswith(f"{instrument.about} {instrument.scope}")


@INSTRUMENTS
def test_no_instrument_is_labelled_by_request_or_by_layer_name(instrument: Instrument) -> None:
    assert not {"request_id", "request", "layer_name"} & set(instrument.labels)
    if "layer" in instrument.labels:
        assert instrument.kind is Kind.COUNTER


def test_label_sets_are_the_product_of_the_closed_values_in_label_order() -> None:
    sets = list(label_sets(CATALOG["barrier_wait_seconds"], layers=4, tp_ranks=2))
    assert sets == [("layer", "0"), ("layer", "1"), ("step", "0"), ("step", "1")]


def test_layers_are_counted_from_zero() -> None:
    sets = label_sets(CATALOG["layer_waits_total"], layers=3, tp_ranks=2)
    assert list(sets) == [("0",), ("1",), ("2",)]


def test_an_instrument_without_labels_has_one_label_set() -> None:
    assert list(label_sets(CATALOG["requests_total"], layers=4, tp_ranks=2)) == [()]


def test_an_open_label_yields_no_label_sets() -> None:
    assert list(label_sets(CATALOG["remote_reads_total"], layers=4, tp_ranks=2)) == []


def test_the_first_cause_of_a_step_is_looked_for_in_this_order() -> None:
    assert catalog.CAUSES == ("failed", "timeout", "gave_up", "full_graph", "no_barrier")


def test_wait_buckets_reach_from_50_us_to_the_longest_timeouts() -> None:
    buckets = catalog.WAIT_BUCKETS
    assert (buckets[0], buckets[-1], len(buckets)) == (50e-6, 120, 19)
    assert list(buckets) == sorted(set(buckets))


def test_byte_buckets_reach_from_64_kib_to_16_gib() -> None:
    assert (catalog.BYTE_BUCKETS[0], catalog.BYTE_BUCKETS[-1]) == (2**16, 2**34)


def test_the_pure_parts_import_nothing_but_the_standard_library() -> None:
    code = (
        "import sys, moriio_observed.config, moriio_observed.telemetry.aggregate;"
        "own = {m.partition('.')[0] for m in sys.modules} - set(sys.stdlib_module_names);"
        "print(own & {'vllm', 'torch', 'prometheus_client', 'opentelemetry', 'mori', 'numpy'})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_the_page_on_metrics_is_what_the_catalogue_says() -> None:
    script = ROOT / "scripts/metrics_doc.py"
    subprocess.run([sys.executable, script, "--check"], check=True)
