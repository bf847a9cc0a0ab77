import os
import signal
import subprocess
import sys

import pytest

from moriio_observed.demo.errors import DemoError
from moriio_observed.demo.ports import HOST, free_ports
from moriio_observed.demo.process import Process, reason, wait_ready

# Serves, and has a child in a session of its own, which outlives it unless someone ends it too.
SERVER = """
import http.server, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
    start_new_session=True)
print("child", child.pid, flush=True)
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])),
    type("Ok", (http.server.BaseHTTPRequestHandler,),
         {"do_GET": lambda self: (self.send_response(200), self.end_headers()),
          "log_message": lambda *_: None})).serve_forever()
"""

OWNER = """
import os, sys
from pathlib import Path
from moriio_observed.demo.process import Process, wait_ready
log, port, server = sys.argv[1:]
process = Process("it", [sys.executable, "-c", server, port], os.environ, Path(log),
                  f"http://127.0.0.1:{port}")
wait_ready([process], 60, say=lambda _: None)
print(process.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def log(tmp_path):
    return tmp_path / "it.log"


def start(code, log, port):
    return Process(
        "it",
        [sys.executable, "-c", code, str(port)],
        os.environ,
        log,
        f"http://{HOST}:{port}",
    )


def child_of(log):
    return int(log.read_text().split()[1])


def wait_gone(pid):
    """Wait for a process that is not ours to end; a zombie counts as ended."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    with os.fdopen(fd) as ended:
        import select

        assert select.select([ended], [], [], 60)[0], f"{pid} still runs"


def test_stopping_ends_the_command_and_what_it_started(log):
    process = start(SERVER, log, next(free_ports()))
    wait_ready([process], 60, say=lambda _: None)
    assert process.running
    process.stop()
    wait_gone(process.pid)
    wait_gone(child_of(log))
    assert not process.running


def test_nothing_survives_an_owner_that_is_killed(log):
    port = next(free_ports())
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(log), str(port), SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    pid = int(owner.stdout.readline())
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    wait_gone(pid)
    wait_gone(child_of(log))


def test_what_a_command_started_ends_even_when_the_command_died_by_itself(log):
    process = start(SERVER, log, next(free_ports()))
    wait_ready([process], 60, say=lambda _: None)
    os.kill(process.pid, signal.SIGKILL)
    wait_gone(child_of(log))
    process.stop()


def test_a_command_that_ends_while_starting_is_an_error_with_its_reason_last(log):
    process = start("raise ValueError('port taken')", log, next(free_ports()))
    with pytest.raises(DemoError) as failure:
        wait_ready([process], 60, say=lambda _: None)
    assert "it ended" in str(failure.value)
    assert str(failure.value).splitlines()[-1] == "it: ValueError: port taken"
    process.stop()


def test_a_command_that_does_not_get_ready_in_time_is_an_error(log):
    process = start("import time; time.sleep(600)", log, next(free_ports()))
    with pytest.raises(DemoError, match="not ready"):
        wait_ready([process], 0, say=lambda _: None)
    process.stop()


def test_the_reason_is_the_first_error_and_not_its_echoes():
    lines = [
        "(APIServer pid=1) WARNING 01-01 00:00:00 [x.py:1] may cause `OSError: [Errno 24] Too`",
        "(Worker pid=2) ERROR 01-01 00:00:00 [x.py:1] ours.SettingsError: bad settings:",
        "(Worker pid=2) ERROR 01-01 00:00:00 [x.py:1]   observed.barier: did you mean barrier?",
        "(Worker pid=2) ERROR 01-01 00:00:00 [x.py:1]   observed.guard: 1 is no guard",
        "(Worker pid=2) ERROR 01-01 00:00:00 [x.py:1] Traceback (most recent call last):",
        "RuntimeError: Engine core initialization failed. See root cause above.",
    ]
    assert reason(lines) == (
        "ours.SettingsError: bad settings: observed.barier: did you mean barrier?"
        " observed.guard: 1 is no guard"
    )


def test_without_an_error_the_reason_is_the_last_line():
    assert reason(["INFO starting", "Killed", ""]) == "Killed"
    assert reason([]) == "it wrote nothing"
