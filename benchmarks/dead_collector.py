"""Load on a real pair whose collector is dead: ``python -m benchmarks.dead_collector``.

One prefill engine serves two decode engines, bare upstream's and ours, which traces every request
and sends metrics to an address where nobody listens. First both are loaded for minutes: how much
more than upstream's ours has grown, and what it counts as lost. Then they decode the same prompts
in turns: tokens/s, by pairs. At last they decode at the same time on one core: whatever slows the
machine then slows both, so the processor time that each takes tells a difference for which the
turns are too noisy. Exits 1 when a budget of design.md is not kept.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.processor_time import processor_time
from benchmarks.result import Row, merge, paired, throughput
from moriio_observed.accept.interval import REACHED, WIDTH
from moriio_observed.demo.client import Answer, PairClient
from moriio_observed.demo.errors import DemoError
from moriio_observed.demo.metrics import scrape
from moriio_observed.demo.pair import Fleet
from moriio_observed.demo.ports import HOST
from moriio_observed.demo.server import BARE, Server, ServerSettings, transfer_config
from moriio_observed.demo.workload import prompts
from tests.faults.levels import MEMORY_SLACK_MIB, Level, level

BUILD = Path(__file__).parents[1] / "build" / "dead-collector"
AT_ONCE, TOKENS = 16, 512
# vLLM's workers spin for a second after their last step, on the cores of whoever is measured next.
SETTLE_S = 1.2
WARM_UP_S = 30.0
TOGETHER, TOGETHER_SEED = 16, 2_000_000
"""Rounds in which both decode at the same time, and where their prompts begin."""
EVERYTHING = {"otlp": {"sample_ratio": 1}}
# oneDNN would keep what it compiles for each new length of a prompt.
STEADY = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "8"}


def say(text: str) -> None:
    """Print at once."""
    print(text, flush=True)


def tokens_of(answers: Sequence[Answer]) -> int:
    """How many tokens came.

    Raises:
        DemoError: A request failed.
    """
    for answer in answers:
        if answer.error is not None:
            raise DemoError(f"a request failed: {answer.error}")
    return sum(len(answer.tokens) for answer in answers)


def load(client: PairClient, seconds: float) -> None:
    """Keep a pair busy, and say so every minute."""
    started, tokens, told = time.monotonic(), 0, 0
    seed = 1_000_000
    while (passed := time.monotonic() - started) < seconds:
        seed += 1
        tokens += tokens_of(client.ask(prompts(seed, AT_ONCE), TOKENS))
        if passed // 60 > told:
            told = int(passed // 60)
            say(f"load for {told} min: {tokens / passed:.0f} tokens/s")


def decode_rate(client: PairClient, asked: Sequence[str], tokens: int = TOKENS) -> float:
    """Decode prompts that the prefill engine has done; gives the tokens per second."""
    held = client.hold(asked)
    time.sleep(SETTLE_S)
    started = time.monotonic()
    return tokens_of(client.resume(held, tokens)) / (time.monotonic() - started)


def together(sides: Sequence[PairClient], servers: Sequence[Server], number: int) -> list[float]:
    """Have all decode at the same time; gives the processor seconds of each."""
    held = [side.hold(prompts(TOGETHER_SEED + number, AT_ONCE)) for side in sides]
    time.sleep(SETTLE_S)
    before = [processor_time(server.pid) for server in servers]
    with ThreadPoolExecutor() as pool:
        for answers in pool.map(PairClient.resume, sides, held, [TOKENS] * len(sides)):
            tokens_of(answers)
    after = [processor_time(server.pid) for server in servers]
    return [later - earlier for earlier, later in zip(before, after, strict=True)]


def dead_end() -> dict[str, str]:
    """Variables that send everything to a port where nobody listens: 1 needs root to be bound."""
    return STEADY | {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{HOST}:1",
        "OTEL_METRIC_EXPORT_INTERVAL": "1000",
        "OTEL_BSP_SCHEDULE_DELAY": "1000",
    }


def run(fleet: Fleet, minutes: float, pairs: int) -> list[str]:
    """Load both for so many minutes, then measure so many pairs; give what is over budget."""
    # All processes of a decode engine on one core, all else on the other: where the kernel happens
    # to put them moves the throughput of a run by half.
    os.sched_setaffinity(0, {0})
    prefill = fleet.start("prefill", ServerSettings(transfer_config("kv_producer"), env=STEADY))
    os.sched_setaffinity(0, {1})
    config = transfer_config("kv_consumer", connector=BARE)
    bare = fleet.start("decode-bare", ServerSettings(config, env=STEADY), core=1)
    observed = fleet.start(
        "decode",
        ServerSettings(transfer_config("kv_consumer", observed=EVERYTHING), env=dead_end()),
        core=1,
    )
    os.sched_setaffinity(0, {0})
    fleet.wait_ready(prefill, bare, observed)
    sides = [PairClient(prefill.ports, one.ports) for one in (bare, observed)]
    for side in sides:
        load(side, WARM_UP_S)
    before = {server: level(server) for server in (bare, observed)}
    with ThreadPoolExecutor() as pool:
        # Both at once, so that one is not older than the other.
        list(pool.map(lambda side: load(side, minutes * 60), sides))
    after = {server: level(server) for server in before}
    tokens_per_s: tuple[list[float], list[float]] = ([], [])
    for number in range(pairs):
        # P has them cached the second time; what is timed comes after P.
        asked = prompts(number, AT_ONCE)
        order = (0, 1) if number % 2 else (1, 0)
        rates = {side: decode_rate(sides[side], asked) for side in order}
        for side, rate in rates.items():
            tokens_per_s[side].append(rate)
        say(
            f"pair {number + 1} of {pairs}: bare {rates[0]:.0f}, observed {rates[1]:.0f} tokens/s, "
            f"ratio {rates[1] / rates[0]:.3f}"
        )
    theirs, ours = (Growth.between(before[server], after[server]) for server in (bare, observed))
    taken = [together(sides, (bare, observed), number) for number in range(TOGETHER)]
    what = "processor time of the same tokens with a dead collector, both engines at the same time"
    seconds = paired(what, "s", [second for _, second in taken], [first for first, _ in taken])
    what = "decode throughput with a dead collector, observed / bare"
    rate = throughput(what, "tokens/s", tokens_per_s[1], tokens_per_s[0])
    merge([rate, seconds])
    low, high = seconds.spread or (math.nan, math.nan)
    say(f"{seconds.name}: {seconds.ratio:.4f}, 95 % interval {low:.4f} to {high:.4f} (no budget)")
    return judge(rate, theirs, ours, observed)


@dataclass(frozen=True)
class Growth:
    """What a server has taken under load: memory in MiB, and threads."""

    memory_mib: float
    threads: int

    @classmethod
    def between(cls, before: Level, after: Level) -> Growth:
        """The growth from one time to another."""
        return cls(after.memory_mib - before.memory_mib, after.threads - before.threads)


def judge(rate: Row, bare: Growth, ours: Growth, observed: Server) -> list[str]:
    """Say what came of it; give what is over budget."""
    low, high = rate.spread or (math.nan, math.nan)
    more = Growth(ours.memory_mib - bare.memory_mib, ours.threads - bare.threads)
    dropped = scrape(observed.ports.url).total("moriio_telemetry_dropped_total", signal="traces")
    say(
        f"{rate.name}: {rate.ratio:.3f}, 95 % interval {low:.3f} to {high:.3f} (geometric mean of "
        f"the pairs; budget: it reaches {REACHED} and is at most {WIDTH} wide)"
    )
    say(
        f"under load ours has grown by {ours.memory_mib:+.0f} MiB and {ours.threads:+} threads, "
        f"upstream's by {bare.memory_mib:+.0f} MiB and {bare.threads:+} (budget: "
        f"{MEMORY_SLACK_MIB:.0f} MiB and no thread more); spans counted as lost: "
        f"{dropped:.0f}"
    )
    found = {
        "throughput": high < REACHED,
        "the interval's width": high - low > WIDTH,
        "memory": more.memory_mib > MEMORY_SLACK_MIB,
        "threads": more.threads > 0,
        "no loss was counted": not dropped,
    }
    return [what for what, over in found.items() if over]


def main() -> int:
    """Run it; the exit code tells whether all budgets were kept."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dead_collector")
    parser.add_argument("--minutes", type=float, default=10.0, help="of load on both at once")
    parser.add_argument("--pairs", type=int, default=100, help="of measured runs, at least 10")
    arguments = parser.parse_args()
    try:
        with Fleet(BUILD, say) as fleet:
            found = run(fleet, arguments.minutes, max(10, arguments.pairs))
    except DemoError as error:
        say(f"could not go on: {error}")
        return 1
    say(f"over budget: {', '.join(found)}" if found else "all within budget")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
