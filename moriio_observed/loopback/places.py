"""Where a post stands: the request it belongs to, its layer, and which attempt it is.

The loopback sees sessions and posts, never requests. But the connector builds one session per
layer, in layer order, and posts a request's layers in that order: so the layer is the session's
number, and a layer that does not go up begins the next request.
"""

from typing import NamedTuple


class Place(NamedTuple):
    """Which request towards a peer, which layer of it, which attempt; all counted from 0."""

    request: int
    layer: int
    attempt: int = 0


class PlaceCounter:
    """Tells the place of each post towards one peer. Not thread-safe."""

    def __init__(self) -> None:
        self._request = -1
        self._last_layer: int | None = None
        self._attempts: dict[tuple[int, int], int] = {}

    def place(self, layer: int) -> Place:
        """Return where a post of `layer` stands now, without taking note of it."""
        begins_request = self._last_layer is None or layer <= self._last_layer
        request = self._request + begins_request
        return Place(request, layer, self._attempts.get((request, layer), 0))

    def accepted(self, place: Place) -> None:
        """Note that the post went out."""
        if place.request != self._request:
            self._attempts.clear()
        self._request = place.request
        self._last_layer = place.layer

    def rejected(self, place: Place) -> None:
        """Note that the post was refused: the same one is expected again."""
        self._attempts[place.request, place.layer] = place.attempt + 1

    def reset(self) -> None:
        """Make the next request to begin number 0; the rest of one under way is number -1."""
        self._request = -1
        self._attempts.clear()
