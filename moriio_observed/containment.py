"""Keeping our own errors out of serving."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from moriio_observed.log import get_logger
from moriio_observed.telemetry.aggregate import Aggregate

__all__ = ["Containment", "contained"]

logger = get_logger(__name__)

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Containment:
    """Calls our own code so that none of its errors reaches vLLM: counted, said once, given up.

    Args:
        aggregate: Where errors are counted.
        consequence: What holds once our code has failed, for the log.
        give_up: Called once, when it has.
        signal: Under which signal its errors are counted.

    Attributes:
        broken: Whether our code has failed; it is not called again.
        consequence: As given.
    """

    def __init__(
        self,
        aggregate: Aggregate,
        consequence: str,
        give_up: Callable[[], None] | None = None,
        *,
        signal: str = "metrics",
    ) -> None:
        self.broken = False
        self._aggregate = aggregate
        self.consequence = consequence
        self._give_up = give_up
        self._signal = signal

    def tell(self, event: Callable[..., Any], *args: Any) -> Any:
        """Call `event` unless our code has failed before; None then, and if it fails now."""
        if self.broken:
            return None
        try:
            return event(*args)
        except Exception as error:  # noqa: BLE001  (whatever it is, serving goes on)
            self.step_back(error)
            return None

    def step_back(self, error: Exception) -> None:
        """Give our code up."""
        self._aggregate.counter("telemetry_errors_total", signal=self._signal).inc()
        if self.broken:
            return
        self.broken = True
        logger.error(
            "moriio_observed failed and steps back until the engine restarts: %s",
            self.consequence,
            exc_info=error,
        )
        if self._give_up is not None:
            self._give_up()


class _Contained(Protocol):
    _containment: Containment


_Self = TypeVar("_Self", bound=_Contained)


def contained(
    method: Callable[Concatenate[_Self, _P], _R],
) -> Callable[Concatenate[_Self, _P], _R | None]:
    """Keep an error of this method out of serving, and out of what is counted beside it."""

    @functools.wraps(method)
    def told(self: _Self, /, *args: _P.args, **kwargs: _P.kwargs) -> _R | None:
        # As `Containment.tell`, without one more call for each layer of a step.
        if self._containment.broken:
            return None
        try:
            return method(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001  (whatever it is, serving goes on)
            self._containment.step_back(error)
            return None

    return told
