"""The enumerations of `mori.io`, member for member and value for value."""

import enum


class _MoriEnum(enum.Enum):
    """Not an `IntEnum`: `str()` and `==` behave as mori's own, which is no integer either."""

    def __int__(self) -> int:
        return int(self.value)


class StatusCode(_MoriEnum):
    """What has become of a transfer. Everything from `ERR_INVALID_ARGS` on is a failure."""

    SUCCESS = 0
    INIT = 1
    IN_PROGRESS = 2
    ERR_INVALID_ARGS = 11
    ERR_NOT_FOUND = 12
    ERR_RDMA_OP = 13
    ERR_BAD_STATE = 14
    ERR_GPU_OP = 15

    def __init__(self, value: int) -> None:
        # Plain attributes: statuses are polled once per read and millisecond.
        self.is_error = value > 10
        self.is_terminal = self.is_error or value == 0


class BackendType(_MoriEnum):
    """The way the bytes travel. The loopback takes RDMA, XGMI and FABRIC, all alike."""

    Unknown = 0
    XGMI = 1
    RDMA = 2
    TCP = 3
    FABRIC = 4


class MemoryLocationType(_MoriEnum):
    """Where registered memory lives."""

    Unknown = 0
    CPU = 1
    GPU = 2


class PollCqMode(_MoriEnum):
    """How RDMA completions are collected; without meaning here."""

    POLLING = 0
    EVENT = 1


class PeerFailureReason(_MoriEnum):
    """Why a peer was given up. The loopback only ever sees `PEER_UNREACHABLE`."""

    UNKNOWN = 0
    PEER_UNREACHABLE = 1
    LOCAL_QP_ERROR = 2
    LOCAL_PORT_DOWN = 3
    LOCAL_DEVICE_FATAL = 4
    LOCAL_CQ_ERROR = 5
