"""From a wrong answer to an alert: the canary as a user starts it, the shipped rules, Prometheus.

What is probed is a server that can be told to answer wrong. Scrapes and evaluations come every
second, windows are as shipped.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from moriio_observed.alerting.folder import Folder
from moriio_observed.alerting.formats import plain
from moriio_observed.alerting.rules import render_groups
from moriio_observed.alerting.yaml_text import to_yaml
from moriio_observed.canary.golden import write
from moriio_observed.demo.ports import HOST, free_ports
from moriio_observed.demo.process import Process, wait_ready
from tests.monitoring import PROMETHEUS, WAIT_S, eventually, prometheus, query
from tests.tools import needs
from tests.unit.canary.known import golden
from tests.unit.canary.model_server import ModelServer, right, salad, serving

pytestmark = needs(PROMETHEUS)

FOLDER = Folder(Path(__file__).parents[2] / "alerts")
OFTEN = "1s"
TARGET = "router.example:8000"
PROGRAM = "import sys; from moriio_observed.cli import main; sys.exit(main())"


class Watched:
    """A canary of a server, and a Prometheus of the canary once it is asked for."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.server: ModelServer = stack.enter_context(serving())
        self._folder, self._stack = folder, stack
        self._address = f"{HOST}:{next(free_ports())}"

    def start_canary(self, interval_s: float) -> None:
        """Start it; its first round begins at once."""
        answers = self._folder / "golden.json"
        write(golden(), answers)
        words = {
            "url": self.server.url,
            "golden": answers,
            "interval": interval_s,
            "target": TARGET,
            "concurrency": "1,4",
            "host": HOST,
            "port": self._address.partition(":")[2],
        }
        options = [f"--{name}={value}" for name, value in words.items()]
        process = Process(
            "canary",
            [sys.executable, "-c", PROGRAM, "canary", "run", *options],
            os.environ,
            self._folder / "canary.log",
            f"http://{self._address}/metrics",
        )
        self._stack.callback(process.stop)
        wait_ready([process], WAIT_S)

    def start_prometheus(self) -> str:
        """Start it; gives its address."""
        groups = render_groups(FOLDER.sources(), FOLDER.values())
        rules = self._folder / "rules.yaml"
        rules.write_text(to_yaml(plain([{**group, "interval": OFTEN} for group in groups], {})))
        scraped: Mapping[str, Any] = {
            "job_name": "moriio-canary",
            "static_configs": [{"targets": [self._address]}],
        }
        configuration = {
            "global": {"scrape_interval": OFTEN, "evaluation_interval": OFTEN},
            "rule_files": [str(rules)],
            "scrape_configs": [scraped],
        }
        return self._stack.enter_context(prometheus(self._folder / "prometheus", configuration))


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    with ExitStack() as stack:
        yield Watched(tmp_path, stack)


def firing(url: str) -> set[tuple[str, ...]]:
    """What fires: name, target, result, how many were asked at once."""
    told = ("alertname", "target", "result", "concurrency")
    alerts = query(url, 'ALERTS{alertstate="firing"}')
    return {tuple(alert["metric"].get(label, "") for label in told) for alert in alerts}


def failing(result: str, *concurrencies: int) -> set[tuple[str, ...]]:
    return {("MoriioCanaryFailing", TARGET, result, str(count)) for count in concurrencies}


def test_it_is_quiet_while_answers_are_right_and_fires_once_they_are_not(watched: Watched) -> None:
    watched.start_canary(interval_s=0.5)
    url = watched.start_prometheus()
    rounds = f'canary:moriio_canary_rounds:increase5m{{result="right", target="{TARGET}"}} > 1'
    eventually(lambda: query(url, rounds), "some right rounds seen")
    assert firing(url) == set()
    watched.server.answer = salad
    wanted = failing("diverged", 1, 4)
    eventually(lambda: firing(url) == wanted, "the alert for both steps of the sweep")


def test_it_fires_though_the_only_wrong_round_was_over_before_the_first_scrape(
    watched: Watched,
) -> None:
    watched.server.answer = salad
    watched.start_canary(interval_s=3600)
    eventually(lambda: len(watched.server.asked) == 5, "the whole first round asked")
    url = watched.start_prometheus()
    eventually(lambda: firing(url) == failing("diverged", 1, 4), "the alert")


def test_it_says_so_when_prompts_get_each_others_answers(watched: Watched) -> None:
    prompts = [known.prompt for known in golden().known]
    others = dict(zip(prompts, [*prompts[1:], prompts[0]], strict=True))
    watched.server.answer = lambda prompt: right(others[prompt])
    watched.start_canary(interval_s=3600)
    url = watched.start_prometheus()
    eventually(lambda: firing(url) == failing("swapped", 1, 4), "the alert")
