"""`mori.io`'s engine and session, for processes of one machine."""

import itertools
import os
import socket
from collections.abc import Iterable, Sequence
from typing import Protocol

from moriio_observed.log import get_logger
from moriio_observed.loopback.descriptors import (
    EngineDesc,
    FabricBackendConfig,
    IOEngineConfig,
    MemoryDesc,
    PeerFailureEvent,
    RdmaBackendConfig,
    XgmiBackendConfig,
)
from moriio_observed.loopback.enums import BackendType, MemoryLocationType, StatusCode
from moriio_observed.loopback.faultfile import FaultFile
from moriio_observed.loopback.faults import Fault
from moriio_observed.loopback.memory import Pieces
from moriio_observed.loopback.process import ProcessId, allow_peers, node_id
from moriio_observed.loopback.status import TransferStatus, wait_for_all
from moriio_observed.loopback.transport import Peer, Transfer, Transport

logger = get_logger(__name__)

FAULTS_VARIABLE = "MORIIO_OBSERVED_LOOPBACK_FAULTS"

BackendConfig = RdmaBackendConfig | XgmiBackendConfig | FabricBackendConfig

_LOCATIONS = {"cpu": MemoryLocationType.CPU, "cuda": MemoryLocationType.GPU}


class Tensor(Protocol):
    """What the loopback needs of a torch tensor."""

    @property
    def device(self) -> "Device":
        """Where it lives."""

    def is_contiguous(self) -> bool:
        """Tell whether its elements lie side by side."""

    def data_ptr(self) -> int:
        """Return the address of its first element."""

    def nelement(self) -> int:
        """Return the number of elements."""

    def element_size(self) -> int:
        """Return the bytes of one element."""


class Device(Protocol):
    """What the loopback needs of a torch device."""

    @property
    def type(self) -> str:
        """`cpu`, `cuda`, …."""

    @property
    def index(self) -> int | None:
        """Its number, if it has one."""


class IOEngineSession:
    """Transfers between one local and one remote piece of memory."""

    def __init__(
        self, engine: "IOEngine", peer: Peer, local: MemoryDesc, remote: MemoryDesc
    ) -> None:
        self._engine = engine
        self._peer = peer
        self._local = local
        self._remote = remote
        self._layer = peer.sessions
        peer.sessions += 1

    def allocate_transfer_uid(self) -> int:
        """Return a number no other transfer of this engine has."""
        return self._engine.allocate_transfer_uid()

    def read(
        self, local_offset: int, remote_offset: int, size: int, transfer_uid: int, /
    ) -> TransferStatus:
        """Post one read; see `batch_read`."""
        return self.batch_read([local_offset], [remote_offset], [size], transfer_uid)

    def write(
        self, local_offset: int, remote_offset: int, size: int, transfer_uid: int, /
    ) -> TransferStatus:
        """Post one write; see `batch_read`."""
        return self.batch_write([local_offset], [remote_offset], [size], transfer_uid)

    def batch_read(
        self,
        local_offsets: Sequence[int],
        remote_offsets: Sequence[int],
        sizes: Sequence[int],
        transfer_uid: int,  # noqa: ARG002 (only mori's notifications need it)
        /,
    ) -> TransferStatus:
        """Post reads of many pieces as one transfer and return at once.

        Args:
            local_offsets: Bytes into the local memory, one per piece.
            remote_offsets: Bytes into the remote memory.
            sizes: Bytes of each piece.
            transfer_uid: A number from `allocate_transfer_uid`.

        Returns:
            One status for all; failed already if the pieces do not lie within the memory
            (`ERR_INVALID_ARGS`) or the post was rejected.
        """
        lists = (local_offsets, remote_offsets, sizes)
        return self._engine._post(
            self._peer, self._layer, self._local, self._remote, *lists, write=False
        )

    def batch_write(
        self,
        local_offsets: Sequence[int],
        remote_offsets: Sequence[int],
        sizes: Sequence[int],
        transfer_uid: int,  # noqa: ARG002 (only mori's notifications need it)
        /,
    ) -> TransferStatus:
        """Post writes of many pieces as one transfer; see `batch_read`."""
        lists = (local_offsets, remote_offsets, sizes)
        return self._engine._post(
            self._peer, self._layer, self._local, self._remote, *lists, write=True
        )

    def alive(self) -> bool:
        """Tell whether the remote process still runs."""
        return not self._peer.gone and self._peer.process.alive()


class IOEngine:
    """One process's end of all transfers.

    Args:
        key: The engine's name, unique among all that talk to each other. What stands before
            its first colon is its side for the fault file (`consumer:…`, `producer:…`).
        config: Host and port, for the descriptor only.
    """

    def __init__(self, key: str, config: IOEngineConfig) -> None:
        allow_peers()
        own = ProcessId.own()
        self._desc = EngineDesc(
            key, node_id(), socket.gethostname(), config.host, config.port, *own
        )
        self._side = key.partition(":")[0]
        self._faults = FaultFile(os.environ.get(FAULTS_VARIABLE))
        self._transport = Transport()
        self._peers: dict[str, Peer] = {}
        self._memory: dict[int, MemoryDesc] = {}
        self._backends: dict[BackendType, BackendConfig | None] = {}
        self._memory_ids = itertools.count()
        self._transfer_uids = itertools.count()

    def __del__(self) -> None:
        if hasattr(self, "_peers"):
            for peer in self._peers.values():
                _stop_watching(peer)
            self._transport.close()

    def get_engine_desc(self) -> EngineDesc:
        """Return what other engines need to reach this one."""
        return self._desc

    def create_backend(self, type: BackendType, config: BackendConfig | None = None) -> None:  # noqa: A002
        """Allow transfers; every backend mori has behaves alike here.

        Raises:
            NotImplementedError: mori has no such backend either.
        """
        if type not in (BackendType.RDMA, BackendType.XGMI, BackendType.FABRIC):
            raise NotImplementedError(f"backend {type} is not implemented")
        self._backends[type] = config

    def remove_backend(self, type: BackendType) -> None:  # noqa: A002
        """Take a backend back; sessions that exist go on."""
        self._backends.pop(type, None)

    def register_remote_engine(self, engine_desc: EngineDesc) -> None:
        """Make another engine known; its sessions count from layer 0 again.

        Raises:
            RuntimeError: It runs on another machine or in another pid namespace.
        """
        if engine_desc.node_id != self._desc.node_id:
            raise RuntimeError(
                f"engine {engine_desc.key} (host {engine_desc.hostname}) is on another machine or "
                f"in another pid namespace than {self._desc.key} (host {self._desc.hostname}): "
                "the loopback works within one"
            )
        known = self._peers.get(engine_desc.key)
        if known is not None and known.process == engine_desc.process:
            known.sessions = 0
            return
        self.deregister_remote_engine(engine_desc)
        peer = self._peers[engine_desc.key] = Peer(engine_desc)
        self._transport.watch(peer)

    def deregister_remote_engine(self, engine_desc: EngineDesc) -> None:
        """Forget another engine; sessions that exist go on."""
        peer = self._peers.pop(engine_desc.key, None)
        if peer is not None:
            _stop_watching(peer)

    def register_memory(
        self, ptr: int, size: int, device_id: int, mem_loc: MemoryLocationType
    ) -> MemoryDesc:
        """Register memory by its address.

        Raises:
            RuntimeError: It is GPU memory, which no process can read this way.
        """
        if mem_loc is MemoryLocationType.GPU:
            raise RuntimeError("the loopback moves host memory only, and this is on a GPU")
        desc = MemoryDesc(self._desc.key, next(self._memory_ids), device_id, ptr, size, mem_loc)
        self._memory[desc.id] = desc
        return desc

    def register_torch_tensor(self, tensor: Tensor) -> MemoryDesc:
        """Register a tensor's memory.

        Raises:
            RuntimeError: It is not contiguous, or not on the CPU.
        """
        if not tensor.is_contiguous():
            raise RuntimeError("only a contiguous tensor can be registered")
        device = tensor.device
        size = tensor.nelement() * tensor.element_size()
        index = -1 if device.index is None else device.index
        location = _LOCATIONS.get(device.type, MemoryLocationType.GPU)
        return self.register_memory(tensor.data_ptr(), size, index, location)

    def deregister_memory(self, mem_desc: MemoryDesc) -> None:
        """Take memory back; no session can be built on it any more."""
        self._memory.pop(mem_desc.id, None)

    def allocate_transfer_uid(self) -> int:
        """Return a number no other transfer of this engine has."""
        return next(self._transfer_uids)

    def create_session(
        self, local_mem: MemoryDesc, remote_mem: MemoryDesc
    ) -> IOEngineSession | None:
        """Pair local with remote memory; None, and a warning, if there is no way between them.

        The n-th session towards a remote engine is layer n to the fault file.
        """
        peer = self._peers.get(remote_mem.engine_key)
        obstacle = self._obstacle(local_mem, remote_mem, peer)
        if peer is None or obstacle:
            logger.warning("no session from %s: %s", self._desc.key, obstacle)
            return None
        return IOEngineSession(self, peer, local_mem, remote_mem)

    def read(
        self,
        local_dest_mem_desc: MemoryDesc,
        local_offset: int,
        remote_src_mem_desc: MemoryDesc,
        remote_offset: int,
        size: int,
        transfer_uid: int,
        /,
    ) -> TransferStatus:
        """Post one read without a session; it is layer 0 to the fault file."""
        local, remote = [local_dest_mem_desc], [remote_src_mem_desc]
        lists = ([[local_offset]], remote, [[remote_offset]], [[size]], [transfer_uid])
        return self.batch_read(local, *lists)[0]

    def write(
        self,
        local_dest_mem_desc: MemoryDesc,
        local_offset: int,
        remote_src_mem_desc: MemoryDesc,
        remote_offset: int,
        size: int,
        transfer_uid: int,
        /,
    ) -> TransferStatus:
        """Post one write without a session; it is layer 0 to the fault file."""
        local, remote = [local_dest_mem_desc], [remote_src_mem_desc]
        lists = ([[local_offset]], remote, [[remote_offset]], [[size]], [transfer_uid])
        return self.batch_write(local, *lists)[0]

    def batch_read(
        self,
        local_dest_mem_desc: Sequence[MemoryDesc],
        local_offsets: Sequence[Sequence[int]],
        remote_src_mem_desc: Sequence[MemoryDesc],
        remote_offsets: Sequence[Sequence[int]],
        sizes: Sequence[Sequence[int]],
        transfer_uid: Sequence[int],
        /,
    ) -> list[TransferStatus]:
        """Post one read of many pieces per pair of memories; the n-th is layer n.

        Returns:
            A status for each pair; `ERR_NOT_FOUND` where the engine's own or the remote
            engine's registration is missing.
        """
        lists = (local_dest_mem_desc, remote_src_mem_desc, local_offsets, remote_offsets, sizes)
        return self._post_all(zip(*lists, transfer_uid, strict=True), write=False)

    def batch_write(
        self,
        local_dest_mem_desc: Sequence[MemoryDesc],
        local_offsets: Sequence[Sequence[int]],
        remote_src_mem_desc: Sequence[MemoryDesc],
        remote_offsets: Sequence[Sequence[int]],
        sizes: Sequence[Sequence[int]],
        transfer_uid: Sequence[int],
        /,
    ) -> list[TransferStatus]:
        """Post one write of many pieces per pair of memories; see `batch_read`."""
        lists = (local_dest_mem_desc, remote_src_mem_desc, local_offsets, remote_offsets, sizes)
        return self._post_all(zip(*lists, transfer_uid, strict=True), write=True)

    def pop_inbound_transfer_status(self, remote_key: str, transfer_uid: int) -> None:  # noqa: ARG002
        """Return None: the loopback notifies nobody, as mori with notifications off."""
        return

    def pop_peer_failure(self) -> PeerFailureEvent | None:
        """Take the oldest peer failure not taken yet, or None."""
        failures = self._transport.peer_failures
        return failures.popleft() if failures else None

    def wait_all(self, statuses: Sequence[TransferStatus], timeout_ms: int = -1) -> StatusCode:
        """Wait until every status is terminal or the time is over; see `wait_for_all`."""
        return wait_for_all(statuses, timeout_ms)

    def _obstacle(self, local: MemoryDesc, remote: MemoryDesc, peer: Peer | None) -> str | None:
        if not self._backends:
            return "no backend was created"
        if local.engine_key != self._desc.key or local.id not in self._memory:
            return f"memory {local.id} of engine {local.engine_key} is not registered here"
        if peer is None:
            return f"remote engine {remote.engine_key} is not registered"
        return None

    def _post_all(
        self,
        posts: Iterable[
            tuple[MemoryDesc, MemoryDesc, Sequence[int], Sequence[int], Sequence[int], int]
        ],
        *,
        write: bool,
    ) -> list[TransferStatus]:
        statuses = []
        for layer, (local, remote, local_offsets, remote_offsets, sizes, _) in enumerate(posts):
            peer = self._peers.get(remote.engine_key)
            obstacle = self._obstacle(local, remote, peer)
            if peer is None or obstacle:
                statuses.append(_ended(StatusCode.ERR_NOT_FOUND, obstacle or ""))
            else:
                lists = (local_offsets, remote_offsets, sizes)
                statuses.append(self._post(peer, layer, local, remote, *lists, write=write))
        return statuses

    def _post(
        self,
        peer: Peer,
        layer: int,
        local: MemoryDesc,
        remote: MemoryDesc,
        local_offsets: Sequence[int],
        remote_offsets: Sequence[int],
        sizes: Sequence[int],
        *,
        write: bool,
    ) -> TransferStatus:
        problem = _problem(local, remote, local_offsets, remote_offsets, sizes)
        if problem:
            return _ended(StatusCode.ERR_INVALID_ARGS, problem)
        fault = self._fault(peer, layer)
        if not sizes:
            return _ended(StatusCode.SUCCESS, "")
        pieces = Pieces(
            (local.data + offset for offset in local_offsets),
            (remote.data + offset for offset in remote_offsets),
            sizes,
        )
        delay_s = fault.seconds(pieces.total_bytes)
        if fault.error and delay_s == 0:
            return _ended(*fault.error)
        status = TransferStatus()
        status.SetCode(StatusCode.IN_PROGRESS)
        transfer = Transfer(peer, pieces, status, write=write, error=fault.error)
        self._transport.submit(transfer, delay_s)
        return status

    def _fault(self, peer: Peer, layer: int) -> Fault:
        with peer.posting:
            plan = self._faults.plan()
            if peer.resets != self._faults.resets:
                peer.resets = self._faults.resets
                peer.places.reset()
            place = peer.places.place(layer)
            fault = plan.fault_for(place, self._side)
            if fault.rejected:
                peer.places.rejected(place)
            else:
                peer.places.accepted(place)
        return fault


def _ended(code: StatusCode, message: str) -> TransferStatus:
    status = TransferStatus()
    status.Update(code, message)
    return status


def _problem(
    local: MemoryDesc,
    remote: MemoryDesc,
    local_offsets: Sequence[int],
    remote_offsets: Sequence[int],
    sizes: Sequence[int],
) -> str | None:
    if not len(local_offsets) == len(remote_offsets) == len(sizes):
        return (
            f"{len(local_offsets)} local offsets, {len(remote_offsets)} remote offsets and "
            f"{len(sizes)} sizes do not match"
        )
    for here, there, size in zip(local_offsets, remote_offsets, sizes, strict=True):
        if size < 0 or not 0 <= here <= local.size - size or not 0 <= there <= remote.size - size:
            return (
                f"{size} bytes at local offset {here} and remote offset {there} do not lie within "
                f"{local.size} local and {remote.size} remote bytes"
            )
    return None


def _stop_watching(peer: Peer) -> None:
    if peer.watch is not None:
        peer.watch.stop()
