"""A transfer is read by one request; what is remembered of it is bounded."""

from __future__ import annotations

from moriio_observed.transfers import UsedTransfers


def test_a_transfer_is_new_once() -> None:
    used = UsedTransfers()
    assert used.first("tx", "a")
    assert not used.first("tx", "b")
    assert used.first("another", "b")


def test_the_same_request_again_is_no_reuse() -> None:
    used = UsedTransfers()
    used.first("tx", "a")
    assert used.first("tx", "a")
    used.first("tx", "b")
    assert used.first("tx", "a")


def test_the_oldest_transfer_is_forgotten_first() -> None:
    used = UsedTransfers(limit=2)
    for transfer_id in ("old", "newer", "newest"):
        used.first(transfer_id, "a")
    assert not used.first("newer", "b")
    assert not used.first("newest", "b")
    assert used.first("old", "b")
