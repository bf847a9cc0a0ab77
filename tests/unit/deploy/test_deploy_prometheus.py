"""The configuration for a Prometheus on bare metal, as promtool reads it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from tests.tools import needs
from tests.unit.deploy.manifests import DEPLOY, KUBERNETES, ROOT, examples

CONFIGURATION = DEPLOY / "prometheus" / "prometheus.yml"
SLOWEST_SCRAPE_S = 30
"""What MoriioStepStalled can do with, says alerts/README.md."""


def promtool(file: Path) -> str:
    done = subprocess.run(
        ["promtool", "check", "config", file], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs("promtool")
def test_promtool_takes_the_configuration_and_the_rules_beside_it() -> None:
    said = promtool(CONFIGURATION)
    assert "SUCCESS: 1 rule files found" in said
    assert "rules found" in said


@needs("promtool")
def test_promtool_takes_the_example_that_undoes_relabelling(tmp_path: Path) -> None:
    [example] = [each for each in examples(DEPLOY / "README.md") if "scrape_configs" in each]
    [names, colon] = example["scrape_configs"][0]["metric_relabel_configs"]
    assert "moriio_" in names["regex"]
    assert colon["replacement"] == "vllm:$1"
    file = tmp_path / "prometheus.yml"
    file.write_text(yaml.safe_dump(example))
    promtool(file)


def test_every_way_to_scrape_is_as_frequent_as_the_alerts_want() -> None:
    bare = yaml.safe_load(CONFIGURATION.read_text())["global"]["scrape_interval"]
    collector = yaml.safe_load((DEPLOY / "collector" / "otelcol.yaml").read_text())
    scrapes = collector["receivers"]["prometheus"]["config"]["scrape_configs"]
    pods = yaml.safe_load((KUBERNETES / "podmonitor.yaml").read_text())
    services = yaml.safe_load((KUBERNETES / "servicemonitor" / "servicemonitor.yaml").read_text())
    endpoints = [*pods["spec"]["podMetricsEndpoints"], *services["spec"]["endpoints"]]
    intervals = {
        bare,
        *(each["scrape_interval"] for each in scrapes),
        *(each["interval"] for each in endpoints),
    }
    assert intervals == {"15s"}
    assert int(bare.removesuffix("s")) <= SLOWEST_SCRAPE_S


@pytest.mark.parametrize("page", [DEPLOY / "README.md", ROOT / "alerts" / "README.md"])
def test_values_for_several_clusters_tell_engines_fleets_and_canaries_apart(page: Path) -> None:
    ours = yaml.safe_load((ROOT / "alerts" / "values.yaml").read_text())["labels"]
    [example] = [each["labels"] for each in examples(page) if "labels" in each]
    assert example == {name: f"cluster, {labels}" for name, labels in ours.items()}
