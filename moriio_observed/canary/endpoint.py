"""Where Prometheus scrapes the canary."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, start_http_server

from moriio_observed.canary.errors import CanaryError
from moriio_observed.canary.metrics import CanaryMetrics


@contextmanager
def serving(metrics: CanaryMetrics, host: str, port: int) -> Iterator[int]:
    """Serve the metrics at `/metrics` until the block ends; give the port.

    Args:
        metrics: What to serve.
        host: The address to listen on.
        port: The port; 0: any free one.

    Raises:
        CanaryError: It cannot listen there.
    """
    registry = CollectorRegistry()
    registry.register(metrics)
    try:
        server, thread = start_http_server(port, host, registry)
    except (OSError, OverflowError, UnicodeError) as error:
        raise CanaryError(f"cannot listen on --host {host} --port {port}: {error}") from None
    try:
        yield int(server.server_port)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
