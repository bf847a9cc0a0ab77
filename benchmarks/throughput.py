"""Decode throughput on a real pair, observed over bare: ``python -m benchmarks.throughput``.

One prefill engine serves three decode engines: bare upstream's, ours as it comes, and ours with
every request traced and metrics sent to a collector where nobody listens. First bare upstream's and
the last are loaded for minutes: how much more ours has grown, and what it counts as lost.

Then all decode, on one core, and all over again with new processes in another order: two processes
of the same kind can differ by more than any number of rounds of theirs would tell, so what is
compared, and what the interval is of, is one start with another. In each, all decode the same
prompts at the same time: whatever slows the machine then slows all, and the processor time that
each takes for its tokens tells a difference for which runs in turns are too noisy here. They
decode in turns as well, which tells what no processor time does: whether one of them waits more.

Exits 1 when a budget of design.md is not kept.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.decoding import (
    AT_ONCE,
    STEADY,
    WARM_UP_S,
    Cost,
    Side,
    decode,
    load,
    say,
    together,
)
from benchmarks.result import Row, merge, paired, throughput
from moriio_observed.accept.interval import REACHED, WIDTH
from moriio_observed.demo.client import PairClient
from moriio_observed.demo.errors import DemoError
from moriio_observed.demo.metrics import scrape
from moriio_observed.demo.pair import Fleet
from moriio_observed.demo.ports import HOST
from moriio_observed.demo.server import BARE, Server, ServerSettings, transfer_config
from moriio_observed.demo.workload import prompts
from tests.faults.levels import MEMORY_SLACK_MIB, Level, level

BUILD = Path(__file__).parents[1] / "build" / "throughput"
TOKENS = 512
"""Of each answer."""
DECODES_ON = 1
"""The core of all decode engines, with all their processes; all else is on the first one. Where the
kernel happens to put them moves the throughput of a run by half."""
EVERYTHING = {"otlp": {"sample_ratio": 1}}
BARE_SIDE, OURS, DEAD = SIDES = ("bare", "ours", "dead")

Costs = Mapping[str, Cost]
"""Of each side, for the same prompts."""


def dead_end() -> dict[str, str]:
    """Variables that send everything to a port where nobody listens: 1 needs root to be bound."""
    return STEADY | {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{HOST}:1"}


@dataclass(frozen=True)
class Growth:
    """What a server has taken under load: memory in MiB, and threads."""

    memory_mib: float
    threads: int

    @classmethod
    def between(cls, before: Level, after: Level) -> Growth:
        """The growth from one time to another."""
        return cls(after.memory_mib - before.memory_mib, after.threads - before.threads)


@dataclass
class Found:
    """What was measured.

    Attributes:
        growths: Upstream's, and ours with the dead collector.
        lost_spans: How many that one has counted as lost.
        at_once: Of each start, the rounds in which all have decoded at the same time.
        in_turns: Of each start, the rounds in which they have decoded in turns.
    """

    growths: tuple[Growth, Growth]
    lost_spans: float
    at_once: list[list[Costs]] = field(default_factory=list)
    in_turns: list[list[Costs]] = field(default_factory=list)


class Bench:
    """One start of a prefill engine and of all decode engines.

    Args:
        fleet: Where they run.
        order: In which the decode engines are started, and take turns.
        warm_up_s: Seconds of load on each before anything is measured.
    """

    def __init__(self, fleet: Fleet, order: Sequence[str], warm_up_s: float) -> None:
        self._fleet = fleet
        os.sched_setaffinity(0, {0})
        prefill = fleet.start("prefill", ServerSettings(transfer_config("kv_producer"), env=STEADY))
        os.sched_setaffinity(0, {DECODES_ON})
        starts: dict[str, Callable[[], Server]] = {
            BARE_SIDE: lambda: self._start("decode-bare", STEADY, connector=BARE),
            OURS: lambda: self._start("decode", STEADY),
            DEAD: lambda: self._start("decode-dead", dead_end(), observed=EVERYTHING),
        }
        servers = {name: starts[name]() for name in order}
        os.sched_setaffinity(0, {0})
        fleet.wait_ready(prefill, *servers.values())
        self.sides = {
            name: Side(server, PairClient(prefill.ports, server.ports))
            for name, server in servers.items()
        }
        for side in self.sides.values():
            load(side.client, warm_up_s, TOKENS)

    def _start(self, name: str, env: dict[str, str], **how: Any) -> Server:
        settings = ServerSettings(transfer_config("kv_consumer", **how), env=env)
        return self._fleet.start(name, settings, core=DECODES_ON)

    def loaded(self, minutes: float) -> Found:
        """Load both at once, so that one is not older than the other; see what has grown."""
        sides = [self.sides[name] for name in (BARE_SIDE, DEAD)]
        before = [level(side.server) for side in sides]
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda side: load(side.client, minutes * 60, TOKENS), sides))
        bare, dead = map(Growth.between, before, [level(side.server) for side in sides])
        have = scrape(self.sides[DEAD].server.ports.url)
        return Found((bare, dead), have.total("moriio_telemetry_dropped_total", signal="traces"))

    def at_once(self, number: int) -> Costs:
        """All decode at the same time."""
        costs = together(list(self.sides.values()), prompts(number, AT_ONCE), TOKENS)
        return dict(zip(self.sides, costs, strict=True))

    def in_turns(self, number: int) -> Costs:
        """Each decodes alone; the prefill engine has the prompts of the later ones cached."""
        asked = prompts(number, AT_ONCE)
        order = list(self.sides) if number % 2 else list(reversed(self.sides))
        return {name: decode(self.sides[name], asked, TOKENS) for name in order}


def run(minutes: float, starts: int, rounds: int) -> Found:
    """Load two for so many minutes, then measure so many rounds of each kind in every start.

    Raises:
        ValueError: Nothing was to be started.
    """
    found = None
    orders = list(itertools.permutations(SIDES))
    for start in range(starts):
        with Fleet(BUILD, say) as fleet:
            bench = Bench(fleet, orders[start % len(orders)], WARM_UP_S)
            found = found or bench.loaded(minutes)
            seeds = range(start * rounds, (start + 1) * rounds)
            found.at_once.append([bench.at_once(seed) for seed in seeds])
            found.in_turns.append([bench.in_turns(starts * rounds + seed) for seed in seeds])
        for name in (OURS, DEAD):
            say(
                f"start {start + 1} of {starts}, {name} / bare: tokens per second of processor "
                f"time {_ratio(found.at_once[-1], name, _processor_rate):.4f}, by the clock in "
                f"turns {_ratio(found.in_turns[-1], name, _rate):.3f}"
            )
    if found is None:
        raise ValueError("at least one start is needed")
    return found


def _rate(cost: Cost) -> float:
    return cost.rate


def _processor_rate(cost: Cost) -> float:
    return cost.processor_rate


def _share(cost: Cost) -> float:
    return 100 * cost.processor_s / cost.clock_s


def _mean(rounds: Sequence[Costs], name: str, what: Callable[[Cost], float]) -> float:
    return statistics.geometric_mean([what(costs[name]) for costs in rounds])


def _ratio(rounds: Sequence[Costs], name: str, what: Callable[[Cost], float]) -> float:
    return _mean(rounds, name, what) / _mean(rounds, BARE_SIDE, what)


def rows(found: Found) -> tuple[list[Row], list[Row]]:
    """The rows that have a budget, and those that stand beside them."""
    budgeted, beside = [], []
    for name, dead in ((OURS, ""), (DEAD, " with a dead collector")):

        def sides(
            starts: list[list[Costs]], what: Callable[[Cost], float], name: str = name
        ) -> tuple[list[float], list[float]]:
            ours, bare = (
                [_mean(rounds, side, what) for rounds in starts] for side in (name, BARE_SIDE)
            )
            return ours, bare

        decoding = f"decode throughput{dead}"
        budgeted.append(
            throughput(
                f"{decoding}, per second of processor time, all at once",
                "tokens/s",
                *sides(found.at_once, _processor_rate),
            )
        )
        beside += [
            paired(
                f"{decoding}, by the clock, in turns", "tokens/s", *sides(found.in_turns, _rate)
            ),
            paired(
                f"share of its core in use while decoding{dead}, in turns",
                "%",
                *sides(found.in_turns, _share),
            ),
        ]
    return budgeted, beside


def judge(budgeted: Sequence[Row], beside: Sequence[Row], found: Found) -> list[str]:
    """Say what came of it; give what is over budget."""
    over = []
    for row in budgeted:
        low, high = row.spread or (math.nan, math.nan)
        say(
            f"{row.name}: {row.ratio:.4f}, 95 % interval over the starts {low:.4f} to {high:.4f} "
            f"(budget: it reaches {REACHED} and is at most {WIDTH} wide)"
        )
        if high < REACHED:
            over.append(row.name)
        if high - low > WIDTH:
            over.append(f"the interval's width of {row.name}")
    for row in beside:
        low, high = row.spread or (math.nan, math.nan)
        say(
            f"{row.name}: {row.bare:.4g} and {row.ours:.4g} {row.unit}, {row.ratio:.3f} "
            f"({low:.3f} to {high:.3f}; no budget)"
        )
    bare, dead = found.growths
    say(
        f"under load ours has grown by {dead.memory_mib:+.0f} MiB and {dead.threads:+} threads, "
        f"upstream's by {bare.memory_mib:+.0f} MiB and {bare.threads:+} (budget: "
        f"{MEMORY_SLACK_MIB:.0f} MiB and no thread more); spans counted as lost: "
        f"{found.lost_spans:.0f}"
    )
    levels = {
        "memory": dead.memory_mib - bare.memory_mib > MEMORY_SLACK_MIB,
        "threads": dead.threads > bare.threads,
        "no loss was counted": not found.lost_spans,
    }
    return over + [what for what, is_over in levels.items() if is_over]


def main() -> int:
    """Run it; the exit code tells whether all budgets were kept."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.throughput")
    parser.add_argument("--minutes", type=float, default=10.0, help="of load before")
    parser.add_argument("--starts", type=int, default=6, help="of all engines, at least 3")
    parser.add_argument("--rounds", type=int, default=4, help="of each kind in every start")
    arguments = parser.parse_args()
    try:
        found = run(arguments.minutes, max(3, arguments.starts), max(1, arguments.rounds))
    except DemoError as error:
        say(f"could not go on: {error}")
        return 1
    budgeted, beside = rows(found)
    merge([*budgeted, *beside])
    over = judge(budgeted, beside, found)
    say(f"over budget: {', '.join(over)}" if over else "all within budget")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
