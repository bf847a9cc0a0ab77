import dataclasses

import pytest

from moriio_observed.loopback.enums import PeerFailureReason, StatusCode
from moriio_observed.loopback.transport import Peer as SeenPeer
from moriio_observed.loopback.transport import Transport
from tests.unit.loopback.pair import Local, Peer


@pytest.fixture
def hung(session, faults):
    faults.set({"hang": True})
    return session.read(0, 0, 1, 0)


def test_a_death_ends_what_is_in_flight_with_an_error(peer, hung):
    peer.kill()
    assert hung.WaitFor() is StatusCode.ERR_RDMA_OP
    assert "is gone" in hung.Message()


def test_a_death_is_reported_once_and_names_the_engine(peer, local, session, hung):
    peer.kill()
    hung.Wait()
    session.read(0, 0, 1, 0).Wait()
    event = local.engine.pop_peer_failure()
    assert (event.remote_engine_key, event.reason) == (
        peer.engine.key,
        PeerFailureReason.PEER_UNREACHABLE,
    )
    assert str(peer.engine.pid) in event.detail
    assert local.engine.pop_peer_failure() is None


def test_a_death_noticed_twice_is_reported_once(peer):
    transport, seen = Transport(), SeenPeer(peer.engine)
    transport.lose(seen)
    transport.lose(seen)
    transport.close()
    assert len(transport.peer_failures) == 1


def test_a_zombie_is_dead(peer, session):
    peer.kill_without_reaping()
    assert not session.alive()


def test_a_session_is_alive_until_the_peer_dies(peer, session):
    assert session.alive()
    peer.kill()
    assert not session.alive()


def test_a_post_to_a_dead_peer_fails(peer, session, hung, faults):
    peer.kill()
    hung.Wait()
    faults.set()
    assert session.read(0, 0, 1, 0).WaitFor() is StatusCode.ERR_RDMA_OP


def test_without_deaths_there_is_no_failure_to_take(local, session):
    session.read(0, 0, 1, 0).Wait()
    assert local.engine.pop_peer_failure() is None


def test_the_death_of_one_peer_leaves_the_others_alone(peer, local, hung, faults):
    other = Peer("producer:other")
    local.engine.register_remote_engine(other.engine)
    session = local.engine.create_session(local.memory, other.memory)
    still_hung = session.read(0, 0, 1, 0)
    peer.kill()
    hung.Wait()
    assert still_hung.InProgress()
    faults.set()
    assert session.read(0, 0, 1, 0).WaitFor() is StatusCode.SUCCESS
    other.kill()


def test_another_process_under_the_same_pid_is_not_the_peer(peer, faults):
    stale = dataclasses.replace(peer.engine, start_time=peer.engine.start_time - 1)
    peer.engine = stale
    local = Local(peer)
    session = local.session()
    assert not session.alive()
    assert session.read(0, 0, 1, 0).WaitFor() is StatusCode.ERR_RDMA_OP


def test_a_peer_that_came_back_under_its_old_key_is_reached(peer, local, session, hung, faults):
    peer.kill()
    hung.Wait()
    faults.set()
    back = Peer(peer.engine.key)
    back.set(b"back")
    local.engine.register_remote_engine(back.engine)
    again = local.engine.create_session(local.memory, back.memory)
    assert again.read(0, 0, 4, 0).WaitFor() is StatusCode.SUCCESS
    assert local.bytes(4) == b"back"
    assert not session.alive()
    back.kill()


def test_no_pidfd_means_a_death_is_seen_at_the_next_copy(peer, faults, monkeypatch):
    def refused(*_):
        raise PermissionError

    monkeypatch.setattr("os.pidfd_open", refused)
    local = Local(peer)
    session = local.session()
    peer.kill()
    assert session.read(0, 0, 1, 0).WaitFor() is StatusCode.ERR_RDMA_OP
    assert local.engine.pop_peer_failure() is not None
