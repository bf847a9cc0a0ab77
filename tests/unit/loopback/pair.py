"""A real second process, the way to it, and the faults on that way."""

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

from moriio_observed.loopback.descriptors import (
    EngineDesc,
    IOEngineConfig,
    MemoryDesc,
    RdmaBackendConfig,
)
from moriio_observed.loopback.engine import IOEngine, IOEngineSession
from moriio_observed.loopback.enums import BackendType, MemoryLocationType

MEMORY_BYTES = 1 << 16


class Peer:
    """A real second process with an engine and memory."""

    def __init__(self, key: str = "producer:test") -> None:
        self._process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("peer.py"), key, str(MEMORY_BYTES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        engine, memory = self._answer().split()
        self.engine = EngineDesc.unpack(bytes.fromhex(engine))
        self.memory = MemoryDesc.unpack(bytes.fromhex(memory))

    def set(self, data: bytes, offset: int = 0) -> None:
        self._ask(f"set {offset} {data.hex()}")

    def get(self, size: int, offset: int = 0) -> bytes:
        return bytes.fromhex(self._ask(f"get {offset} {size}"))

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def kill_without_reaping(self) -> None:
        """Leave a zombie, which has a pid and a start time still."""
        self._process.kill()
        os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)

    def _ask(self, line: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


class Faults:
    """The fault file of the engines a test makes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def set(self, *rules: dict[str, object], **keys: object) -> None:
        fresh = self.path.with_suffix(".new")
        fresh.write_text(json.dumps({"rules": rules, **keys}))
        fresh.replace(self.path)


class Local:
    """An engine of this process with memory, and the way to a peer."""

    def __init__(self, peer: Peer, key: str = "consumer:test") -> None:
        self.engine = IOEngine(key, IOEngineConfig("127.0.0.1", 0))
        self.engine.create_backend(BackendType.RDMA, RdmaBackendConfig())
        self.engine.register_remote_engine(peer.engine)
        self.buffer = ctypes.create_string_buffer(MEMORY_BYTES)
        address = ctypes.addressof(self.buffer)
        self.memory = self.engine.register_memory(address, MEMORY_BYTES, -1, MemoryLocationType.CPU)
        self._peer = peer

    def session(self) -> IOEngineSession:
        session = self.engine.create_session(self.memory, self._peer.memory)
        assert session is not None
        return session

    def bytes(self, size: int, offset: int = 0) -> bytes:
        return self.buffer.raw[offset : offset + size]
