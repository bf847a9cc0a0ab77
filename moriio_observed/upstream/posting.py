"""What was posted for one request, gathered while upstream posts it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from moriio_observed.upstream.facts import layer_index


@dataclass(slots=True)
class Posting:
    """The reads that were posted for one request.

    Attributes:
        started_at: When upstream began, by the monotonic clock, seconds.
        posted: Of each read its status, and what it moves in bytes: one number, or one for each
            block. What is held here keeps its identity to itself.
    """

    started_at: float = 0.0
    posted: list[tuple[Any, Any]] = field(default_factory=list)

    @property
    def rejected(self) -> int:
        """How many of them found the send queue full."""
        failed = [status for status, _ in self.posted if status.Failed()]
        return sum("SQ full" in (status.Message() or "") for status in failed)

    def reads_in(self, by_layer: Mapping[str, Any]) -> tuple[list[tuple[int, str, Any]], int]:
        """Those of upstream's statuses that were posted now, and move anything.

        Args:
            by_layer: A request's statuses as upstream keeps them.

        Returns:
            Of each the layer's index and name, and the status; and the bytes of all.

        Raises:
            RuntimeError: A read that moves anything and has not failed is not among upstream's:
                then what is found there is not all.
        """
        sizes = {
            id(status): size if isinstance(size, int) else sum(size) for status, size in self.posted
        }
        reads = []
        nbytes = 0
        for position, (layer_name, kept) in enumerate(by_layer.items()):
            layer = layer_index(layer_name, position)
            for status in each_status(kept):
                if size := sizes.get(id(status)):
                    reads.append((layer, layer_name, status))
                    nbytes += size
        missing = sizes.keys() - {id(status) for _, _, status in reads}
        if missing and any(
            id(status) in missing and sizes[id(status)] and not status.Failed()
            for status, _ in self.posted
        ):
            raise RuntimeError("vLLM keeps reads where moriio_observed does not look for them")
        return reads, nbytes


def each_status(kept: Any) -> list[Any] | tuple[Any]:
    """The statuses of one layer: upstream keeps one up to 0.30, and a list from 0.31."""
    return kept if isinstance(kept, list) else (kept,)
