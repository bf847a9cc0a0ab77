import dataclasses
import threading
from types import SimpleNamespace

import pytest

from moriio_observed.loopback.descriptors import EngineDesc, IOEngineConfig, MemoryDesc
from moriio_observed.loopback.engine import IOEngine
from moriio_observed.loopback.enums import BackendType, MemoryLocationType, StatusCode


def tensor(device: str, *, contiguous: bool = True) -> SimpleNamespace:
    """Stand in for a torch tensor of six elements of four bytes at address 4096."""
    return SimpleNamespace(
        device=SimpleNamespace(type=device, index=None),
        is_contiguous=lambda: contiguous,
        data_ptr=lambda: 4096,
        nelement=lambda: 6,
        element_size=lambda: 4,
    )


def test_an_engine_descriptor_survives_packing(local):
    desc = local.engine.get_engine_desc()
    assert desc.key == "consumer:test"
    assert EngineDesc.unpack(desc.pack()) == desc


def test_a_memory_descriptor_survives_packing_and_tells_its_address(local):
    assert MemoryDesc.unpack(local.memory.pack()) == local.memory
    assert (
        local.memory.data
        == local.engine.register_memory(local.memory.data, 1, -1, MemoryLocationType.CPU).data
    )


def test_a_tensor_is_registered_with_all_its_bytes(local):
    desc = local.engine.register_torch_tensor(tensor("cpu"))
    assert (desc.data, desc.size, desc.device_id) == (4096, 24, -1)
    assert desc.loc is MemoryLocationType.CPU


@pytest.mark.parametrize(
    ("given", "told"),
    [(tensor("cpu", contiguous=False), "contiguous"), (tensor("cuda"), "GPU")],
)
def test_a_tensor_that_cannot_be_read_by_others_is_refused(local, given, told):
    with pytest.raises(RuntimeError, match=told):
        local.engine.register_torch_tensor(given)


def test_an_engine_on_another_machine_is_refused(peer, local):
    elsewhere = dataclasses.replace(peer.engine, node_id="elsewhere")
    with pytest.raises(RuntimeError, match="another machine"):
        local.engine.register_remote_engine(elsewhere)


def test_a_backend_mori_lacks_is_refused(local):
    with pytest.raises(NotImplementedError):
        local.engine.create_backend(BackendType.TCP)


def without_backend(local, _):
    local.engine.remove_backend(BackendType.RDMA)


def without_local_memory(local, _):
    local.engine.deregister_memory(local.memory)


def without_remote_engine(local, peer):
    local.engine.deregister_remote_engine(peer.engine)


@pytest.mark.parametrize(
    ("lacking", "told"),
    [
        (without_backend, "no backend"),
        (without_local_memory, "memory 0"),
        (without_remote_engine, "producer:test"),
    ],
)
def test_without_a_way_there_is_no_session_and_a_warning_says_why(
    peer, local, caplog, lacking, told
):
    lacking(local, peer)
    assert local.engine.create_session(local.memory, peer.memory) is None
    assert told in caplog.text


def test_a_remote_engine_registered_again_counts_its_layers_anew(peer, local, session, faults):
    local.engine.register_remote_engine(peer.engine)
    faults.set({"layers": [0], "fail": True})
    assert local.session().read(0, 0, 1, 0).Failed()


def test_transfer_uids_are_unique(local, session):
    uids = [local.engine.allocate_transfer_uid(), session.allocate_transfer_uid()]
    assert len(set(uids)) == 2


def test_no_inbound_status_is_ever_there(peer, local):
    assert local.engine.pop_inbound_transfer_status(peer.engine.key, 0) is None


def test_a_dropped_engine_ends_its_transfers_and_its_threads(peer, local, faults):
    before = set(threading.enumerate())
    engine = IOEngine("consumer:short", IOEngineConfig("", 0))
    engine.create_backend(BackendType.RDMA)
    engine.register_remote_engine(peer.engine)
    faults.set({"hang": True})
    memory = engine.register_memory(local.memory.data, 1, -1, MemoryLocationType.CPU)
    hung = engine.create_session(memory, peer.memory).read(0, 0, 1, 0)
    threads = set(threading.enumerate()) - before
    del engine
    assert hung.WaitFor() is StatusCode.ERR_BAD_STATE
    for thread in threads:
        thread.join(10)
    assert threads
    assert not any(thread.is_alive() for thread in threads)
