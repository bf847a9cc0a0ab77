"""A real OTLP collector between a pair and a sink of ours: rotel, from its wheel."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from moriio_observed.demo.pair import Fleet
from moriio_observed.demo.ports import HOST
from moriio_observed.demo.process import Process


def start(fleet: Fleet, sink: str, log: Path) -> str:
    """Start one that passes everything on by gRPC; returns the URL that takes gRPC.

    Args:
        fleet: Ends it.
        sink: Where it sends to.
        log: Where its output goes.
    """
    grpc, http = fleet.port(), fleet.port()
    spec = importlib.util.find_spec("rotel")
    assert spec is not None
    assert spec.origin is not None
    agent = Path(spec.origin).with_name("rotel-agent")
    agent.chmod(0o755)
    fleet.add(
        Process(
            "rotel",
            [
                str(agent),
                "start",
                *("--otlp-grpc-endpoint", f"{HOST}:{grpc}"),
                *("--otlp-http-endpoint", f"{HOST}:{http}"),
                *("--exporter", "otlp", "--otlp-exporter-protocol", "grpc"),
                *("--otlp-exporter-endpoint", sink, "--batch-timeout", "200ms"),
            ],
            os.environ,
            log,
            "",
        )
    )
    return f"http://{HOST}:{grpc}"
