import socket
import threading

import pytest

from moriio_observed.demo import web


def test_a_server_that_does_not_speak_http_is_an_os_error():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

        def answer() -> None:
            connection, _ = other.accept()
            with connection:
                connection.recv(1024)
                connection.sendall(b"\x00\x01 not http\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(OSError, match="something else than HTTP"):
            web.get(f"http://127.0.0.1:{port}/")
        thread.join()
