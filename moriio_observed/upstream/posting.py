"""What was posted for one request, gathered while upstream posts it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from moriio_observed.upstream.facts import layer_index


@dataclass(slots=True)
class Posting:
    """The reads that were posted for one request.

    Attributes:
        sizes: Bytes by the identity of the status.
        statuses: Held so that no identity is used twice while the request is being posted.
    """

    sizes: dict[int, int] = field(default_factory=dict)
    statuses: list[Any] = field(default_factory=list)

    def add(self, status: Any, transfer_size_byte: Any) -> None:
        """One read was posted; its size is in bytes, one number or one for each block."""
        # First: a read whose size cannot be told must not be taken for none, see `lost`.
        self.statuses.append(status)
        size = transfer_size_byte if isinstance(transfer_size_byte, int) else None
        self.sizes[id(status)] = sum(transfer_size_byte) if size is None else size

    def reads_in(self, by_layer: Mapping[str, Any]) -> Iterator[tuple[int, str, Any, int]]:
        """Those of upstream's statuses that were posted now, and move anything.

        Args:
            by_layer: A request's statuses as upstream keeps them.

        Yields:
            The layer's index and name, the status, and its bytes.
        """
        for position, (layer_name, kept) in enumerate(by_layer.items()):
            for status in each_status(kept):
                if size := self.sizes.get(id(status)):
                    yield layer_index(layer_name, position), layer_name, status, size

    def lost(self, found: Iterable[Any]) -> bool:
        """Whether a read that moves anything and has not failed is not among those found.

        Or one of which it is not known what it moves: then whoever has found the others has not
        found all.
        """
        known = set(map(id, found))
        return any(
            id(status) not in self.sizes
            or (self.sizes[id(status)] and id(status) not in known and not status.Failed())
            for status in self.statuses
        )


def each_status(kept: Any) -> tuple[Any, ...]:
    """The statuses of one layer: upstream keeps one up to 0.30, and a list from 0.31."""
    return tuple(kept) if isinstance(kept, list) else (kept,)
