"""What the rules take for granted is so on a real pair."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from moriio_observed.alerting.folder import Folder
from moriio_observed.alerting.queries import Queries
from moriio_observed.alerting.rules import render_groups, rules_of
from moriio_observed.demo.metrics import Scrape, parse, scrape
from moriio_observed.demo.pair import Pair
from moriio_observed.demo.workload import prompts
from tests.canary.page import fresh_page
from tests.monitoring import eventually

GetPair = Callable[..., Pair]

FOLDER = Folder(Path(__file__).parents[2] / "alerts")
TARGET = frozenset({"job", "instance"})
"""What Prometheus adds."""
WITH_FULL_GRAPHS = {"moriio_full_graph_protected"}
"""Absent where no FULL graph is configured, and a CPU has none."""
LONG = 1500


@pytest.fixture(scope="module")
def queries() -> Queries:
    rules = list(rules_of(render_groups(FOLDER.sources(), FOLDER.values())))
    return Queries(TARGET, {rule["record"]: rule["expr"] for rule in rules if "record" in rule})


def test_every_metric_and_label_in_a_rule_is_on_a_real_pairs_pages_or_a_canarys(
    pair: GetPair, queries: Queries
) -> None:
    running = pair()
    running.client.ask(prompts(31, 2))
    engines = [scrape(server.ports.url) for server in (running.prefill, running.decode)]
    pages = [*engines, parse(fresh_page())]
    exposed = {
        (name, frozenset(label for label, _ in labels))
        for page in pages
        for name, labels in page.samples
    }
    rules = rules_of(render_groups(FOLDER.sources(), FOLDER.values()))
    asked = {name for rule in rules for name in queries.metrics(rule["expr"])}
    wanted = {
        (name, queries.labels(name) - TARGET)
        for name in asked - set(queries.recorded) - WITH_FULL_GRAPHS
    }
    assert queries.problems == []
    assert wanted - exposed == set()


def test_an_engine_whose_client_has_left_says_that_nothing_runs(pair: GetPair) -> None:
    """Or MoriioStepStalled would take an idle engine for one that is held up."""
    running = pair()
    held = running.client.hold(prompts(32, 1))
    before = scrape(running.decode.ports.url)
    [answer] = replace(running.client, patience_s=1.0).resume(held, max_tokens=LONG)
    assert answer.error

    def left() -> Scrape | None:
        page = scrape(running.decode.ports.url)
        began = page.since(before).total("vllm:generation_tokens_total") > 0
        return page if began and page.total("vllm:num_requests_running") == 0 else None

    after = eventually(left, "nothing runs").since(before)
    assert after.total("vllm:generation_tokens_total") < LONG
