"""The fault table: ``python -m tests.faults``; `make faults` runs it. Exits 1 with the reasons."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from moriio_observed.demo.errors import DemoError
from moriio_observed.demo.pair import Fleet
from tests.faults.crowd import crowd
from tests.faults.modes import INSTALLED, MODES, OLDER, prefill_settings
from tests.faults.rows import FAST, FAULTS, Fault
from tests.faults.run import play_all, servers_for, wrong_when_bare
from tests.faults.servers import Servers
from tests.faults.soak import soak
from tests.faults.table import problems, sentence, table, write_json
from tests.faults.verdict import Row

BUILD = Path(__file__).parents[2] / "build"
SOAK_REQUESTS, SOAK_HANGS = 2000, 50


def say(text: str) -> None:
    print(text, flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    names = [fault.name for fault in FAULTS]
    parser.add_argument("--fast", action="store_true", help="the few that make test can afford")
    parser.add_argument(
        "--healthy", action="store_true", help="no table: healthy traffic in every barrier mode"
    )
    parser.add_argument("--soak", action="store_true", help="no table: many requests, then levels")
    parser.add_argument("--fault", action="append", choices=names, help="only this; repeatable")
    parser.add_argument("--mode", action="append", choices=MODES, help="only this; repeatable")
    parser.add_argument("--vllm", help=f"only on this version; {INSTALLED} is installed")
    return parser.parse_args()


def run(chosen: argparse.Namespace, fleet: Fleet) -> list[Row]:
    """Play what was chosen; what bare upstream answers wrong on the older version as well."""
    names = FAST if chosen.fast else {fault.name for fault in FAULTS}
    faults = [fault for fault in FAULTS if fault.name in (chosen.fault or names)]
    rows = play_on(chosen.vllm or INSTALLED, faults, chosen, fleet)
    again = [] if chosen.vllm or chosen.fast else wrong_when_bare(rows, faults)
    return rows + (play_on(OLDER, again, chosen, fleet) if again else [])


def play_on(
    vllm: str, faults: Sequence[Fault], chosen: argparse.Namespace, fleet: Fleet
) -> list[Row]:
    """Play on one version."""
    servers = servers_for(fleet, faults, vllm)
    rows = []
    for row in play_all(servers, faults, vllm, chosen.mode or MODES):
        say(sentence(row))
        rows.append(row)
    servers.stop()
    return rows


def run_soak(fleet: Fleet) -> list[str]:
    """The long soak."""
    servers = Servers(fleet, "soak", prefill_settings(INSTALLED), None)
    return soak(servers, INSTALLED, SOAK_REQUESTS, SOAK_HANGS, say)


def run_healthy(fleet: Fleet) -> list[str]:
    """Healthy traffic."""
    return crowd(Servers(fleet, "healthy", prefill_settings(INSTALLED), None), say)


def finish(rows: Sequence[Row]) -> list[str]:
    """Print and write the table, and give what is wrong with it."""
    write_json(rows, BUILD / "faults.json")
    say(f"\n{table(rows)}\n\nrows: {BUILD / 'faults.json'}")
    return problems(rows)


def main() -> int:
    chosen = arguments()
    started = time.monotonic()
    try:
        with Fleet(BUILD / "faults", say) as fleet:
            if chosen.healthy:
                found = run_healthy(fleet)
            else:
                found = run_soak(fleet) if chosen.soak else finish(run(chosen, fleet))
    except DemoError as error:
        say(f"could not go on: {error}")
        return 1
    except KeyboardInterrupt:
        say("stopped")
        return 130
    say(f"{time.monotonic() - started:.0f} s")
    for problem in found:
        say(f"NOT AS PROMISED: {problem}")
    if not found:
        say("all as promised")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
