"""The servers of one vLLM version: two prefill engines, and one decode engine after another."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from moriio_observed.demo.client import PairClient
from moriio_observed.demo.errors import DemoError
from moriio_observed.demo.pair import Fleet
from moriio_observed.demo.server import Ports, Server, ServerSettings

Say = Callable[[str], None]

PREFILL_CORE, DECODE_CORE = 0, 1


class Servers:
    """Starts what is missing, and what was killed on the ports it had.

    Args:
        fleet: Ends them all.
        label: Begins the name of each, and of its log.
        prefill: The prefill engine.
        short: The one that soon gives a prompt's blocks to another; None where nobody needs it.
    """

    def __init__(
        self, fleet: Fleet, label: str, prefill: ServerSettings, short: ServerSettings | None
    ) -> None:
        self._fleet = fleet
        self._label = label
        self._boots = count(1)
        self._prefill = self._start("prefill", prefill, core=PREFILL_CORE)
        self._short = self._start("short", short, core=PREFILL_CORE) if short else None
        # Started, and not waited for yet.
        self._starting = [server for server in (self._prefill, self._short) if server]
        self._decode: Server | None = None
        self._next: Server | None = None
        self.faults = fleet.faults

    @property
    def prefill(self) -> Server:
        """The prefill engine, dead or alive."""
        return self._prefill

    @property
    def decode(self) -> Server:
        """The decode engine."""
        if self._decode is None:
            raise DemoError("no decode engine was started")
        return self._decode

    @property
    def client(self) -> PairClient:
        """Asks the pair."""
        return PairClient(self._prefill.ports, self.decode.ports)

    @property
    def short_client(self) -> PairClient:
        """Asks the decode engine and the prefill engine with the short lease."""
        if self._short is None:
            raise DemoError("no prefill engine with a short lease was started")
        return PairClient(self._short.ports, self.decode.ports)

    def decode_as(self, settings: ServerSettings, *, prefill: bool = True) -> None:
        """Have a decode engine with these settings, and wait until all serve.

        Args:
            settings: Its settings; a running one that has them stays.
            prefill: Whether a prefill engine that was killed is started again.
        """
        if self._decode and not (self._decode.running and self._decode.settings == settings):
            self._fleet.stop(self._decode)
            self._decode = None
        if self._decode is None:
            self.boot_ahead(settings)
            self._decode, self._next = self._next, None
            self._starting += filter(None, [self._decode])
        if prefill and not self._prefill.running:
            self._prefill = self._again(self._prefill, "prefill", PREFILL_CORE)
        self._wait()

    def boot_ahead(self, settings: ServerSettings) -> None:
        """Start the decode engine that is needed next, while the present one serves."""
        if self._next and self._next.settings != settings:
            self._fleet.stop(self._next)
            self._next = None
        self._next = self._next or self._start("decode", settings, core=DECODE_CORE)

    def kill_prefill(self) -> None:
        """Kill the prefill engine; its blocks and its memory are gone."""
        self._kill(self._prefill)

    def restart_prefill(self) -> None:
        """Start the prefill engine again, on the ports it had, having killed it if it runs."""
        self.kill_prefill()
        self._prefill = self._again(self._prefill, "prefill", PREFILL_CORE)
        self._wait()

    def restart_decode(self) -> None:
        """Kill the decode engine and start it again, on the ports it had."""
        self._kill(self.decode)
        self._decode = self._again(self.decode, "decode", DECODE_CORE)
        self._wait()

    def stop(self) -> None:
        """End them all."""
        self._fleet.stop(*filter(None, (self._prefill, self._short, self._decode, self._next)))

    def _kill(self, server: Server) -> None:
        if server.running:
            server.kill()
            self._fleet.stop(server)

    def _again(self, server: Server, name: str, core: int) -> Server:
        again = self._start(name, server.settings, server.ports, core)
        self._starting.append(again)
        return again

    def _start(
        self, name: str, settings: ServerSettings, ports: Ports | None = None, core: int = 0
    ) -> Server:
        full_name = f"{self._label}-{next(self._boots):02}-{name}"
        return self._fleet.start(full_name, settings, ports, core)

    def _wait(self) -> None:
        if self._starting:
            self._fleet.wait_ready(*self._starting)
            self._starting = []
