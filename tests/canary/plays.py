"""The faults of the fault table that reach probes, without anybody choosing the canary's requests.

Left out is what needs a client of a certain kind, which a canary is not: params sent twice or too
late, several choices of one request, prompts that the decode engine has already.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from moriio_observed.canary.http import Http
from moriio_observed.canary.targets import Single, Target
from moriio_observed.demo.client import PairClient
from moriio_observed.demo.phases import SLOW_READS
from moriio_observed.demo.workload import prompts
from tests.faults.modes import BARE, REPORT, Decode
from tests.faults.rows import (
    ABORT_S,
    HUNG_LAYER,
    LATE_LAYER,
    ONE_FAILS,
    TENTH_FAILS,
    meanwhile,
    taking,
)
from tests.faults.servers import Servers

Harm = Callable[[Servers], AbstractContextManager[None]]
Route = Callable[[Http, PairClient], Target]

LEAVERS = 16
CROWD, CROWD_TOKENS = 32, 400
"""More long answers than the decode engine's cache can hold, for as long as a round takes."""


@dataclass(frozen=True)
class Play:
    """One fault, as a deployment has it.

    Attributes:
        name: Its name in the fault table.
        harm: Harms the deployment while its block lasts.
        mode: The decode engine's.
        decode: What the decode engine needs beyond that.
        route: How probes reach the decode engine; None: as they should.
        lingers_s: How long after its beginning a read may still land, seconds.
    """

    name: str
    harm: Harm
    mode: str = BARE
    decode: Decode = Decode.USUAL
    route: Route | None = None
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


def past_the_prefill_engine(http: Http, client: PairClient) -> Target:
    """A router that sends plain requests to a decode engine."""
    return Single(http, client.decode.url)


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
    with meanwhile(lambda: servers.client.ask(asked, CROWD_TOKENS)):
        time.sleep(1)
        yield


PLAYS = (
    Play("one failed read", reads(ONE_FAILS)),
    Play("10 % failed reads", reads(TENTH_FAILS)),
    Play("plain request to D", nothing, route=past_the_prefill_engine),
    Play("hung layer", reads(HUNG_LAYER), lingers_s=ABORT_S + 2),
    Play("all late", reads(taking(3.0)), lingers_s=ABORT_S + 2),
    Play("preemption", crowd),
    Play("client leaves in mid-transfer", clients_leave, lingers_s=ABORT_S + 2),
    Play("slow, FULL graphs", reads(SLOW_READS), decode=Decode.FULL_GRAPHS),
    Play("slow, barrier off", reads(SLOW_READS), mode=REPORT, decode=Decode.BARRIER_OFF),
    Play("hung layer", reads(HUNG_LAYER), mode=REPORT, lingers_s=ABORT_S + 2),
    Play("all late", reads(taking(3.0)), mode=REPORT, lingers_s=ABORT_S + 2),
)
"""In the order in which decode engines play them: bare upstream's, then ours."""
