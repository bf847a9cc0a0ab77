"""Exemplars on their way from a rank's own endpoint into a real Prometheus."""

from __future__ import annotations

import json
import os
import time
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from moriio_observed.config import Exporter, Settings
from moriio_observed.demo import prometheus, web
from moriio_observed.demo.ports import HOST, free_ports
from moriio_observed.demo.process import Process, wait_ready
from moriio_observed.telemetry.aggregate import Aggregate
from moriio_observed.telemetry.discovery import PATTERN
from moriio_observed.telemetry.exporter import OwnEndpoint
from moriio_observed.telemetry.exposition import OF_A_RANK, Exposition
from moriio_observed.telemetry.page import Page
from moriio_observed.telemetry.readings import Readings

pytestmark = pytest.mark.skipif(prometheus.find() is None, reason="prometheus is not installed")

WAIT_S = 60.0
TRACE = 0x0AF7651916CD43DD8448EB211C80319C
SPAN = 0x00F067AA0BA902B7
SERIES = {"model_name": "m", "engine": "0", "site": "step", "tp_rank": "0"}


def configuration(folder: Path) -> dict[str, Any]:
    return {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
        "scrape_configs": [
            {"job_name": "moriio", "file_sd_configs": [{"files": [str(folder / PATTERN)]}]}
        ],
    }


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Ask a Prometheus that finds its targets by the files in `tmp_path`."""
    port = next(free_ports())
    config = tmp_path / "prometheus.yml"
    config.write_text(json.dumps(configuration(tmp_path)))
    process = Process(
        "prometheus",
        [
            str(prometheus.find()),
            f"--config.file={config}",
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address={HOST}:{port}",
            "--enable-feature=exemplar-storage",
        ],
        os.environ,
        tmp_path / "prometheus.log",
        f"http://{HOST}:{port}/-/ready",
    )

    def ask(path: str, **query: Any) -> Any:
        url = f"http://{HOST}:{port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        return json.loads(web.get(url))["data"]

    try:
        wait_ready([process], WAIT_S)
        yield ask
    finally:
        process.stop()


def eventually(ask: Callable[[], Any]) -> Any:
    """What `ask` answers once it is something."""
    deadline = time.monotonic() + WAIT_S
    while not (answer := ask()):
        assert time.monotonic() < deadline, "Prometheus has not seen it"
        time.sleep(0.1)
    return answer


def test_prometheus_finds_the_endpoint_and_knows_the_trace_of_a_slow_wait(
    api: Callable[..., Any], tmp_path: Path
) -> None:
    ours = Aggregate(source="rank 0")
    waits = ours.histogram("barrier_wait_seconds", site="step")
    at = time.time()
    for waited in (0.003, 0.3):
        waits.observe(waited)
    waits.exemplify(0.3, at, TRACE, SPAN)
    exposition = Exposition(Settings())
    readings = Readings([ours], exposition, static={}, scopes=OF_A_RANK, layers=4, tp_ranks=[0])
    endpoint = OwnEndpoint(
        Page(readings, {"model_name": "m", "engine": "0"}),
        Exporter(enabled=True, discovery_dir=str(tmp_path)),
        target_labels={"moriio_role": "kv_consumer"},
    )
    endpoint.start()
    target = {"job": "moriio", "instance": endpoint.address, "moriio_role": "kv_consumer"}
    query = "moriio_barrier_wait_seconds_bucket"
    try:
        [series] = eventually(
            lambda: api("query_exemplars", query=query, start=at - 60, end=at + 60)
        )
        assert series["seriesLabels"] == {"__name__": query, "le": "0.5", **SERIES, **target}
        [exemplar] = series["exemplars"]
        assert exemplar["labels"] == {
            "trace_id": "0af7651916cd43dd8448eb211c80319c",
            "span_id": "00f067aa0ba902b7",
        }
        assert float(exemplar["value"]) == 0.3
        assert exemplar["timestamp"] == pytest.approx(at, abs=0.001)
        buckets = api("query", query=f'{query}{{le=~"0.0025|0.005|0.5",site="step"}}')["result"]
        assert {one["metric"]["le"]: one["value"][1] for one in buckets} == {
            "0.0025": "0",
            "0.005": "1",
            "0.5": "2",
        }
        [count] = api("query", query='moriio_barrier_wait_seconds_count{site="step"}')["result"]
        assert count["value"][1] == "2"
        assert api("targets")["activeTargets"][0]["health"] == "up"
    finally:
        endpoint.shutdown()
    # Its file is gone, so nobody is told that it is down.
    eventually(lambda: not api("targets")["activeTargets"])
