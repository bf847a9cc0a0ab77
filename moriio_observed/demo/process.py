"""Long-running commands that serve HTTP: started, waited for, and never left behind."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path

from moriio_observed.demo import web
from moriio_observed.demo.errors import DemoError

POLL_S = 0.25
SAY_EVERY_S = 4.0
PROBE_TIMEOUT_S = 2.0
STOP_TIMEOUT_S = 30.0
TAIL_LINES = 15
REASON_LINES = 300

LOG_PREFIX = re.compile(r"^(\(.+? pid=\d+\) )?([A-Z]+ \S+ \S+ \[\S+\] )?")
"""What vLLM puts before each line: the process, then level, time and place."""
ERROR = re.compile(r"[\w.]+(Error|Exception): .")


class Process:
    """A command that ends with `stop`, or with this Python process, whichever comes first.

    Args:
        name: What to call it in messages.
        command: The command and its arguments.
        env: Its whole environment.
        log: The file that gets its output.
        ready_url: Answers 200 once the command serves.
    """

    def __init__(
        self, name: str, command: Sequence[str], env: Mapping[str, str], log: Path, ready_url: str
    ) -> None:
        self.name = name
        self.log = log
        self._ready_url = ready_url
        log.parent.mkdir(parents=True, exist_ok=True)
        log.touch()
        self._keeper = subprocess.Popen(  # noqa: S603 - our own command
            [sys.executable, "-m", "moriio_observed.demo.keeper", str(log), *command],
            env=dict(env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self.pid = self._read_pid()

    @property
    def running(self) -> bool:
        """Whether the command still runs."""
        return self._keeper.poll() is None

    def check(self) -> None:
        """Make sure that the command still runs.

        Raises:
            DemoError: When it has ended, with the last lines it wrote.
        """
        if not self.running:
            raise DemoError(f"{self.name} ended{self.tail()}")

    def ready(self) -> bool:
        """Whether the command serves.

        Raises:
            DemoError: When it has ended, with the last lines it wrote.
        """
        self.check()
        try:
            web.get(self._ready_url, PROBE_TIMEOUT_S)
        except OSError:
            return False
        return True

    def kill(self) -> None:
        """End the command and everything it started without warning, as a crash does."""
        # The keeper made it the leader of a group of its own.
        os.killpg(self.pid, signal.SIGKILL)
        self.stop()

    def release(self) -> None:
        """Ask the command to end, without waiting for it."""
        if self._keeper.stdin:
            self._keeper.stdin.close()

    def stop(self) -> None:
        """End the command and everything it started; does nothing the second time."""
        self.release()
        try:
            self._keeper.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._keeper.kill()
            self._keeper.wait()

    def tail(self) -> str:
        """The last lines of the log as the end of an error message, the reason last."""
        lines = self.log.read_text(errors="replace").splitlines()[-REASON_LINES:]
        shown = "\n".join(f"  | {line}" for line in lines[-TAIL_LINES:])
        return f"; the end of {self.log}:\n{shown}\n{self.name}: {reason(lines)}"

    def _read_pid(self) -> int:
        if self._keeper.stdout is None:
            raise DemoError(f"{self.name}: its keeper has no output to read the pid from")
        with self._keeper.stdout as pid:
            line = pid.readline()
        if not line:
            raise DemoError(f"{self.name} could not be started")
        return int(line)


def wait_ready(
    processes: Sequence[Process], timeout_s: float, say: Callable[[str], None] = print
) -> None:
    """Wait until all processes serve, telling how long it takes.

    Args:
        processes: What was just started.
        timeout_s: How long to wait for all of them, in seconds.
        say: Gets a line for each process every few seconds.

    Raises:
        DemoError: When one ended or was not ready in time, with the last lines it wrote.
    """
    start = said = time.monotonic()
    waiting = list(processes)
    while waiting:
        now = time.monotonic()
        for process in [process for process in waiting if process.ready()]:
            waiting.remove(process)
            say(f"{process.name}: ready after {now - start:.0f} s")
        if waiting and now - start > timeout_s:
            slow = waiting[0]
            raise DemoError(f"{slow.name} is not ready after {timeout_s:.0f} s{slow.tail()}")
        if now - said >= SAY_EVERY_S:
            said = now
            for process in waiting:
                say(f"{process.name}: loading … {now - start:.0f} s")
        time.sleep(POLL_S)


def reason(log_lines: Sequence[str]) -> str:
    """What a log most likely says went wrong, in one line.

    That is the first error it reports: those after it are echoes of processes that depend on
    the one that failed.
    """
    lines = [LOG_PREFIX.sub("", line).rstrip() for line in log_lines]
    for number, line in enumerate(lines):
        if ERROR.match(line):
            details = takewhile(lambda more: more.startswith("  "), lines[number + 1 :])
            return " ".join([line, *(detail.strip() for detail in details)])
    return next((line for line in reversed(lines) if line), "it wrote nothing")
