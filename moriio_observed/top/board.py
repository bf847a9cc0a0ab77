"""The servers that are watched, and one picture of them after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from moriio_observed.doctor.exposition import NotMetricsError
from moriio_observed.doctor.read import Address, Unreachable, page
from moriio_observed.top import alerts
from moriio_observed.top.alerts import Alerts
from moriio_observed.top.ask import Asker
from moriio_observed.top.history import History
from moriio_observed.top.picture import Picture, picture
from moriio_observed.top.snapshot import Snapshot, snapshot


class Board:
    """What is known of some servers, asked for all at once.

    Args:
        servers: Their addresses.
        prometheus: The address of a Prometheus that knows our alerts; None for none.
        timeout_s: A server that takes longer is said not to answer, in seconds.
        clock: Seconds that only grow.
    """

    def __init__(
        self,
        servers: Sequence[Address],
        prometheus: Address | None,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._timeout_s = timeout_s
        self._histories = {server.url: History(server.url) for server in servers}
        self._askers = {
            server.url: Asker(partial(_ask, server, timeout_s, clock), clock) for server in servers
        }
        self._alerts = Alerts(prometheus.url) if prometheus else None
        self._alerts_asker = (
            Asker(partial(alerts.ask, prometheus, timeout_s), clock) if prometheus else None
        )

        self._everybody: list[Asker[Any]] = [*self._askers.values()]
        if self._alerts_asker:
            self._everybody.append(self._alerts_asker)

    def begin(self) -> None:
        """Ask everybody who does not owe an answer."""
        for asker in self._everybody:
            asker.begin()

    @property
    def settled(self) -> bool:
        """Whether everybody has answered, or taken too long."""
        return all(not asker.busy or self._late(asker) for asker in self._everybody)

    def collect(self) -> bool:
        """Take the answers that have come.

        Returns:
            Whether there is anything new to show.
        """
        news = [self._collect(url, asker) for url, asker in self._askers.items()]
        return any([*news, self._collect_alerts()])

    def picture(self) -> Picture:
        """What is to be shown now."""
        at = datetime.now().astimezone()
        return picture(self._histories.values(), self._clock(), at, self._alerts)

    def _collect(self, url: str, asker: Asker[Snapshot | str]) -> bool:
        history = self._histories[url]
        answer, late = asker.answer(), self._late(asker)
        if isinstance(answer, Snapshot):
            self._histories[url] = history.saw(answer)
        elif answer or late:
            self._histories[url] = history.missed(answer or late or "")
        # That one is still late is no news until it reads differently.
        return bool(answer) or self._histories[url].trouble != history.trouble

    def _collect_alerts(self) -> bool:
        if self._alerts is None or self._alerts_asker is None:
            return False
        known, late = self._alerts, self._late(self._alerts_asker)
        if late:
            self._alerts = Alerts(known.url, trouble=late)
        self._alerts = self._alerts_asker.answer() or self._alerts
        return self._alerts != known

    def _late(self, asker: Asker[Any]) -> str | None:
        if asker.waited_s < self._timeout_s:
            return None
        return f"has not answered for {asker.waited_s:.0f} s"


def _ask(server: Address, timeout_s: float, clock: Callable[[], float]) -> Snapshot | str:
    """What a server says; a text where it does not."""
    try:
        return snapshot(page(server, "/metrics", timeout_s), clock())
    except Unreachable as error:
        return str(error).removeprefix(f"{server.url}/metrics ")
    except NotMetricsError as error:
        return f"answers /metrics with something else than Prometheus' text format: {error}"
