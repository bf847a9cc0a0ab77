"""How much an engine has to do, by its own word."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from moriio_observed.canary.at_once import at_once
from moriio_observed.canary.http import Http
from moriio_observed.doctor.exposition import NotMetricsError, parse

WAITING = "vllm:num_requests_waiting"


def waiting(http: Http, pages: Sequence[str]) -> float:
    """The most requests that wait in one of these engines; one that does not tell counts as none.

    Args:
        http: Asks them.
        pages: Their /metrics.
    """
    # At the same time: engines that do not answer take their time each.
    told = at_once([partial(http.page, page) for page in pages])
    return max(map(_waiting, told), default=0.0)


def _waiting(page: str | None) -> float:
    try:
        return parse(page or "").total(WAITING)
    except NotMetricsError:
        return 0.0
