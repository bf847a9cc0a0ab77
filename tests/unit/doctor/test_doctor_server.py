"""Running servers, and a Prometheus that scrapes them or does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moriio_observed.doctor import prometheus, server
from moriio_observed.doctor.checks import counters, scrape
from moriio_observed.doctor.checks import server as of_server
from moriio_observed.doctor.exposition import parse
from moriio_observed.doctor.findings import Finding, Severity, runbook
from moriio_observed.doctor.read import Address
from moriio_observed.telemetry.catalog import CATALOG
from tests import monitoring
from tests.tools import needs
from tests.unit.doctor.patients import ROOT, Quiet, answering, config, engine, only, serving

LABELS = 'engine="0",model_name="m"'
INFO = (
    f'moriio_config_info{{{LABELS},role="kv_consumer",mode="read",cudagraph_mode="FULL",'
    'barrier="auto",guard="report",vllm_version="0.32.0"} 1\n'
)
HEALTHY = (
    INFO
    + f'moriio_hook_installed{{{LABELS},hook="x"}} 1\nmoriio_full_graph_protected{{{LABELS}}} 1\n'
    + f"moriio_reads_posted_total{{{LABELS}}} 12\nvllm:request_success_total{{{LABELS}}} 3\n"
    + f'moriio_exposed_requests_total{{{LABELS},action="reported"}} 0\n'
    + f'moriio_steps_total{{{LABELS},runtime_mode="FULL",reads="true"}} 5\n'
)
VERSION = '{"version": "0.32.0"}'


def looked_at(metrics: str, *engines: Any) -> list[Finding]:
    with serving(metrics=metrics, version=VERSION) as url:
        return list(of_server.check(server.ask(Address(url)), engines))


def names(findings: list[Finding]) -> set[str]:
    return {finding.name for finding in findings}


def test_a_healthy_server_has_nothing_wrong() -> None:
    assert looked_at(HEALTHY) == []


def test_the_version_is_the_servers() -> None:
    with serving(metrics=HEALTHY, version=VERSION) as url:
        found = server.ask(Address(url))
    assert found.version == "0.32.0"
    assert names(list(of_server.versions(found, "0.30.0"))) == {"other-version"}
    assert names(list(of_server.versions(found, "0.32.1"))) == set()


def test_without_a_page_of_versions_our_own_series_has_it() -> None:
    with serving(metrics=HEALTHY) as url:
        assert server.ask(Address(url)).version == "0.32.0"


def page_of(role: str, gauge: str, seconds: int) -> server.Server:
    text = INFO.replace("kv_consumer", role) + f"moriio_{gauge}_seconds{{{LABELS}}} {seconds}\n"
    return server.Server(f"http://{role}", parse(text))


@pytest.mark.parametrize(
    ("held", "severities"),
    [(60, [Severity.NOTE]), (90, [Severity.WARNING]), (120, [])],
    ids=["vLLM's defaults", "too short", "long enough"],
)
def test_deadlines_of_running_servers_are_compared(held: int, severities: list[Severity]) -> None:
    servers = [
        page_of("kv_producer", "defer_timeout", held),
        page_of("kv_consumer", "recv_abort_timeout", 120),
    ]
    assert [found.severity for found in of_server.deadlines(servers)] == severities


def test_a_server_that_does_not_answer_is_a_finding() -> None:
    with serving() as url:
        pass
    assert names(list(of_server.check(server.ask(Address(url)), []))) == {"server-silent"}
    with serving() as url:
        assert "HTTP 404" in server.ask(Address(url)).trouble


def test_a_server_that_speaks_no_http_is_told_without_what_it_says() -> None:
    class Handler(Quiet):
        def do_GET(self) -> None:  # noqa: N802  (its name in http.server)
            self.wfile.write(b"220 mail.example ready\r\n")

    with answering(Handler) as url:
        assert server.ask(Address(url)).trouble == (
            f"{url}/metrics does not answer: what it says is not HTTP"
        )


@pytest.mark.parametrize("text", ["<html>{}</html>", f"moriio_steps_total {'9' * 400}\n"])
def test_a_page_that_is_none_of_prometheus_is_a_finding(text: str) -> None:
    [found] = looked_at(text)
    assert found.name == "server-silent"
    assert "text format" in str(found.where[1])


def test_a_server_without_our_series_is_unobserved_and_told_why() -> None:
    [found] = looked_at(f"vllm:num_requests_running{{{LABELS}}} 0\n")
    assert found.name == "server-unobserved"
    assert "vLLM's own connector runs there" in found.why
    [found] = looked_at(f"vllm:num_requests_running{{{LABELS}}} 0\n", engine(config()))
    assert "not the one this server was started with" in found.why
    [found] = looked_at("process_cpu_seconds_total 3\n")
    assert "--disable-log-stats" in found.why


def test_a_hook_that_is_not_in_force_is_critical() -> None:
    found = only("hook-missing", looked_at(HEALTHY.replace('hook="x"} 1', 'hook="x"} 0')))
    assert found.severity is Severity.CRITICAL
    assert found.where[0].value == "x"


def test_unprotected_full_graphs_of_a_running_server_are_critical() -> None:
    page = HEALTHY.replace(
        f"full_graph_protected{{{LABELS}}} 1", f"full_graph_protected{{{LABELS}}} 0"
    )
    found = only("full-graphs-unprotected", looked_at(page))
    assert {str(place) for place in found.where} > {"moriio_config_info barrier = auto"}


def test_a_barrier_that_is_off_is_critical() -> None:
    assert "barrier-off" in names(looked_at(HEALTHY.replace('"auto"', '"off"')))


@pytest.mark.parametrize("counted", counters.COUNTED, ids=lambda counted: counted.metric)
def test_each_counter_above_0_is_told_with_its_runbook(counted: counters.Counted) -> None:
    inside = "".join(f',{name}="{value}"' for name, value in counted.labels.items())
    page = INFO + f"moriio_{counted.metric}{{{LABELS}{inside}}} 2\n"
    [found] = looked_at(page)
    assert "2 since the server started" in found.what
    assert found.severity is counted.severity
    assert found.do
    assert found.see == (runbook(counted.alert),)
    assert (ROOT / found.see[0]).exists()
    assert set(counted.labels) <= set(CATALOG[counted.metric].labels)


@pytest.mark.parametrize("metric", sorted(counters.CAUGHT))
def test_what_a_guard_keeps_from_being_answered_is_a_ticket(metric: str) -> None:
    page = INFO.replace('"report"', '"fail"') + f"moriio_{metric}{{{LABELS}}} 2\n"
    assert [found.severity for found in looked_at(page)] == [Severity.WARNING]


def test_what_a_guard_dealt_with_is_not_told() -> None:
    page = INFO + f'moriio_exposed_requests_total{{{LABELS},action="recomputed"}} 2\n'
    assert looked_at(page) == []


def test_requests_and_no_read_mean_a_router_that_does_not_do_read() -> None:
    page = HEALTHY.replace(f"posted_total{{{LABELS}}} 12", f"posted_total{{{LABELS}}} 0")
    assert only("router-does-not-read", looked_at(page)).severity is Severity.CRITICAL
    producer = page.replace("kv_consumer", "kv_producer")
    assert looked_at(producer) == []


# A real Prometheus.

Scrape = Iterator[tuple[server.Server, prometheus.Stored]]


def scraped(folder: Path, **job: Any) -> list[Finding]:
    """What is said of a Prometheus with this job, after its first scrape of a server."""
    with serving(metrics=HEALTHY, version=VERSION) as url:
        jobs = [
            {
                "job_name": "vllm",
                "scrape_interval": "1s",
                "scrape_timeout": "1s",
                "static_configs": [{"targets": [url.removeprefix("http://")]}],
                **job,
            }
        ]
        with monitoring.prometheus(
            folder, {"scrape_configs": jobs if job != {"none": 1} else []}
        ) as at:
            if job != {"none": 1}:
                monitoring.eventually(lambda: monitoring.query(at, 'up{job="vllm"}'), "a scrape")
            found = server.ask(Address(url))
            return list(scrape.check(prometheus.ask(Address(at), scrape.wanted([found])), [found]))


def relabelled(**rule: str) -> dict[str, Any]:
    return {"metric_relabel_configs": [{"source_labels": ["__name__"], **rule}]}


@needs(monitoring.PROMETHEUS)
def test_a_prometheus_that_has_it_all_is_not_told(tmp_path: Path) -> None:
    assert scraped(tmp_path) == []


@needs(monitoring.PROMETHEUS)
def test_a_server_that_nobody_scrapes_is_told(tmp_path: Path) -> None:
    findings = scraped(tmp_path, none=1)
    assert "not scraped" in only("not-scraped", findings).what
    assert only("no-target-by-address", findings).severity is Severity.NOTE


@needs(monitoring.PROMETHEUS)
def test_our_series_dropped_by_name_are_told(tmp_path: Path) -> None:
    [found] = scraped(tmp_path, **relabelled(regex="moriio_.*", action="drop"))
    assert found.what == "Prometheus has vLLM's series and none of ours"
    assert "dropped by name" in found.why


@needs(monitoring.PROMETHEUS)
def test_some_of_them_dropped_are_named(tmp_path: Path) -> None:
    [found] = scraped(tmp_path, **relabelled(regex="moriio_reads_posted.*", action="drop"))
    assert found.where[0].value == "moriio_reads_posted_total"


@needs(monitoring.PROMETHEUS)
def test_names_relabelled_away_are_told_with_what_they_are_called_now(tmp_path: Path) -> None:
    rename = relabelled(
        regex="moriio_(.*)", action="replace", target_label="__name__", replacement="acme_kv_$1"
    )
    [found] = scraped(tmp_path, **rename)
    assert found.name == "names-relabelled"
    assert "moriio_steps_total = acme_kv_steps_total" in {str(place) for place in found.where}


@needs(monitoring.PROMETHEUS)
def test_a_scrape_that_fails_is_told_with_its_error(tmp_path: Path) -> None:
    found = only("scrape-fails", scraped(tmp_path, metrics_path="/nowhere"))
    assert "404" in found.where[0].value


def test_a_prometheus_that_does_not_answer_is_a_finding() -> None:
    with serving() as url:
        stored = prometheus.ask(Address(url), ["moriio_steps_total"])
    assert names(list(scrape.check(stored, []))) == {"prometheus-silent"}


def test_the_reason_a_prometheus_gives_is_told_without_the_query() -> None:
    with serving(api_v1_query=(503, '{"error": "query timed out"}')) as url:
        stored = prometheus.ask(Address(url), ["moriio_steps_total"])
    assert stored.trouble == f'{url}/api/v1/query answers HTTP 503: {{"error": "query timed out"}}'


def test_a_page_of_html_is_no_reason() -> None:
    with serving(api_v1_query=(502, "<html>gateway</html>")) as url:
        assert prometheus.ask(Address(url), ["moriio_steps_total"]).trouble.endswith(
            "answers HTTP 502"
        )


def test_without_targets_as_in_mimir_the_series_are_looked_at_all_the_same() -> None:
    answer = '{"status": "success", "data": {"result": []}}'
    with serving(api_v1_query=answer) as url:
        stored = prometheus.ask(Address(url), scrape.wanted([]))
    assert stored.targets is None
    assert names(list(scrape.check(stored, []))) == {"not-scraped"}
