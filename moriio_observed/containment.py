"""Keeping our own errors out of serving."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from moriio_observed.log import get_logger
from moriio_observed.telemetry.aggregate import Aggregate

logger = get_logger(__name__)


class Containment:
    """Calls our own code so that none of its errors reaches vLLM: counted, said once, given up.

    Args:
        aggregate: Where errors are counted.
        consequence: What holds once our code has failed, for the log.
        give_up: Called once, when it has.

    Attributes:
        broken: Whether our code has failed; it is not called again.
        consequence: As given.
    """

    def __init__(
        self, aggregate: Aggregate, consequence: str, give_up: Callable[[], None] | None = None
    ) -> None:
        self.broken = False
        self._aggregate = aggregate
        self.consequence = consequence
        self._give_up = give_up

    def tell(self, event: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call `event` unless our code has failed before; None then, and if it fails now."""
        if self.broken:
            return None
        try:
            return event(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  (whatever it is, serving goes on)
            self.step_back(error)
            return None

    def step_back(self, error: Exception) -> None:
        """Give our code up."""
        self._aggregate.counter("telemetry_errors_total", signal="metrics").inc()
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
