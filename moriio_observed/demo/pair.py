"""Servers that belong together: started at once, stopped together, asked as a pair."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from moriio_observed.demo.client import PairClient
from moriio_observed.demo.faults import FaultFile
from moriio_observed.demo.model import write_model
from moriio_observed.demo.ports import free_ports
from moriio_observed.demo.process import Process, wait_ready
from moriio_observed.demo.server import Place, Ports, Server, ServerSettings, cores

BOOT_TIMEOUT_S = 300.0

AnyProcess = TypeVar("AnyProcess", bound=Process)


@dataclass(frozen=True)
class Pair:
    """A prefill and a decode server.

    Attributes:
        prefill: The producer.
        decode: The consumer.
        faults: What harms their reads.
    """

    prefill: Server
    decode: Server
    faults: FaultFile

    @property
    def client(self) -> PairClient:
        """Asks this pair."""
        return PairClient(self.prefill.ports, self.decode.ports)


class Fleet:
    """The processes of one run; leaving the `with` block ends them all.

    Args:
        build: The folder for everything the run writes.
        say: Gets progress lines.
    """

    def __init__(self, build: Path, say: Callable[[str], None] = print) -> None:
        build = build.resolve()
        self.faults = FaultFile(build / "harm.json")
        self.place = Place(build, write_model(build / "model"), self.faults.path)
        self.processes: list[Process] = []
        self._say = say
        self._free_ports = free_ports()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop(*self.processes)

    def ports(self) -> Ports:
        """Ports for one more server."""
        return Ports.take(self._free_ports)

    def port(self) -> int:
        """One free port."""
        return next(self._free_ports)

    def start(
        self, name: str, settings: ServerSettings, ports: Ports | None = None, core: int = 0
    ) -> Server:
        """Start a server, without waiting for it.

        Args:
            name: What to call it.
            settings: What makes it different from the others.
            ports: Its ports, if they have to be known before; otherwise free ones.
            core: Which of the cores at hand it gets, counted from 0; the last one if there
                are fewer.
        """
        mine = cores()
        own = ports or self.ports()
        server = Server(name, settings, self.place, own, mine[min(core, len(mine) - 1)])
        return self.add(server)

    def add(self, process: AnyProcess) -> AnyProcess:
        """Take over a process that was just started."""
        self.processes.append(process)
        return process

    def wait_ready(self, *processes: Process) -> None:
        """Wait until these processes serve.

        Raises:
            DemoError: When one does not.
        """
        wait_ready(processes, BOOT_TIMEOUT_S, self._say)

    def stop(self, *processes: Process) -> None:
        """End these processes, all at the same time."""
        for process in processes:
            process.release()
        for process in processes:
            process.stop()
        self.processes = [process for process in self.processes if process not in processes]

    def pair(self, prefill: Server, decode: Server) -> Pair:
        """Two of the servers as a pair."""
        return Pair(prefill, decode, self.faults)
