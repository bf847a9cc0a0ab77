"""From a counter of an engine to whoever is paged: our rules and our example for Alertmanager.

Engines are our own endpoint with what ours counts; Prometheus and Alertmanager are real. Intervals,
waits and windows are seconds instead of minutes.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from moriio_observed.alerting.folder import Folder
from moriio_observed.alerting.formats import plain
from moriio_observed.alerting.rules import render_groups
from moriio_observed.alerting.yaml_text import to_yaml
from moriio_observed.config import Exporter, Settings
from moriio_observed.demo import web
from moriio_observed.demo.ports import HOST
from moriio_observed.telemetry.aggregate import Aggregate
from moriio_observed.telemetry.exporter import OwnEndpoint
from moriio_observed.telemetry.exposition import MEASURED, Exposition
from moriio_observed.telemetry.page import Page
from moriio_observed.telemetry.readings import Readings
from tests.monitoring import ALERTMANAGER, PROMETHEUS, alertmanager, eventually, prometheus, query
from tests.tools import needs

pytestmark = needs(PROMETHEUS, ALERTMANAGER)

FOLDER = Folder(Path(__file__).parents[2] / "alerts")
WINDOW = "20s"
CERTAIN = {"cause": "full_graph", "certainty": "certain"}
SERVED = {**CERTAIN, "action": "reported"}


class Engine:
    """An engine's counters on a page of their own."""

    def __init__(self, discovery: Path) -> None:
        self.counts = Aggregate(source="rank 0")
        readings = Readings(
            [self.counts],
            Exposition(Settings()),
            static={},
            scopes=MEASURED,
            layers=4,
            tp_ranks=[0],
        )
        self._endpoint = OwnEndpoint(
            Page(readings, {"model_name": "org/m", "engine": "0"}),
            Exporter(enabled=True, discovery_dir=str(discovery)),
        )
        self._endpoint.start()
        self.address = str(self._endpoint.address)

    def stop(self) -> None:
        self._endpoint.shutdown()


class Receivers:
    """What PagerDuty and Slack would have got, in the order it came."""

    def __init__(self) -> None:
        self.pages: list[Mapping[str, Any]] = []
        self.tickets: list[Mapping[str, Any]] = []
        taken = {"/pages": self.pages, "/tickets": self.tickets}

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                taken[self.path].append(json.loads(body))
                self.send_response(202 if self.path == "/pages" else 200)
                self.end_headers()
                self.wfile.write(b"ok")

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer((HOST, 0), Handler)
        self.url = f"http://{HOST}:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def incidents(self) -> set[str]:
        """What PagerDuty tells incidents apart by."""
        return {page["dedup_key"] for page in self.pages}

    def page_with(self, text: str) -> Mapping[str, Any] | None:
        return next((page for page in self.pages if text in told(page)), None)

    def tickets_with(self, text: str) -> list[Mapping[str, Any]]:
        return [ticket for ticket in self.tickets if text in json.dumps(ticket)]


def told(page: Mapping[str, Any]) -> str:
    """The text behind a page's headline."""
    return str(page["payload"]["custom_details"].get("alerts", ""))


class Scene:
    """Two engines of one fleet, and everything between them and the receivers."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.engines = [Engine(folder / f"engine-{number}") for number in range(2)]
        self.receivers = Receivers()
        for each in (*self.engines, self.receivers):
            stack.callback(each.stop)
        self.alertmanager = stack.enter_context(
            alertmanager(folder / "alertmanager", delivery(folder, self.receivers.url))
        )
        (folder / "rules.yaml").write_text(rules())
        self.prometheus = stack.enter_context(
            prometheus(
                folder / "prometheus",
                {
                    "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                    "rule_files": [str(folder / "rules.yaml")],
                    "alerting": {"alertmanagers": [targets(self.alertmanager)]},
                    "scrape_configs": [
                        {"job_name": "decode", **targets(*(e.address for e in self.engines))}
                    ],
                },
            )
        )

    def is_scraped(self) -> bool:
        seen = query(self.prometheus, "count_over_time(moriio_reads_aborted_total[1m]) > 1")
        return len(seen) == len(self.engines)

    def suppressed(self) -> set[str]:
        """The alerts that Alertmanager keeps to itself because of another."""
        alerts = json.loads(web.get(f"{self.alertmanager}/api/v2/alerts"))
        return {alert["labels"]["alertname"] for alert in alerts if alert["status"]["inhibitedBy"]}


def targets(*urls: str) -> dict[str, Any]:
    return {"static_configs": [{"targets": [url.removeprefix("http://") for url in urls]}]}


def rules() -> str:
    """Our rules with short windows, which end as soon as what they tell of."""
    groups = render_groups(FOLDER.sources(), FOLDER.values(), keep_firing_for=False)
    text = to_yaml(plain([{**group, "interval": "1s"} for group in groups], {}))
    return re.sub(r"\[(5m|15m|30m|1h)\]", f"[{WINDOW}]", text)


def delivery(folder: Path, url: str) -> dict[str, Any]:
    """Our example for Alertmanager, in a hurry and with the receivers at this address."""
    home = FOLDER.path / "alertmanager"
    config: dict[str, Any] = yaml.safe_load((home / "alertmanager.yml").read_text())
    config["templates"] = [str(home / name) for name in config["templates"]]
    config["global"]["pagerduty_url"] = f"{url}/pages"
    for route in (config["route"], *config["route"]["routes"]):
        route.update(group_wait="3s", group_interval="2s")
    secrets = {"routing_key_file": "key", "api_url_file": f"{url}/tickets"}
    for receiver in config["receivers"]:
        for integration in (
            *receiver.get("pagerduty_configs", ()),
            *receiver.get("slack_configs", ()),
        ):
            for name in secrets.keys() & integration.keys():
                secret = folder / name
                secret.write_text(secrets[name])
                integration[name] = str(secret)
    return config


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with ExitStack() as stack:
        yield Scene(tmp_path, stack)


def test_one_incident_pages_once_and_says_where_why_and_what_to_do(scene: Scene) -> None:
    first, second = scene.engines
    receivers = scene.receivers
    eventually(scene.is_scraped, "both engines scraped twice")
    assert (receivers.pages, receivers.tickets) == ([], [])

    # Garbage is served: a symptom, a cause that would page, and one that would be a ticket.
    first.counts.counter("unprotected_steps_total", **CERTAIN).inc(3)
    first.counts.counter("exposed_requests_total", **SERVED).inc(2)
    first.counts.counter("barrier_timeouts_total", site="layer").inc()
    first.counts.counter("reads_aborted_total").inc(4)

    page = eventually(lambda: receivers.page_with(first.address), "a page for the first engine")
    assert page["event_action"] == "trigger"
    assert "MoriioUnprotectedSteps" in page["payload"]["summary"]
    assert "Cause: full_graph" in told(page)
    [runbook] = page["links"]
    assert runbook["href"].endswith("/runbooks/MoriioUnprotectedSteps.md")
    quiet = {"MoriioBarrierTimeouts", "MoriioRecvAborts"}
    eventually(lambda: quiet <= scene.suppressed(), "the causes inhibited")

    # It spreads: the same incident, told again.
    second.counts.counter("unprotected_steps_total", **CERTAIN).inc()
    eventually(lambda: receivers.page_with(second.address), "the page with the second engine")
    assert len(receivers.incidents()) == 1

    # What is another incident is told beside it, after what was inhibited could have been.
    second.counts.counter("notify_failures_total").inc(10)
    eventually(lambda: receivers.tickets_with("MoriioNotifyFailures"), "a ticket")
    assert receivers.tickets_with("MoriioRecvAborts") == []
    assert receivers.page_with("MoriioBarrierTimeouts") is None

    # And it ends where it began.
    eventually(lambda: receivers.pages[-1]["event_action"] == "resolve", "the page's end")
    assert len(receivers.incidents()) == 1
