"""A running vLLM server: what its /metrics and /version say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from moriio_observed.doctor.exposition import NotMetricsError, Page, parse
from moriio_observed.doctor.read import Address, Unreachable, json_page, page

TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Server:
    """A server that was asked.

    Attributes:
        url: Its address.
        metrics: Its /metrics; None if it could not be had.
        version: Its vLLM; None if it does not say.
        trouble: Why something could not be had; empty if nothing.
    """

    url: str
    metrics: Page | None
    version: str | None = None
    trouble: str = ""

    @property
    def page(self) -> Page:
        """Its /metrics; without samples if it could not be had."""
        return self.metrics or Page(())

    @property
    def info(self) -> Mapping[str, str]:
        """The labels of our ``config_info``; empty where there is none."""
        return next((labels for labels, _ in self.page.of("moriio_config_info")), {})


def ask(address: Address) -> Server:
    """Ask a server."""
    url = address.url
    try:
        metrics = parse(page(address, "/metrics", TIMEOUT_S))
    except (Unreachable, NotMetricsError) as error:
        foreign = f"{url}/metrics is not in Prometheus' text format: {error}"
        return Server(url, None, trouble=foreign if isinstance(error, ValueError) else str(error))
    known = Server(url, metrics).info.get("vllm_version")
    try:
        version = json_page(address, "/version", TIMEOUT_S).get("version", known)
    except Unreachable:
        version = known  # another front end: /metrics is what counts
    return Server(url, metrics, version if isinstance(version, str) else None)
