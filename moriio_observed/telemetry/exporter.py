"""A Prometheus endpoint of a rank's own, with exemplars, where vLLM's /metrics is not scraped."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Mapping

from prometheus_client import CollectorRegistry, MetricsHandler

from moriio_observed.config import Exporter
from moriio_observed.log import get_logger
from moriio_observed.telemetry.discovery import DiscoveryFile, target
from moriio_observed.telemetry.page import Page
from moriio_observed.telemetry.scrape_server import CLIENT_TIMEOUT_S, ScrapeServer

logger = get_logger(__name__)


class OwnEndpoint:
    """Serves one page over HTTP and tells Prometheus where.

    Nothing of it raises into serving: what goes wrong is said once in the log and counted.

    Args:
        page: What to serve.
        settings: What the user set.
        rank: This rank among all of the engine. With a fixed port it listens that far above.
        target_labels: What Prometheus shall put on this target's series, besides `job` and
            `instance`. Not a label that a series has by itself: Prometheus would rename that one.
    """

    def __init__(
        self,
        page: Page,
        settings: Exporter,
        *,
        rank: int = 0,
        target_labels: Mapping[str, str] | None = None,
    ) -> None:
        self._page = page
        self._settings = settings
        self._port = settings.port and settings.port + rank
        self._rank = rank
        self._target_labels = target_labels or {}
        self._discovery = DiscoveryFile(settings.discovery_dir)
        self._server: ScrapeServer | None = None
        self._lock = threading.Lock()
        self._errors = 0
        self._said = False
        _endpoints.add(self)

    @property
    def address(self) -> str | None:
        """Host and port to scrape, None while it does not serve."""
        if self._server is None:
            return None
        host, port = self._server.server_address[:2]
        return target(str(host), int(port))

    def start(self) -> None:
        """Serve from now on; nothing the second time."""
        if self._server is None and self._listen():
            self._publish()

    def shutdown(self) -> None:
        """Free the port and remove the file; nothing the second time, or in a forked child."""
        server, self._server = self._server, None
        if server is not None:
            # Before the port is free: what is in the file can always be scraped.
            self._discovery.remove()
            server.stop()

    def take_errors(self) -> int:
        """Return how many errors there were since the last call, from one thread only."""
        with self._lock:
            errors, self._errors = self._errors, 0
        return errors

    def _listen(self) -> bool:
        try:
            server = ScrapeServer(
                self._settings.host, self._port, _handler(self._page), self._page_failed
            )
            server.start()
        except Exception as error:  # noqa: BLE001 - serving requests matters more
            self._fail(
                "moriio_observed cannot serve rank %d's own Prometheus endpoint on host %s, port "
                "%d: %s. Requests are served without it; see exporter.host and exporter.port.",
                self._rank,
                self._settings.host,
                self._port,
                error,
            )
            return False
        self._server = server
        logger.info(
            "moriio_observed serves rank %d's own Prometheus endpoint at http://%s/metrics",
            self._rank,
            self.address,
        )
        return True

    def _publish(self) -> None:
        try:
            path = self._discovery.write(str(self.address), self._target_labels)
        except Exception as error:  # noqa: BLE001 - the endpoint serves without it
            self._fail(
                "moriio_observed cannot tell Prometheus by a file that there is an endpoint at %s: "
                "%s; see exporter.discovery_dir.",
                self.address,
                error,
            )
            return
        logger.info(
            "moriio_observed wrote %s; in Prometheus, file_sd_configs of %s finds every rank",
            path,
            self._discovery.pattern,
        )

    def _page_failed(self, error: BaseException) -> None:
        with self._lock:
            said, self._said = self._said, True
        if said:
            self._count()
        else:
            self._fail("moriio_observed could not answer a scrape: %s", error, exc_info=error)

    def _fail(self, message: str, *args: object, exc_info: BaseException | None = None) -> None:
        self._count()
        logger.error(message, *args, exc_info=exc_info)

    def _count(self) -> None:
        with self._lock:
            self._errors += 1

    def _after_fork(self) -> None:
        """In a forked child the threads are gone, and port and file are the parent's."""
        self._lock = threading.Lock()
        self._discovery.let_go()
        server, self._server = self._server, None
        if server is not None:
            server.let_go()


def _handler(page: Page) -> type[MetricsHandler]:
    registry = CollectorRegistry(auto_describe=True)
    registry.register(page)

    class Handler(MetricsHandler):
        timeout = CLIENT_TIMEOUT_S

    Handler.registry = registry
    return Handler


_endpoints: weakref.WeakSet[OwnEndpoint] = weakref.WeakSet()


def _forget_in_child() -> None:
    for endpoint in _endpoints:
        endpoint._after_fork()


os.register_at_fork(after_in_child=_forget_in_child)
