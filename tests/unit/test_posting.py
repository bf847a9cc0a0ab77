import pytest

from moriio_observed.upstream.posting import Posting
from tests.unit.fakes import FakeStatus


def test_who_has_found_every_read_has_lost_none():
    posting, reads = Posting(), [FakeStatus(), FakeStatus()]
    for read in reads:
        posting.add(read, [64, 64])
    assert not posting.lost(reads)
    assert posting.lost(reads[:1])


def test_a_read_whose_size_cannot_be_told_is_not_taken_for_none():
    posting, read = Posting(), FakeStatus()
    with pytest.raises(TypeError):
        posting.add(read, [None])
    assert posting.lost([])
    assert posting.lost([read])
