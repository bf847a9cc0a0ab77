"""What the two sides tell each other about themselves, and mori's configuration records."""

import dataclasses
from dataclasses import dataclass
from typing import Any, Self

from moriio_observed.loopback.enums import MemoryLocationType, PeerFailureReason, PollCqMode
from moriio_observed.loopback.process import ProcessId


@dataclass(frozen=True, slots=True)
class EngineDesc:
    """One engine, so that another process can find its memory.

    Attributes:
        key: The engine's name, unique among all that talk to each other.
        node_id: The machine and process id namespace; two engines must agree on it.
        hostname: For messages only.
        host: The address given in `IOEngineConfig`; the loopback opens no socket.
        port: The port given there.
        pid: The engine's process.
        start_time: When that process started, so that a reused pid is not mistaken for it.
    """

    key: str
    node_id: str
    hostname: str
    host: str
    port: int
    pid: int
    start_time: int

    @property
    def process(self) -> ProcessId:
        """The engine's process."""
        return ProcessId(self.pid, self.start_time)

    def pack(self) -> bytes:
        """Encode for `unpack` in another process (msgpack)."""
        return _pack(dataclasses.astuple(self))

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """Decode what `pack` made."""
        return cls(*_unpack(data))


@dataclass(frozen=True, slots=True)
class MemoryDesc:
    """One registered piece of memory.

    Attributes:
        engine_key: The engine it was registered with.
        id: Unique within that engine.
        device_id: The device, -1 for none.
        data: Its address in the engine's process.
        size: Bytes.
        loc: Where it lives.
    """

    engine_key: str
    id: int
    device_id: int
    data: int
    size: int
    loc: MemoryLocationType

    def pack(self) -> bytes:
        """Encode for `unpack` in another process (msgpack)."""
        return _pack((*dataclasses.astuple(self)[:-1], self.loc.value))

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """Decode what `pack` made."""
        engine_key, number, device_id, address, size, loc = _unpack(data)
        return cls(engine_key, number, device_id, address, size, MemoryLocationType(loc))


@dataclass(frozen=True, slots=True)
class PeerFailureEvent:
    """A peer that was seen to be gone; reported once per death."""

    remote_engine_key: str
    reason: PeerFailureReason
    qp_num: int
    port_num: int
    device_name: str
    detail: str


@dataclass(slots=True)
class IOEngineConfig:
    """Where an engine listens; the loopback keeps it for the descriptor only."""

    host: str = ""
    port: int = 0


@dataclass(slots=True)
class RdmaBackendConfig:
    """mori's RDMA knobs; accepted and without effect."""

    qp_per_transfer: int = 1
    post_batch_size: int = -1
    num_worker_threads: int = 1
    poll_cq_mode: PollCqMode = PollCqMode.POLLING
    enable_notification: bool = True
    notif_per_qp: int = 1024
    enable_transfer_chunking: bool = False
    chunk_bytes: int = 65536
    max_chunks_per_transfer: int = 64
    num_nics_per_transfer: int = 1


@dataclass(slots=True)
class XgmiBackendConfig:
    """mori's XGMI knobs; accepted and without effect."""

    num_streams: int = 64
    num_events: int = 64


@dataclass(slots=True)
class FabricBackendConfig:
    """mori's fabric knobs; accepted and without effect."""

    num_streams: int = 64
    num_events: int = 64


def _pack(fields: tuple[object, ...]) -> bytes:
    import msgpack  # always there beside vLLM, whose connector needs it as well

    packed: bytes = msgpack.packb(fields)
    return packed


def _unpack(data: bytes) -> list[Any]:
    import msgpack

    fields: list[Any] = msgpack.unpackb(data)
    return fields
