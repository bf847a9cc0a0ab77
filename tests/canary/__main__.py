"""The canary's promises on real pairs: ``make canary``. Exits 1 with what is broken.

Every fault that reaches probes is noticed within two rounds, and of 500 probes of a healthy pair
none is wrong. Takes several minutes.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from moriio_observed.canary.errors import CanaryError
from moriio_observed.canary.http import Http
from moriio_observed.canary.metrics import Result, RoundResult
from moriio_observed.canary.rounds import Prober, Round
from moriio_observed.demo.errors import DemoError
from moriio_observed.demo.metrics import scrape
from moriio_observed.demo.pair import Fleet
from tests.canary.plays import PLAYS, Play
from tests.canary.stage import ALIKE, USUAL, prober, recorded
from tests.faults.modes import (
    BARE,
    INSTALLED,
    REPORT,
    Decode,
    decode_settings,
    prefill_settings,
    short_settings,
)
from tests.faults.servers import Servers

BUILD = Path(__file__).parents[2] / "build"
PATIENCE_ROUNDS = 2
HEALTHY_PROBES = 500
WELL_ROUNDS = 20
"""After so many rounds without harm the pair must have been right: each takes a second or two, and
a read that hangs is given up within six."""


def say(text: str) -> None:
    print(text, flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.canary", description=__doc__)
    names = sorted({play.name for play in PLAYS})
    parser.add_argument("--fault", action="append", choices=names, help="only this; repeatable")
    parser.add_argument("--healthy", action="store_true", help="only the healthy pair")
    return parser.parse_args()


class Stage:
    """The pair, and what its engines answer when they are well.

    Args:
        http: Asks them.
        servers: The engines.
    """

    def __init__(self, http: Http, servers: Servers) -> None:
        self.http = http
        self.servers = servers
        servers.decode_as(decode_settings(REPORT, INSTALLED))
        self.usual, self.alike = (
            recorded(http, servers.client, prompts) for prompts in (USUAL, ALIKE)
        )

    def healthy(self, probes: int) -> list[str]:
        """Probe a healthy pair; give what should not be."""
        self.servers.decode_as(decode_settings(REPORT, INSTALLED))
        probing = self._prober()
        found: Counter[Result] = Counter()
        while found.total() < probes:
            found.update(probe.result for probe in probing.round().probes)
        say(f"healthy: {_told(found)}")
        wrong = found.total() - found[Result.MATCH]
        return [f"nothing was harmed, yet {wrong} probes do not match"] if wrong else []

    def play(self, one: Play) -> list[str]:
        """Play one fault; give what should not be."""
        servers = self.servers
        servers.decode_as(decode_settings(one.mode, INSTALLED, one.decode))
        client = servers.short_client if one.short_lease else servers.client
        golden = self.usual if one.shows is None else self.alike
        target = one.route and one.route(self.http, client)
        probing = prober(self.http, client, golden, target)
        with one.harm(servers):
            rounds = _until_noticed(probing)
        ended = time.monotonic()
        found = Counter(probe.result for done in rounds for probe in done.probes)
        noticed = rounds[-1].result is RoundResult.WRONG
        name = f"{one.name}, {one.mode}"
        verdict = f"{'noticed' if noticed else 'NOT noticed'} in round {len(rounds)}"
        say(f"{name}: {verdict}: {_told(found)}")
        problems = [] if noticed else [f"{name}: not noticed within {PATIENCE_ROUNDS} rounds"]
        if one.shows is not None and not found[one.shows]:
            problems.append(f"{name}: no probe is {one.shows}")
        return problems + self._end(one, ended)

    def _end(self, one: Play, ended: float) -> list[str]:
        """Wait until no read of a fault is left, and the pair is well again."""
        if one.decode is not Decode.USUAL:
            # Its decode engine has no barrier: it is never well, and nobody uses it again.
            return []
        if one.mode == BARE:
            # Upstream does not tell what is in flight.
            time.sleep(max(0.0, ended + one.lingers_s - time.monotonic()))
        probing = self._prober()
        for _ in range(WELL_ROUNDS):
            right = probing.round().result is RoundResult.RIGHT
            now = scrape(self.servers.decode.ports.url)
            if right and now.total("moriio_reads_in_flight") == 0:
                return []
        return [f"{one.name}, {one.mode}: over, and yet not right in {WELL_ROUNDS} rounds"]

    def _prober(self) -> Prober:
        return prober(self.http, self.servers.client, self.usual)


def _until_noticed(probing: Prober) -> list[Round]:
    rounds = [probing.round()]
    while rounds[-1].result is not RoundResult.WRONG and len(rounds) < PATIENCE_ROUNDS:
        rounds.append(probing.round())
    return rounds


def _told(found: Counter[Result]) -> str:
    return ", ".join(f"{count} {result}" for result, count in found.items())


def run(chosen: argparse.Namespace, fleet: Fleet) -> Sequence[str]:
    """Play what was chosen."""
    plays = [
        play
        for play in PLAYS
        if not chosen.healthy and (not chosen.fault or play.name in chosen.fault)
    ]
    short = short_settings(INSTALLED) if any(play.short_lease for play in plays) else None
    servers = Servers(fleet, "canary", prefill_settings(INSTALLED), short)
    with Http(timeout_s=120) as http:
        stage = Stage(http, servers)
        found = [] if chosen.fault else stage.healthy(HEALTHY_PROBES)
        for play in plays:
            found += stage.play(play)
    servers.stop()
    return found


def main() -> int:
    chosen = arguments()
    try:
        with Fleet(BUILD / "canary", say) as fleet:
            found = run(chosen, fleet)
    except (CanaryError, DemoError) as error:
        say(f"could not go on: {error}")
        return 1
    for problem in found:
        say(f"NOT AS PROMISED: {problem}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
