"""Free TCP ports on the loopback address."""

import fcntl
import os
import random
import socket
import struct
import tempfile
from collections.abc import Generator
from pathlib import Path

HOST = "127.0.0.1"
LOWEST, HIGHEST = 20000, 32000
"""Below Linux's ephemeral ports: a server binds most of its ports long after they were
chosen, and an outgoing connection must not take one meanwhile."""
RANKS = 8
"""A server's further ranks listen on the ports above its own; so many are kept free for them."""


def free_ports() -> Generator[int, None, None]:
    """Yield ports that nobody listens on, each the first of `RANKS` that are nobody else's.

    They are kept from everybody else who asks here, in whatever process of this user, until the
    iterator is closed or at its end, or its process ends.
    """
    firsts = range(LOWEST, HIGHEST - RANKS + 1, RANKS)
    # Not seeded: two users' runs that start together should not try the same ports.
    start = random.SystemRandom().randrange(len(firsts))
    with _kept().open("ab") as kept:
        for first in (*firsts[start:], *firsts[:start]):
            ports = range(first, first + RANKS)
            if _keep(kept.fileno(), ports) and all(map(_is_free, ports)):
                yield first


def _kept() -> Path:
    """An empty file whose bytes stand for the ports: whoever has locked one keeps that port."""
    return Path(tempfile.gettempdir()) / f"moriio-observed-ports-{os.getuid()}"


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
