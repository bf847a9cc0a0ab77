"""What the fault table needs of the demo's processes and logs."""

import json
import os
import sys

import pytest

from moriio_observed.demo.exposures import EXPOSURE, LogFollower
from moriio_observed.demo.process import Process

# Says who its child is, and shrugs a termination off.
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""


def test_killing_ends_a_process_and_what_it_started_without_asking(tmp_path):
    log = tmp_path / "it.log"
    process = Process("it", [sys.executable, "-c", STUBBORN], os.environ, log, "http://127.0.0.1:1")
    while not (said := log.read_text()).endswith("\n"):
        process.check()
    process.kill()
    assert not process.running
    with pytest.raises(ProcessLookupError):
        os.kill(int(said), 0)


@pytest.mark.parametrize(("whole", "seen"), [(True, ["before", "after"]), (False, ["after"])])
def test_a_log_is_followed_from_now_on_or_read_as_a_whole(tmp_path, whole, seen):
    log = tmp_path / "it.log"
    line = f"{EXPOSURE}{json.dumps({'request_id': 'before'})}\n"
    log.write_text(line)
    follower = LogFollower(log, whole=whole)
    log.write_text(line + line.replace("before", "after"))
    assert [event["request_id"] for event in follower.events()] == seen
