import ctypes
import errno

import pytest

from moriio_observed.loopback import memory
from moriio_observed.loopback.descriptors import MemoryDesc
from moriio_observed.loopback.enums import MemoryLocationType, StatusCode
from moriio_observed.loopback.memory import IOV_MAX, Pieces

SUCCESS, RDMA = StatusCode.SUCCESS, StatusCode.ERR_RDMA_OP
SOON_S = 0.01


def test_a_read_brings_the_other_processs_bytes(peer, local, session):
    peer.set(b"over there", offset=100)
    status = session.read(5, 100, 10, 0)
    assert status.WaitFor() is SUCCESS
    assert local.bytes(10, offset=5) == b"over there"


def test_a_write_puts_bytes_into_the_other_process(peer, local, session):
    ctypes.memmove(local.buffer, b"from here", 9)
    assert session.write(0, 7, 9, 0).WaitFor() is SUCCESS
    assert peer.get(9, offset=7) == b"from here"


@pytest.mark.parametrize("pieces", [2, IOV_MAX, 3 * IOV_MAX + 1])
def test_a_batch_brings_any_number_of_pieces(peer, local, session, pieces):
    data = bytes(range(256)) * 64
    peer.set(data)
    # Every second run of four bytes, in reverse order.
    remote = [8 * index for index in range(pieces)]
    status = session.batch_read(
        [4 * (pieces - 1 - index) for index in range(pieces)],
        [offset % len(data) for offset in remote],
        [4] * pieces,
        0,
    )
    assert status.WaitFor() is SUCCESS
    expected = [data[offset % len(data) :][:4] for offset in reversed(remote)]
    assert local.bytes(4 * pieces) == b"".join(expected)


def test_a_batch_writes_too(peer, local, session):
    ctypes.memmove(local.buffer, b"abcdef", 6)
    assert session.batch_write([0, 3], [10, 20], [3, 3], 0).WaitFor() is SUCCESS
    assert (peer.get(3, 10), peer.get(3, 20)) == (b"abc", b"def")


def test_posting_returns_before_the_bytes_have_moved(session, held_copies):
    status = session.read(0, 0, 1, 0)
    assert status.InProgress()
    held_copies.set()
    assert status.WaitFor() is SUCCESS


def test_transfers_do_not_wait_for_each_other(peer, session, faults):
    faults.set({"requests": [0], "hang": True})
    hung, healthy = session.read(0, 0, 1, 0), session.read(0, 0, 1, 0)
    assert healthy.WaitFor() is SUCCESS
    assert hung.InProgress()


def test_an_empty_batch_succeeds_at_once(session, held_copies):
    assert session.batch_read([], [], [], 0).Succeeded()


def test_pieces_of_no_bytes_are_allowed(peer, local, session):
    peer.set(b"ab")
    assert session.batch_read([0, 9, 1], [0, 9, 1], [1, 0, 1], 0).WaitFor() is SUCCESS
    assert local.bytes(2) == b"ab"


@pytest.mark.parametrize(
    ("local_offsets", "remote_offsets", "sizes"),
    [
        ([0], [0], [(1 << 16) + 1]),
        ([1 << 16], [0], [1]),
        ([0], [1 << 16], [1]),
        ([-1], [0], [1]),
        ([0], [-1], [1]),
        ([0], [0], [-1]),
        ([0, 0], [0], [1]),
        ([0], [0], []),
    ],
)
def test_what_does_not_lie_within_the_memory_is_refused(
    session, local_offsets, remote_offsets, sizes
):
    status = session.batch_read(local_offsets, remote_offsets, sizes, 0)
    assert status.Code() is StatusCode.ERR_INVALID_ARGS
    assert status.Message()


def test_memory_that_is_not_mapped_is_an_error_and_no_crash(peer, local):
    unmapped = MemoryDesc(peer.engine.key, 1, -1, 4096, 4096, MemoryLocationType.CPU)
    session = local.engine.create_session(local.memory, unmapped)
    status = session.read(0, 0, 10, 0)
    assert status.WaitFor() is RDMA
    assert "not mapped" in status.Message()


def test_a_kernel_that_forbids_it_is_explained(session, monkeypatch):
    def forbidden(*_):
        ctypes.set_errno(errno.EPERM)
        return -1

    monkeypatch.setattr(memory, "_readv", forbidden)
    status = session.read(0, 0, 1, 0)
    assert status.WaitFor() is RDMA
    assert "ptrace_scope" in status.Message()
    assert "CAP_SYS_PTRACE" in status.Message()


def test_a_copy_that_gets_nowhere_is_an_error(session, monkeypatch):
    monkeypatch.setattr(memory, "_readv", lambda *_: 0)
    assert session.read(0, 0, 1, 0).WaitFor() is RDMA


def test_a_copy_cut_short_goes_on_where_it_stopped(peer, local, session, monkeypatch):
    def at_most_one_run(pid, here, _, there, runs, flags):
        return read(pid, here, 1, there, 1, flags)

    read = memory._readv
    monkeypatch.setattr(memory, "_readv", at_most_one_run)
    peer.set(b"abc")
    assert session.batch_read([0, 1, 2], [2, 1, 0], [1, 1, 1], 0).WaitFor() is SUCCESS
    assert local.bytes(3) == b"cba"


def test_progress_within_a_piece_is_kept():
    pieces = Pieces([100, 200], [300, 400], [10, 20])
    assert pieces.advance(0, 15) == 1
    assert (pieces.local[2:].tolist(), pieces.remote[2:].tolist()) == ([205, 15], [405, 15])


def test_a_slow_read_brings_the_bytes_as_they_are_when_it_lands(
    peer, local, session, faults, clock
):
    faults.set({"latency_s": SOON_S})
    peer.set(b"early")
    status = session.read(0, 0, 5, 0)
    peer.set(b"later")
    clock.now = SOON_S
    assert status.WaitFor() is SUCCESS
    assert local.bytes(5) == b"later"


def test_who_does_not_wait_for_a_slow_read_sees_stale_memory(peer, local, session, faults, clock):
    faults.set({"latency_s": SOON_S})
    peer.set(b"fresh")
    status = session.read(0, 0, 5, 0)
    assert status.InProgress()
    assert local.bytes(5) == bytes(5)


def test_slow_reads_land_when_their_time_comes(session, faults, clock):
    faults.set({"requests": [0], "latency_s": 2 * SOON_S}, {"latency_s": SOON_S})
    slow, fast = session.read(0, 0, 1, 0), session.read(0, 0, 1, 0)
    clock.now = SOON_S
    assert fast.WaitFor() is SUCCESS
    assert slow.InProgress()
    clock.now = 2 * SOON_S
    assert slow.WaitFor() is SUCCESS


@pytest.mark.parametrize("forever", [{"hang": True}, {"latency_s": 1e300}])
def test_what_never_lands_holds_up_nothing_that_does(session, faults, clock, forever):
    faults.set({"requests": [0], **forever}, {"latency_s": SOON_S})
    hung, slow = session.read(0, 0, 1, 0), session.read(0, 0, 1, 0)
    clock.now = SOON_S
    assert slow.WaitFor() is SUCCESS
    assert hung.InProgress()


def test_a_hang_with_an_end_lands_late(peer, local, session, faults, clock):
    faults.set({"hang": SOON_S})
    peer.set(b"late")
    status = session.read(0, 0, 4, 0)
    assert status.InProgress()
    clock.now = SOON_S
    assert status.WaitFor() is SUCCESS
    assert local.bytes(4) == b"late"


def test_a_narrow_link_takes_its_time(session, faults, clock):
    faults.set({"bandwidth_bytes_per_s": 1000 / SOON_S})
    status, smaller = session.read(0, 0, 1000, 0), session.read(0, 0, 500, 0)
    clock.now = SOON_S / 2
    assert smaller.WaitFor() is SUCCESS
    assert status.InProgress()
    clock.now = SOON_S
    assert status.WaitFor() is SUCCESS


def test_a_failure_is_there_at_once_and_moves_nothing(peer, local, session, faults):
    faults.set({"fail": {"code": "ERR_BAD_STATE", "message": "broken"}})
    peer.set(b"x")
    status = session.read(0, 0, 1, 0)
    assert (status.Code(), status.Message()) == (StatusCode.ERR_BAD_STATE, "broken")
    assert local.bytes(1) == b"\0"


def test_a_failure_with_latency_comes_after_it_and_moves_nothing(
    peer, local, session, faults, clock
):
    faults.set({"fail": True, "latency_s": SOON_S})
    peer.set(b"x")
    status = session.read(0, 0, 1, 0)
    assert status.InProgress()
    clock.now = SOON_S
    assert status.WaitFor() is RDMA
    assert local.bytes(1) == b"\0"


def test_a_full_queue_rejects_the_post_until_it_is_tried_often_enough(session, faults):
    faults.set({"sq_full": 2})
    rejected = [session.read(0, 0, 1, 0) for _ in range(2)]
    assert [status.Code() for status in rejected] == [RDMA, RDMA]
    assert all("SQ full" in status.Message() for status in rejected)
    assert session.read(0, 0, 1, 0).WaitFor() is SUCCESS


def test_the_nth_session_is_layer_n_and_going_back_is_the_next_request(local, faults):
    faults.set({"requests": [1], "layers": [2], "fail": True})
    sessions = [local.session() for _ in range(3)]
    failed = [
        (request, layer)
        for request in range(3)
        for layer, session in enumerate(sessions)
        if session.read(0, 0, 1, 0).WaitFor() is RDMA
    ]
    assert failed == [(1, 2)]


def test_a_file_that_resets_makes_the_next_request_number_0(session, faults):
    faults.set({"requests": [0], "fail": True})
    first, second = session.read(0, 0, 1, 0), session.read(0, 0, 1, 0)
    faults.set({"requests": [0], "fail": True}, reset_ordinals=True)
    third = session.read(0, 0, 1, 0)
    assert [status.WaitFor() for status in (first, second, third)] == [RDMA, SUCCESS, RDMA]


def test_a_file_that_does_not_reset_goes_on_counting(session, faults):
    session.read(0, 0, 1, 0)
    faults.set({"requests": [1], "fail": True})
    assert session.read(0, 0, 1, 0).Failed()


def test_the_side_is_what_the_engines_key_begins_with(session, faults):
    faults.set({"side": "producer", "fail": True})
    assert session.read(0, 0, 1, 0).WaitFor() is SUCCESS
    faults.set({"side": "consumer", "fail": True}, seed=1)
    assert session.read(0, 0, 1, 0).Failed()


def test_reads_without_a_session(peer, local):
    peer.set(b"abcdef")
    here, there = local.memory, peer.memory
    assert local.engine.read(here, 10, there, 3, 3, 0).WaitFor() is SUCCESS
    statuses = local.engine.batch_read(
        [here, here], [[0], [1, 2]], [there, there], [[0], [1, 2]], [[1], [1, 1]], [1, 2]
    )
    assert local.engine.wait_all(statuses) is SUCCESS
    assert len(statuses) == 2
    assert (local.bytes(3), local.bytes(3, 10)) == (b"abc", b"def")


def test_writes_without_a_session(peer, local):
    ctypes.memmove(local.buffer, b"ab", 2)
    here, there = local.memory, peer.memory
    assert local.engine.write(here, 0, there, 5, 1, 0).WaitFor() is SUCCESS
    [status] = local.engine.batch_write([here], [[1]], [there], [[6]], [[1]], [1])
    assert status.WaitFor() is SUCCESS
    assert peer.get(2, 5) == b"ab"


def test_a_transfer_without_a_session_to_an_unknown_engine_is_not_found(peer, local):
    local.engine.deregister_remote_engine(peer.engine)
    status = local.engine.read(local.memory, 0, peer.memory, 0, 1, 0)
    assert status.Code() is StatusCode.ERR_NOT_FOUND
    assert peer.engine.key in status.Message()
