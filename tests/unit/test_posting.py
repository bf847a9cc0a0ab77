import pytest

from moriio_observed.upstream.posting import Posting
from tests.unit.fakes import FakeStatus
from tests.unit.scripted import RejectedStatus


def posted(*reads: tuple[FakeStatus, object]) -> Posting:
    return Posting(posted=list(reads))


def test_reads_are_found_where_upstream_keeps_them_one_or_several_to_a_layer():
    a, b, c = FakeStatus(), FakeStatus(), FakeStatus()
    posting = posted((a, [64, 64]), (b, 32), (c, [16]))
    found, nbytes = posting.reads_in({"layers.7.attn": a, "state": [b, c]})
    assert found == [(7, "layers.7.attn", a), (1, "state", b), (1, "state", c)]
    assert nbytes == 176


def test_what_was_posted_before_is_not_among_them():
    old, new = FakeStatus(), FakeStatus()
    found, nbytes = posted((new, [64])).reads_in({"layers.0": [old, new]})
    assert found == [(0, "layers.0", new)]
    assert nbytes == 64


def test_a_read_that_upstream_does_not_keep_is_missed():
    kept, lost = FakeStatus(), FakeStatus()
    posting = posted((kept, [64]), (lost, [64]))
    with pytest.raises(RuntimeError, match="keeps reads where"):
        posting.reads_in({"layers.0": [kept]})


def test_a_read_kept_twice_does_not_stand_in_for_another():
    kept, lost = FakeStatus(), FakeStatus()
    posting = posted((kept, [64]), (lost, [64]))
    with pytest.raises(RuntimeError, match="keeps reads where"):
        posting.reads_in({"layers.0": [kept], "layers.1": [kept]})


@pytest.mark.parametrize(("status", "size"), [(RejectedStatus(), [64]), (FakeStatus(), [])])
def test_a_read_that_has_failed_or_moves_nothing_need_not_be_kept(status, size):
    kept = FakeStatus()
    found, nbytes = posted((status, size), (kept, [64])).reads_in({"layers.0": [kept]})
    assert found == [(0, "layers.0", kept)]
    assert nbytes == 64


def test_a_read_whose_size_cannot_be_told_is_not_taken_for_none():
    read = FakeStatus()
    with pytest.raises(TypeError):
        posted((read, [None])).reads_in({"layers.0": [read]})


def test_only_what_found_the_send_queue_full_was_rejected():
    failed = FakeStatus()
    failed.fail()
    assert posted((RejectedStatus(), 1), (failed, 1), (FakeStatus(), 1)).rejected == 1
