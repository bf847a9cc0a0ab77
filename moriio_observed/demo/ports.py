"""Free TCP ports on the loopback address."""

import fcntl
import os
import random
import socket
import struct
import tempfile
from collections.abc import Generator
from io import FileIO
from pathlib import Path

from moriio_observed.demo.errors import DemoError

HOST = "127.0.0.1"
LOWEST, HIGHEST = 20000, 32000
"""Below Linux's ephemeral ports: a server binds most of its ports long after they were
chosen, and an outgoing connection must not take one meanwhile."""
RANKS = 8
"""A server's further ranks listen on the ports above its own; so many are kept free for them."""


def free_ports() -> Generator[int, None, None]:
    """Yield ports that nobody listens on, each the first of `RANKS` that are nobody else's.

    They are kept from everybody else who asks here, in whatever process of this user, until the
    iterator is closed or its process ends, and with it what it has forked meanwhile.

    Raises:
        DemoError: There are no more, or nothing can be kept.
    """
    firsts = range(LOWEST, HIGHEST - RANKS + 1, RANKS)
    # Not seeded: two users' runs that start together should not try the same ports.
    start = random.SystemRandom().randrange(len(firsts))
    with _kept() as kept:
        for first in (*firsts[start:], *firsts[:start]):
            ports = range(first, first + RANKS)
            if _keep(kept.fileno(), ports) and all(map(_is_free, ports)):
                yield first
    raise DemoError(f"no {RANKS} neighbouring ports are free between {LOWEST} and {HIGHEST}")


def _path() -> Path:
    return Path(tempfile.gettempdir()) / f"moriio-observed-ports-{os.getuid()}"


def _kept() -> FileIO:
    """An empty file whose bytes stand for the ports: whoever has locked one keeps that port."""
    path = _path()
    # Anybody may have put something in the way there.
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        return FileIO(path, "r+", opener=lambda name, _: os.open(name, flags, 0o600))
    except OSError as error:
        raise DemoError(
            f"ports are kept by locks on {path}, which is no such file: {error}"
        ) from None


def _keep(file: int, ports: range) -> bool:
    # A lock of the open file, not of the process: it holds between two iterators of one process,
    # and goes with the file that was opened for it.
    lock = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, ports.start, len(ports), 0)
    try:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, lock)
    except BlockingIOError:
        return False
    return True


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
