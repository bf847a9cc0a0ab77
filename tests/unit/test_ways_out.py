"""A connector's own ways out: spans and metrics over OTLP, and an endpoint of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moriio_observed.config import SettingsError
from tests.unit.collectors import Collector, GrpcCollector, HttpCollector
from tests.unit.scripted import Decode

TRACE = f"{0xABC:032x}"
SAMPLED = f"00-{TRACE}-{0x77:016x}-01"


@pytest.fixture(params=[HttpCollector, GrpcCollector])
def collector(request: pytest.FixtureRequest) -> Iterator[Collector]:
    with request.param() as collector:
        yield collector


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans and metrics go out at once."""
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "10")


def to(collector: Collector, **otlp: Any) -> dict[str, Any]:
    return {"otlp": {"endpoint": collector.endpoint, "protocol": collector.protocol, **otlp}}


def a_failed_read(decode: Decode) -> None:
    decode.worker.session.failures = 1
    decode.step("r", reading=["r"], traceparents={"r": SAMPLED}, during=decode_lands(decode))


def decode_lands(decode: Decode) -> Any:
    return lambda: [status.land() for status in decode.worker.session.posted]


def spans_of(collector: Collector, names: set[str]) -> dict[str, Any]:
    """The spans by name, once one of each name has come."""
    found: dict[str, Any] = {}
    requests = 0
    while not names <= found.keys():
        requests += 1
        for request in collector.taken("traces", requests):
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    found |= {span.name: span for span in scope.spans}
    return found


def test_a_request_is_traced_through_the_engine(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = Decode(monkeypatch, to(collector))
    a_failed_read(decode)
    decode.step("r")
    spans = spans_of(collector, {"moriio.step", "moriio.read"})
    decode.connector.shutdown()
    assert {span.trace_id.hex() for span in spans.values()} == {TRACE}
    assert spans["moriio.read"].parent_span_id.hex() == f"{0x77:016x}"


def test_what_waits_goes_out_with_a_shutdown(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "3600000")
    decode = Decode(monkeypatch, to(collector, metrics=False))
    a_failed_read(decode)
    decode.step("r")
    decode.connector.shutdown()
    assert spans_of(collector, {"moriio.read"})


def test_without_an_endpoint_no_thread_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(threading.enumerate())
    decode = Decode(monkeypatch)
    decode.step("r", reading=["r"], during=decode_lands(decode))
    assert set(threading.enumerate()) <= before


def test_without_an_endpoint_nothing_of_opentelemetry_is_imported() -> None:
    program = "import sys, moriio_observed.connector; print(*sys.modules)"
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    imported = set(told.stdout.split())
    assert "moriio_observed.telemetry.sender" in imported
    lazy = ("tracing", "otlp", "otlp_exporters", "exporter", "page")
    assert imported.isdisjoint(f"moriio_observed.telemetry.{name}" for name in lazy)


def test_a_rank_serves_its_own_page_on_demand(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    exporter = {"enabled": True, "discovery_dir": str(tmp_path)}
    decode = Decode(monkeypatch, {"exporter": exporter})
    decode.step("r", reading=["r"], during=decode_lands(decode))
    [file] = tmp_path.iterdir()
    [[target]] = [group["targets"] for group in json.loads(file.read_text())]
    with urllib.request.urlopen(f"http://{target}/metrics") as page:
        text = page.read().decode()
    decode.connector.shutdown()
    assert 'moriio_requests_total{engine="0",model_name=""} 1.0' in text
    assert list(tmp_path.iterdir()) == []


def test_a_bad_variable_refuses_to_start_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "soon")
    with pytest.raises(SettingsError, match="OTEL_BSP_SCHEDULE_DELAY = 'soon'"):
        Decode(monkeypatch, {"otlp": {"endpoint": "http://127.0.0.1:1"}})


def test_what_a_dead_collector_does_not_take_is_counted_and_steps_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.1")
    decode = Decode(monkeypatch, {"otlp": {"endpoint": "http://127.0.0.1:1"}})
    a_failed_read(decode)
    while not decode.counted("telemetry_dropped_total|traces"):
        decode.step("r")
        decode.connector._news = True
    decode.connector.shutdown()
