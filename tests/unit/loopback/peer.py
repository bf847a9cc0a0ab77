"""The other process of the loopback's tests: an engine with memory, told what to do by lines."""

import ctypes
import sys

from moriio_observed.loopback.descriptors import IOEngineConfig, RdmaBackendConfig
from moriio_observed.loopback.engine import IOEngine
from moriio_observed.loopback.enums import BackendType, MemoryLocationType


def main(key: str, size: int) -> None:
    engine = IOEngine(key, IOEngineConfig("127.0.0.1", 0))
    engine.create_backend(BackendType.RDMA, RdmaBackendConfig())
    buffer = ctypes.create_string_buffer(size)
    desc = engine.register_memory(ctypes.addressof(buffer), size, -1, MemoryLocationType.CPU)
    print(engine.get_engine_desc().pack().hex(), desc.pack().hex(), flush=True)
    for line in sys.stdin:
        command, offset, argument = line.split()
        at = ctypes.addressof(buffer) + int(offset)
        if command == "set":
            data = bytes.fromhex(argument)
            ctypes.memmove(at, data, len(data))
            print("done", flush=True)
        else:
            print(ctypes.string_at(at, int(argument)).hex(), flush=True)


main(sys.argv[1], int(sys.argv[2]))
