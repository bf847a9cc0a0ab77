"""An HTTP server for scrapes that no client can hold up, nor its own end."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any, cast

THREAD = "moriio_observed endpoint"
CLIENT_TIMEOUT_S = 10.0
"""How long a client may neither send nor take anything, seconds."""
MOST_CLIENTS = 8
"""How many are served at once; one more and the oldest is cut off."""
JOIN_S = 1.0
PAUSE_S = 0.1
HIGHEST_PORT = 65535


class ScrapeServer(ThreadingTCPServer):
    """Listens from its creation, answers from `start`, each client on a thread of its own.

    Args:
        host: Where to listen: an address or a name.
        port: Where to listen; 0: any free port.
        handler: Makes an answer.
        failed: Gets the errors that are no client's doing, on any thread.

    Raises:
        OSError: It cannot listen there.
    """

    # A port is free again at once after a restart, though old connections linger.
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def __init__(
        self,
        host: str,
        port: int,
        handler: type[BaseHTTPRequestHandler],
        failed: Callable[[BaseException], None],
    ) -> None:
        if port > HIGHEST_PORT:
            raise OSError(f"there is no port above {HIGHEST_PORT}")
        # IPv4 first: a container without IPv6 may still have an IPv6 localhost in its hosts file.
        self.address_family, _, _, _, address = min(
            socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        )
        self._failed = failed
        self._lock = threading.Lock()
        self._clients: dict[socket.socket, None] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._serve, name=THREAD, daemon=True)
        super().__init__(cast("tuple[str, int]", address), handler)

    def start(self) -> None:
        """Answer from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Free the port and cut off whoever is still being served."""
        self._stopped.set()
        # Wakes the thread that waits for a client, at once and without a thread that polls.
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        if self._thread.is_alive():
            self._thread.join(JOIN_S)
        self.server_close()
        with self._lock:
            for client in self._clients:
                _cut(client)

    def let_go(self) -> None:
        """Close what a forked child has inherited; its parent goes on serving."""
        # No lock: in the child nobody is left to give it back.
        for each in (self.socket, *self._clients):
            each.close()

    def _serve(self) -> None:
        while not self._stopped.is_set():
            self.handle_request()

    # What socketserver calls.

    def server_bind(self) -> None:
        """Bind; an IPv6 address that stands for all stands for IPv4's, too."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a client."""
        try:
            return super().get_request()
        except OSError:
            # Too many open files, for example: the client is still there to be accepted.
            self._stopped.wait(PAUSE_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a client on a thread of its own."""
        with self._lock:
            if len(self._clients) >= MOST_CLIENTS:
                oldest = next(iter(self._clients))
                del self._clients[oldest]
                _cut(oldest)
            self._clients[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Forget a client that has been served."""
        with self._lock:
            self._clients.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """A client that went away is no error of ours."""
        error = sys.exception()
        if error is not None and not isinstance(error, OSError):
            self._failed(error)


def _cut(client: socket.socket) -> None:
    """End a connection under the thread that serves it."""
    with contextlib.suppress(OSError):
        client.shutdown(socket.SHUT_RDWR)
