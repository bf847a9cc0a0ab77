"""Which transfers a decode engine has read already.

A transfer's blocks on P are released once they were read, so the same ``kv_transfer_params`` in a
second request (a router's retry, several samples of one prompt) lead to blocks that may hold
another request's KV by then.
"""

from __future__ import annotations

__all__ = ["UsedTransfers"]

MAX_TRANSFERS = 65536
"""Transfers remembered; the oldest is forgotten."""


class UsedTransfers:
    """The transfers that were read, and by which request.

    Args:
        limit: How many are remembered; a reuse of an older one is not noticed.
    """

    def __init__(self, limit: int = MAX_TRANSFERS) -> None:
        self._limit = limit
        self._reader: dict[str, str] = {}

    def first(self, transfer_id: str, request_id: str) -> bool:
        """Whether no other request has read this transfer; from now on it is this one's.

        A request that asks again, as one does that waits in the queue, is still the first.
        """
        reader = self._reader.setdefault(transfer_id, request_id)
        if len(self._reader) > self._limit:
            del self._reader[next(iter(self._reader))]
        return reader == request_id
