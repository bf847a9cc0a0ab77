"""Free TCP ports on the loopback address."""

import random
import socket
from collections.abc import Iterator

HOST = "127.0.0.1"
LOWEST, HIGHEST = 20000, 32000
"""Below Linux's ephemeral ports: a server binds most of its ports long after they were
chosen, and an outgoing connection must not take one meanwhile."""


def free_ports() -> Iterator[int]:
    """Yield different ports that nobody listens on."""
    # Not seeded: two runs that start together should not try the same ports.
    for port in random.SystemRandom().sample(range(LOWEST, HIGHEST), HIGHEST - LOWEST):
        if _is_free(port):
            yield port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
