"""The faults of the fault table that reach probes, whatever the canary asks."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from itertools import count
from threading import Event
from typing import Any

from moriio_observed.canary.metrics import Result
from moriio_observed.demo.client import Answer
from moriio_observed.demo.metrics import scrape
from moriio_observed.demo.phases import SLOW_READS
from moriio_observed.demo.workload import prompts
from tests.canary.routes import Route, late, past_the_prefill_engine, stale, twice
from tests.canary.stage import ROUND
from tests.faults.modes import BARE, LEASE_S, REPORT, Decode
from tests.faults.rows import (
    LATE_LAYER,
    ONE_FAILS,
    TENTH_FAILS,
    meanwhile,
    taking,
)
from tests.faults.servers import Servers
from tests.monitoring import eventually

Harm = Callable[[Servers], AbstractContextManager[None]]

LEAVERS = 26
"""Their prompts nearly fill the decode engine's cache."""
CROWD, CROWD_TOKENS = 32, 400
"""More long answers than the decode engine's cache can hold, for as long as a round takes."""
BEGUN = 8
"""So many of them running are a crowd."""
ALL_LATE_S, LATE_LAYER_S = 3.0, 5.0
"""How late the reads of these faults land, seconds."""
MID_READ_S = 1.8
"""So long reads take that begin within a lease and end after it, seconds."""
HUNG_FOR_MOST = {
    "reset_ordinals": True,
    "rules": [{"requests": list(range(3, ROUND)), "layers": [3], "hang": True}],
}
"""Of most probes of a round, where the fault table harms two requests: one in twelve that lacked
that layer answered right all the same, so a canary need not notice two. They are counted and named
even then."""


@dataclass(frozen=True)
class Play:
    """One fault, as a deployment has it.

    Attributes:
        name: Its name in the fault table, if it is there.
        harm: Harms the deployment while its block lasts.
        mode: The decode engine's.
        decode: What the decode engine needs beyond that.
        route: How probes reach the decode engine; None: as they should.
        short_lease: Whether they are prefilled on the engine with the short lease.
        shows: What some probe must be; None: wrong in any way.
        lingers_s: How long after its end a read may still land on an engine that does not tell
            how many are in flight, seconds.
    """

    name: str
    harm: Harm
    mode: str = BARE
    decode: Decode = Decode.USUAL
    route: Route | None = None
    short_lease: bool = False
    shows: Result | None = None
    lingers_s: float = 0.0


def reads(faults: Mapping[str, Any]) -> Harm:
    """Reads are harmed so."""

    @contextmanager
    def harm(servers: Servers) -> Iterator[None]:
        servers.faults.set(faults)
        try:
            yield
        finally:
            servers.faults.clear()

    return harm


@contextmanager
def nothing(_: Servers) -> Iterator[None]:
    """Nothing is harmed."""
    yield


@contextmanager
def clients_leave(servers: Servers) -> Iterator[None]:
    """Others have hung up in mid-transfer; probes get their blocks."""
    held = servers.client.hold(prompts(zlib.crc32(b"leavers"), LEAVERS))
    servers.faults.set(LATE_LAYER)
    replace(servers.client, patience_s=3.0).resume(held)
    servers.faults.clear()
    yield


@contextmanager
def crowd(servers: Servers) -> Iterator[None]:
    """Others ask for long answers meanwhile, so many that requests are preempted."""
    asked = prompts(time.time_ns(), CROWD)
    with meanwhile(lambda: servers.client.ask(asked, CROWD_TOKENS)) as answering:
        eventually(lambda: _is_crowded(servers, answering), "a crowd")
        yield


def _is_crowded(servers: Servers, answering: Future[list[Answer]]) -> bool:
    running = scrape(servers.decode.ports.url).total("vllm:num_requests_running")
    return running >= BEGUN or answering.done()


def recycled(harmed: Harm) -> Harm:
    """So harmed, while others need the blocks of the prefill engine with the short lease."""

    @contextmanager
    def harm(servers: Servers) -> Iterator[None]:
        over = Event()

        def others() -> list[Answer]:
            for seed in count(time.time_ns()):
                if over.is_set():
                    break
                servers.short_client.reference(prompts(seed), max_tokens=1)
            return []

        with meanwhile(others):
            try:
                with harmed(servers):
                    yield
            finally:
                over.set()

    return harm


SALAD = (
    Play("plain request to D", nothing, route=past_the_prefill_engine),
    Play("hung layer", reads(HUNG_FOR_MOST)),
    Play("all late", reads(taking(ALL_LATE_S)), lingers_s=ALL_LATE_S),
    Play("preemption", crowd),
    Play("late landing into reused blocks", reads(LATE_LAYER), lingers_s=LATE_LAYER_S),
    Play("stale params", recycled(nothing), route=late(LEASE_S + 2), short_lease=True),
    Play(
        "lease ends in mid-read",
        recycled(reads(taking(MID_READ_S))),
        route=late(LEASE_S - 1),
        short_lease=True,
    ),
    Play("duplicate transfer id", recycled(nothing), route=twice(2.0), short_lease=True),
)
"""What is wrong with a bare decode engine, and told but not prevented in mode report."""

PLAYS = (
    Play("one failed read", reads(ONE_FAILS)),
    Play("10 % failed reads", reads(TENTH_FAILS)),
    *SALAD,
    Play("client leaves in mid-transfer", clients_leave, lingers_s=LATE_LAYER_S),
    Play("slow, FULL graphs", reads(SLOW_READS), decode=Decode.FULL_GRAPHS),
    Play("slow, barrier off", reads(SLOW_READS), mode=REPORT, decode=Decode.BARRIER_OFF),
    *(replace(play, mode=REPORT) for play in SALAD),
    Play("another prompt's KV", nothing, mode=REPORT, route=stale, shows=Result.SWAPPED),
)
"""In the order in which decode engines play them: bare upstream's, then ours."""

LEFT_OUT = {
    "prefix cache, hits on unlanded": "a probe's cache_salt keeps it out of every prefix cache",
}
"""What gives wrong answers in the fault table and reaches no probe, and why."""
OF_OUR_OWN = frozenset({"another prompt's KV"})
"""What no row of the table can be: valid KV, all of it read in time."""
