"""The canary's promises on real pairs: ``python -m tests.canary``. Exits 1 with what is broken.

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
from moriio_observed.canary.golden import Golden
from moriio_observed.canary.http import Http
from moriio_observed.canary.metrics import Result, RoundResult
from moriio_observed.canary.rounds import Prober, Round
from moriio_observed.demo.errors import DemoError
from moriio_observed.demo.pair import Fleet
from tests.canary.plays import PLAYS, Play
from tests.canary.stage import prober, recorded
from tests.faults.modes import INSTALLED, REPORT, decode_settings, prefill_settings
from tests.faults.servers import Servers

BUILD = Path(__file__).parents[2] / "build"
PATIENCE_ROUNDS = 2
HEALTHY_PROBES = 500


def say(text: str) -> None:
    print(text, flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.canary", description=__doc__)
    names = sorted({play.name for play in PLAYS})
    parser.add_argument("--fault", action="append", choices=names, help="only this; repeatable")
    parser.add_argument("--healthy", action="store_true", help="only the healthy pair")
    return parser.parse_args()


def healthy(http: Http, servers: Servers, golden: Golden, probes: int) -> list[str]:
    """Probe a healthy pair; give what should not be."""
    servers.decode_as(decode_settings(REPORT, INSTALLED))
    probing = prober(http, servers.client, golden)
    found: Counter[Result] = Counter()
    while found.total() < probes:
        found.update(probe.result for probe in probing.round().probes)
    say(f"healthy: {_told(found)}")
    wrong = found.total() - found[Result.MATCH]
    return [f"nothing was harmed, yet {wrong} probes do not match"] if wrong else []


def play(http: Http, servers: Servers, golden: Golden, one: Play) -> list[str]:
    """Play one fault; give what should not be."""
    servers.decode_as(decode_settings(one.mode, INSTALLED, one.decode))
    client = servers.client
    probing = prober(http, client, golden, one.route and one.route(http, client))
    began = time.monotonic()
    with one.harm(servers):
        rounds = _until_noticed(probing)
    time.sleep(max(0.0, began + one.lingers_s - time.monotonic()))
    found = Counter(probe.result for done in rounds for probe in done.probes)
    noticed = rounds[-1].result is RoundResult.WRONG
    name = f"{one.name}, {one.mode}"
    say(f"{name}: {'noticed' if noticed else 'NOT noticed'} in round {len(rounds)}: {_told(found)}")
    return [] if noticed else [f"{name}: not noticed within {PATIENCE_ROUNDS} rounds"]


def _until_noticed(probing: Prober) -> list[Round]:
    rounds = [probing.round()]
    while rounds[-1].result is not RoundResult.WRONG and len(rounds) < PATIENCE_ROUNDS:
        rounds.append(probing.round())
    return rounds


def _told(found: Counter[Result]) -> str:
    return ", ".join(f"{count} {result}" for result, count in found.items())


def run(chosen: argparse.Namespace, fleet: Fleet) -> Sequence[str]:
    """Play what was chosen."""
    servers = Servers(fleet, "canary", prefill_settings(INSTALLED), None)
    servers.decode_as(decode_settings(REPORT, INSTALLED))
    with Http(timeout_s=120) as http:
        golden = recorded(http, servers.client)
        found = [] if chosen.fault else healthy(http, servers, golden, HEALTHY_PROBES)
        if not chosen.healthy:
            for one in PLAYS:
                if not chosen.fault or one.name in chosen.fault:
                    found += play(http, servers, golden, one)
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
