"""Real vLLM pairs for the end-to-end tests, one at a time, started when first asked for."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from moriio_observed.demo.measure import Observation
from moriio_observed.demo.metrics import Scrape, scrape
from moriio_observed.demo.pair import Fleet, Pair
from moriio_observed.demo.server import Server, ServerSettings, transfer_config

BUILD = Path(__file__).parents[2] / "build"
HERE = Path(__file__).parent

GetPair = Callable[..., Pair]

WORKER_IN_THE_ENGINE = "VLLM_ENABLE_V1_MULTIPROCESSING"
"""At 0 an engine has its only worker in its own process, as it has by default on a GPU. On CPUs
vLLM gives each a process, as in `make demo` and here where there are two, which takes half as long
again to start."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder needs a pair."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.e2e)


@dataclass
class Pairs:
    """At most one prefill and one decode server; each is kept while its settings stay."""

    fleet: Fleet
    prefill: Server | None = None
    decode: Server | None = None
    boots: int = 0

    def get(
        self, decode: ServerSettings | None = None, prefill: ServerSettings | None = None
    ) -> Pair:
        """A running pair with these settings and no faults.

        Args:
            decode: By default our connector with its default settings.
            prefill: Likewise. Its `vllm_tree` is decode's unless it is given.
        """
        decode = decode or ServerSettings(transfer_config("kv_consumer"))
        prefill = prefill or ServerSettings(
            transfer_config("kv_producer"), vllm_tree=decode.vllm_tree
        )
        prefill, decode = map(_with_its_worker, (prefill, decode))
        self._stop_unless(prefill, decode)
        fresh = []
        if self.prefill is None:
            self.prefill = self._start("prefill", prefill, core=0)
            fresh.append(self.prefill)
        if self.decode is None:
            self.decode = self._start("decode", decode, core=1)
            fresh.append(self.decode)
        try:
            self.fleet.wait_ready(*fresh)
        except BaseException:
            # The next test shall not find a server that never served.
            self._stop(*fresh)
            raise
        self.fleet.faults.clear()
        return self.fleet.pair(self.prefill, self.decode)

    def _stop_unless(self, prefill: ServerSettings, decode: ServerSettings) -> None:
        if self.prefill and not (self.prefill.running and self.prefill.settings == prefill):
            self._stop(self.prefill)
        if self.decode and not (self.decode.running and self.decode.settings == decode):
            self._stop(self.decode)

    def _stop(self, *servers: Server) -> None:
        self.fleet.stop(*servers)
        if self.prefill in servers:
            self.prefill = None
        if self.decode in servers:
            self.decode = None

    def _start(self, name: str, settings: ServerSettings, core: int) -> Server:
        # A log of its own for each boot, so that a failed test's can still be read.
        self.boots += 1
        return self.fleet.start(f"{name}-{self.boots}", settings, core=core)


def _with_its_worker(settings: ServerSettings) -> ServerSettings:
    return dataclasses.replace(settings, env={WORKER_IN_THE_ENGINE: "0", **settings.env})


@pytest.fixture(scope="session")
def fleet() -> Iterator[Fleet]:
    """The servers of this test session, all ended with it."""
    with Fleet(BUILD / "e2e") as fleet:
        yield fleet


@pytest.fixture(scope="session")
def pairs(fleet: Fleet) -> Pairs:
    """Keeps the pair of this session."""
    return Pairs(fleet)


@pytest.fixture
def pair(pairs: Pairs) -> Iterator[GetPair]:
    """Get a pair: `pair(decode=ServerSettings(...), prefill=...)`; no faults remain after."""
    yield pairs.get
    pairs.fleet.faults.clear()


@pytest.fixture
def observe() -> Callable[[Pair], Observation]:
    """What a pair's decode engine says from now on: `settled(n)` gives metrics and exposures."""
    return lambda pair: Observation(pair.decode)


@pytest.fixture
def scrape_decode() -> Callable[[Pair], Scrape]:
    """All that is on a pair's decode engine's /metrics now."""
    return lambda pair: scrape(pair.decode.ports.url)


@pytest.fixture
def released() -> Callable[[Pair, Sequence[str]], float]:
    """How many releases a pair's prefill engine counts for these prompts."""

    def ask(pair: Pair, asked: Sequence[str]) -> float:
        before = scrape(pair.prefill.ports.url)
        pair.client.ask(asked)
        # Releases travel with the prefill engine's next steps.
        pair.client.reference(asked[:1])
        return scrape(pair.prefill.ports.url).since(before).total("moriio_releases_total")

    return ask
