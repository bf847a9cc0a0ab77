"""Free TCP ports on the loopback address."""

import random
import socket
from collections.abc import Iterator

HOST = "127.0.0.1"
LOWEST, HIGHEST = 20000, 32000
"""Below Linux's ephemeral ports: a server binds most of its ports long after they were
chosen, and an outgoing connection must not take one meanwhile."""
RANKS = 8
"""A server's further ranks listen on the ports above its own; so many are kept free for them."""


def free_ports() -> Iterator[int]:
    """Yield ports that nobody listens on, each the first of `RANKS` that are nobody else's."""
    taken: set[int] = set()
    firsts = range(LOWEST, HIGHEST - RANKS + 1)
    # Not seeded: two runs that start together should not try the same ports.
    for first in random.SystemRandom().sample(firsts, len(firsts)):
        ports = range(first, first + RANKS)
        if taken.isdisjoint(ports) and all(map(_is_free, ports)):
            taken.update(ports)
            yield first


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
