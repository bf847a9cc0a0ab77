"""What a server holds on to when it has nothing to do, and whether that has grown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from moriio_observed.demo.metrics import Scrape, scrape
from moriio_observed.demo.server import Server

HELD = (
    "vllm:kv_cache_usage_perc",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "moriio_reads_in_flight",
    "moriio_quarantined_blocks",
    "moriio_deferred_sends",
)
"""Gauges that are 0 on a server that has nothing to do."""

MEMORY_SLACK_MIB = 64.0
"""How much a server may have grown: by what its allocators keep. Servers here cache little of what
oneDNN compiles for each new length of a prompt, see `modes`."""
THREADS_SLACK = 8
"""Of thread pools that grow with the most requests at once."""
FILES_SLACK = 8
"""Connections that are just being closed."""


@dataclass(frozen=True)
class Level:
    """One server at one time.

    Attributes:
        server: Its name.
        held: The gauges of `HELD` that it has.
        memory_mib: Resident memory of all its processes, MiB.
        threads: Their threads.
        files: Their open file descriptors.
    """

    server: str
    held: Mapping[str, float]
    memory_mib: float
    threads: int
    files: int

    @property
    def idle(self) -> bool:
        """Whether nothing is held any more."""
        return not any(self.held.values())


def level(server: Server) -> Level:
    """Look at a server now."""
    processes = list(_tree(server.pid))
    status = [_status(process) for process in processes]
    return Level(
        server.name,
        _held(scrape(server.ports.url)),
        memory_mib=sum(int(one["VmRSS"].split()[0]) for one in status) / 1024,
        threads=sum(int(one["Threads"]) for one in status),
        files=sum(len(list((process / "fd").iterdir())) for process in processes),
    )


def grown(before: Level, after: Level) -> list[str]:
    """What a server holds now beyond what it held before and may hold."""
    found = [f"{after.server}: {name} is {value:g}" for name, value in after.held.items() if value]
    for what, was, now, slack in (
        ("MiB of memory", before.memory_mib, after.memory_mib, MEMORY_SLACK_MIB),
        ("threads", before.threads, after.threads, THREADS_SLACK),
        ("open files", before.files, after.files, FILES_SLACK),
    ):
        if now > was + slack:
            found.append(f"{after.server}: {now:.0f} {what}, {was:.0f} before")
    return found


def _held(have: Scrape) -> dict[str, float]:
    names = {name for name, _ in have.samples}
    return {name: have.total(name) for name in HELD if name in names}


def _tree(pid: int) -> Iterator[Path]:
    """A process and all its descendants, as folders of /proc."""
    process = Path("/proc") / str(pid)
    yield process
    for task in (process / "task").iterdir():
        for child in (task / "children").read_text().split():
            yield from _tree(int(child))


def _status(process: Path) -> dict[str, str]:
    lines = (process / "status").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}
