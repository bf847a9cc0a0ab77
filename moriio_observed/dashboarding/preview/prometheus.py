"""Asks a Prometheus, or what answers like one."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from moriio_observed.dashboarding.errors import DashboardsError

TIMEOUT_S = 30.0
_NOT_ITS_FORM = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)

Series = dict[str, Any]
"""One series of an answer: its labels as `metric`, and `value` or `values`."""


class RefusedError(Exception):
    """Prometheus does not take a query; the message is what it says."""


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A Prometheus.

    Attributes:
        url: Where it answers, without `/api`.
    """

    url: str

    def now(self, expr: str, moment: float) -> list[Series]:
        """Return what a query says at one moment, in seconds since 1970.

        Raises:
            DashboardsError: Prometheus does not answer.
            RefusedError: It does not take the query.
        """
        return self._ask("query", _instant, query=expr, time=moment)

    def over_time(self, expr: str, times: Sequence[float]) -> list[Series]:
        """Return what a query says at evenly spaced moments.

        Raises:
            DashboardsError: Prometheus does not answer.
            RefusedError: It does not take the query.
        """
        step = times[1] - times[0] if len(times) > 1 else 1
        return self._ask(
            "query_range", _range, query=expr, start=times[0], end=times[-1], step=step
        )

    def _ask(self, what: str, read: Callable[[Any], Series], **words: object) -> list[Series]:
        address = f"{self.url.rstrip('/')}/api/v1/{what}"
        if not address.startswith(("http://", "https://")):
            raise DashboardsError(f"{self.url!r} is no address: write it like http://HOST:9090")
        try:
            with urllib.request.urlopen(  # noqa: S310 - http or https, see above
                address, urllib.parse.urlencode(words).encode(), timeout=TIMEOUT_S
            ) as answered:
                found = [read(one) for one in json.load(answered)["data"]["result"]]
        except urllib.error.HTTPError as error:
            raise self._refused(error) from None
        except (OSError, http.client.HTTPException) as error:
            raise DashboardsError(f"no Prometheus answers at {self.url}: {error}") from None
        except _NOT_ITS_FORM:
            raise DashboardsError(f"what answers at {self.url} is no Prometheus") from None
        return found

    def _refused(self, error: urllib.error.HTTPError) -> Exception:
        """What an error that comes as HTTP means: Prometheus gives its reason as JSON."""
        try:
            return RefusedError(str(json.load(error)["error"]))
        except _NOT_ITS_FORM:
            return DashboardsError(f"no Prometheus answers at {self.url}: HTTP {error.code}")


# What follows raises one of `_NOT_ITS_FORM` where something is not as Prometheus writes it.


def _instant(said: Any) -> Series:
    return {"metric": _labels(said), "value": _point(said["value"])}


def _range(said: Any) -> Series:
    return {"metric": _labels(said), "values": [_point(one) for one in said["values"]]}


def _labels(said: Any) -> dict[str, str]:
    return {str(name): str(value) for name, value in said["metric"].items()}


def _point(said: Any) -> tuple[float, str]:
    moment, number = said
    float(number)
    datetime.fromtimestamp(moment, UTC)  # which not every number is
    return float(moment), str(number)
