import json
import shutil
import subprocess

import pytest

from moriio_observed.demo.prometheus import QUERY, configuration
from moriio_observed.demo.server import Ports

SERVERS = {"prefill": Ports(1, 2, 3), "decode": Ports(4, 5, 6)}


def test_each_server_is_a_job_scraped_every_second():
    config = configuration(SERVERS)
    jobs = {job["job_name"]: job["static_configs"] for job in config["scrape_configs"]}
    assert config["global"]["scrape_interval"] == "1s"
    assert jobs == {
        "prefill": [{"targets": ["127.0.0.1:1"]}],
        "decode": [{"targets": ["127.0.0.1:4"]}],
    }


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_prometheus_accepts_the_configuration(tmp_path):
    path = tmp_path / "prometheus.yml"
    path.write_text(json.dumps(configuration(SERVERS)))
    subprocess.run(["promtool", "check", "config", str(path)], check=True, capture_output=True)


def test_the_first_thing_to_look_at_is_the_headline_metric():
    assert "moriio_unprotected_steps_total" in QUERY
