"""Debian's Prometheus, when it is there, scraping the servers of a run."""

import json
import os
import shutil
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path

from moriio_observed.demo.ports import HOST
from moriio_observed.demo.process import Process
from moriio_observed.demo.server import Ports

QUERY = "sum by (job, cause, certainty) (increase(moriio_unprotected_steps_total[5m]))"
"""What to look at first."""


class Prometheus(Process):
    """A Prometheus that scrapes every second, started on creation.

    Args:
        executable: Where it is, from `find`.
        build: The folder its configuration, data and log go into.
        port: Where it listens.
        servers: What to scrape, by job name.
    """

    def __init__(
        self, executable: str, build: Path, port: int, servers: Mapping[str, Ports]
    ) -> None:
        folder = build / "prometheus"
        # Old data would show the ports of earlier runs.
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        config = folder / "prometheus.yml"
        config.write_text(json.dumps(configuration(servers)))
        self.url = f"http://{HOST}:{port}"
        super().__init__(
            "prometheus",
            [
                executable,
                f"--config.file={config}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={HOST}:{port}",
                "--enable-feature=exemplar-storage",
            ],
            os.environ,
            folder / "prometheus.log",
            f"{self.url}/-/ready",
        )

    def graph_url(self, query: str = QUERY) -> str:
        """A page of Prometheus that draws a query."""
        return f"{self.url}/graph?" + urllib.parse.urlencode({"g0.expr": query, "g0.tab": 0})


def find() -> str | None:
    """Where Prometheus is installed, None when it is not."""
    return shutil.which("prometheus")


def configuration(servers: Mapping[str, Ports]) -> dict[str, object]:
    """Prometheus' configuration: one job per server (JSON is YAML)."""
    jobs: Sequence[dict[str, object]] = [
        {"job_name": job, "static_configs": [{"targets": [f"{HOST}:{ports.http}"]}]}
        for job, ports in servers.items()
    ]
    return {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
        "scrape_configs": jobs,
    }
