"""Load on a real pair whose collector is dead: ``python -m benchmarks.dead_collector``.

One prefill engine serves two decode engines, bare upstream's and ours, which traces every request
and sends metrics to an address where nobody listens. First both are loaded for minutes: how much
more than upstream's ours has grown, and what it counts as lost.

Then they decode, both on one core, and all over again with new processes in the other order: two
processes of the same kind can differ by more than any number of rounds of theirs would tell, so
what is compared, and what the interval is of, is one start with another. In each, both decode the
same prompts at the same time: whatever slows the machine then slows both, and the processor time
that each takes for its tokens tells a difference for which runs in turns are too noisy here. They
decode in turns as well, which tells what no processor time does: whether one of them waits more.

Exits 1 when a budget of design.md is not kept.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
from collections.abc import Callable, Sequence
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

BUILD = Path(__file__).parents[1] / "build" / "dead-collector"
TOKENS = 512
"""Of each answer."""
DECODES_ON = 1
"""The core of both decode engines, with all their processes; all else is on the first one. Where
the kernel happens to put them moves the throughput of a run by half."""
EVERYTHING = {"otlp": {"sample_ratio": 1}}

Costs = tuple[Cost, Cost]
"""Of bare upstream's engine, and of ours, for the same prompts."""


def dead_end() -> dict[str, str]:
    """Variables that send everything to a port where nobody listens: 1 needs root to be bound."""
    return STEADY | {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{HOST}:1",
        "OTEL_METRIC_EXPORT_INTERVAL": "1000",
        "OTEL_BSP_SCHEDULE_DELAY": "1000",
    }


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
        growths: Upstream's, and ours.
        lost_spans: How many ours has counted as lost.
        at_once: Of each start, the rounds in which both have decoded at the same time.
        in_turns: Of each start, the rounds in which they have decoded in turns.
    """

    growths: tuple[Growth, Growth]
    lost_spans: float
    at_once: list[list[Costs]] = field(default_factory=list)
    in_turns: list[list[Costs]] = field(default_factory=list)


class Bench:
    """One start of a prefill engine and of both decode engines.

    Args:
        fleet: Where they run.
        ours_first: Which of the decode engines is started first.
        warm_up_s: Seconds of load on each before anything is measured.
    """

    def __init__(self, fleet: Fleet, *, ours_first: bool, warm_up_s: float) -> None:
        self._fleet = fleet
        os.sched_setaffinity(0, {0})
        prefill = fleet.start("prefill", ServerSettings(transfer_config("kv_producer"), env=STEADY))
        os.sched_setaffinity(0, {DECODES_ON})
        starts: dict[str, Callable[[], Server]] = {
            "bare": lambda: self._start("decode-bare", STEADY, connector=BARE),
            "ours": lambda: self._start("decode", dead_end(), observed=EVERYTHING),
        }
        servers = {name: starts[name]() for name in sorted(starts, reverse=ours_first)}
        os.sched_setaffinity(0, {0})
        fleet.wait_ready(prefill, *servers.values())
        self.bare, self.ours = (
            Side(servers[name], PairClient(prefill.ports, servers[name].ports))
            for name in ("bare", "ours")
        )
        for side in (self.bare, self.ours):
            load(side.client, warm_up_s, TOKENS)

    def _start(self, name: str, env: dict[str, str], **how: Any) -> Server:
        settings = ServerSettings(transfer_config("kv_consumer", **how), env=env)
        return self._fleet.start(name, settings, core=DECODES_ON)

    def loaded(self, minutes: float) -> Found:
        """Load both at once, so that one is not older than the other; see what has grown."""
        sides = (self.bare, self.ours)
        before = [level(side.server) for side in sides]
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda side: load(side.client, minutes * 60, TOKENS), sides))
        bare, ours = map(Growth.between, before, [level(side.server) for side in sides])
        have = scrape(self.ours.server.ports.url)
        return Found((bare, ours), have.total("moriio_telemetry_dropped_total", signal="traces"))

    def at_once(self, number: int) -> Costs:
        """Both decode at the same time."""
        bare, ours = together((self.bare, self.ours), prompts(number, AT_ONCE), TOKENS)
        return bare, ours

    def in_turns(self, number: int) -> Costs:
        """Each decodes alone; the prefill engine has the prompts of the second one cached."""
        asked = prompts(number, AT_ONCE)
        if number % 2:
            bare = decode(self.bare, asked, TOKENS)
            return bare, decode(self.ours, asked, TOKENS)
        ours = decode(self.ours, asked, TOKENS)
        return decode(self.bare, asked, TOKENS), ours


def run(minutes: float, starts: int, rounds: int) -> Found:
    """Load both for so many minutes, then measure so many rounds of each kind in every start."""
    found = None
    for start in range(starts):
        with Fleet(BUILD, say) as fleet:
            bench = Bench(fleet, ours_first=start % 2 == 1, warm_up_s=WARM_UP_S)
            found = found or bench.loaded(minutes)
            seeds = range(start * rounds, (start + 1) * rounds)
            found.at_once.append([bench.at_once(seed) for seed in seeds])
            found.in_turns.append([bench.in_turns(starts * rounds + seed) for seed in seeds])
        say(
            f"start {start + 1} of {starts}, observed / bare: tokens per second of processor time "
            f"{_ratio(found.at_once[-1], _processor_rate):.4f}, by the clock in turns "
            f"{_ratio(found.in_turns[-1], _rate):.3f}"
        )
    if found is None:
        raise ValueError("at least one start is needed")
    return found


def _rate(cost: Cost) -> float:
    return cost.rate


def _processor_rate(cost: Cost) -> float:
    return cost.processor_rate


def _share(cost: Cost) -> float:
    return cost.processor_s / cost.clock_s


def _means(rounds: Sequence[Costs], what: Callable[[Cost], float]) -> tuple[float, float]:
    bare, ours = (
        statistics.geometric_mean([what(costs[side]) for costs in rounds]) for side in (0, 1)
    )
    return bare, ours


def _ratio(rounds: Sequence[Costs], what: Callable[[Cost], float]) -> float:
    bare, ours = _means(rounds, what)
    return ours / bare


def rows(found: Found) -> tuple[Row, list[Row]]:
    """The row that has a budget, and those that stand beside it."""

    def sides(starts: list[list[Costs]], what: Callable[[Cost], float]) -> dict[str, list[float]]:
        means = [_means(rounds, what) for rounds in starts]
        return {"ours": [ours for _, ours in means], "bare": [bare for bare, _ in means]}

    dead = "with a dead collector"
    rate = throughput(
        f"decode throughput {dead}, per second of processor time, both at once",
        "tokens/s",
        **sides(found.at_once, _processor_rate),
    )
    return rate, [
        paired(
            f"decode throughput {dead}, by the clock, in turns",
            "tokens/s",
            **sides(found.in_turns, _rate),
        ),
        paired(
            f"share of its core in use while decoding {dead}, in turns",
            "",
            **sides(found.in_turns, _share),
        ),
    ]


def judge(rate: Row, beside: Sequence[Row], found: Found) -> list[str]:
    """Say what came of it; give what is over budget."""
    low, high = rate.spread or (math.nan, math.nan)
    say(
        f"{rate.name}: {rate.ratio:.4f}, 95 % interval over the starts {low:.4f} to {high:.4f} "
        f"(budget: it reaches {REACHED} and is at most {WIDTH} wide)"
    )
    for row in beside:
        lower, upper = row.spread or (math.nan, math.nan)
        say(
            f"{row.name}: {row.bare:.4g} and {row.ours:.4g} {row.unit}, {row.ratio:.3f} "
            f"({lower:.3f} to {upper:.3f}; no budget)"
        )
    bare, ours = found.growths
    say(
        f"under load ours has grown by {ours.memory_mib:+.0f} MiB and {ours.threads:+} threads, "
        f"upstream's by {bare.memory_mib:+.0f} MiB and {bare.threads:+} (budget: "
        f"{MEMORY_SLACK_MIB:.0f} MiB and no thread more); spans counted as lost: "
        f"{found.lost_spans:.0f}"
    )
    over = {
        "throughput": high < REACHED,
        "the interval's width": high - low > WIDTH,
        "memory": ours.memory_mib - bare.memory_mib > MEMORY_SLACK_MIB,
        "threads": ours.threads > bare.threads,
        "no loss was counted": not found.lost_spans,
    }
    return [what for what, is_over in over.items() if is_over]


def main() -> int:
    """Run it; the exit code tells whether all budgets were kept."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dead_collector")
    parser.add_argument("--minutes", type=float, default=10.0, help="of load on both at once")
    parser.add_argument("--starts", type=int, default=6, help="of all engines, at least 3")
    parser.add_argument("--rounds", type=int, default=6, help="of each kind in every start")
    arguments = parser.parse_args()
    try:
        found = run(arguments.minutes, max(3, arguments.starts), max(1, arguments.rounds))
    except DemoError as error:
        say(f"could not go on: {error}")
        return 1
    rate, beside = rows(found)
    merge([rate, *beside])
    over = judge(rate, beside, found)
    say(f"over budget: {', '.join(over)}" if over else "all within budget")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
