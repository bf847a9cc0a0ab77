"""Load on a real pair whose collector is dead: ``python -m benchmarks.dead_collector``.

One prefill engine serves two decode engines, bare upstream's and ours, which traces every request
and sends metrics to an address where nobody listens. They are asked in turns; what is compared is
the tokens per second of each pair of turns. Exits 1 when a budget of design.md is not kept.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from pathlib import Path

from moriio_observed.demo.client import PairClient
from moriio_observed.demo.errors import DemoError
from moriio_observed.demo.metrics import scrape
from moriio_observed.demo.pair import Fleet
from moriio_observed.demo.ports import HOST
from moriio_observed.demo.server import BARE, Server, ServerSettings, transfer_config
from moriio_observed.demo.workload import prompts
from tests.faults.levels import MEMORY_SLACK_MIB, Level, level

BUILD = Path(__file__).parents[1] / "build" / "dead-collector"
AT_ONCE, TOKENS = 16, 64
TURN_S = 15.0
EVERYTHING = {"otlp": {"sample_ratio": 1}}
REACHED, WIDTH = 0.99, 0.04
# oneDNN would keep what it compiles for each new length of a prompt.
STEADY = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "8"}


def say(text: str) -> None:
    """Print at once."""
    print(text, flush=True)


def turn(client: PairClient, seed: int) -> float:
    """Keep a pair busy for a turn; gives its tokens per second.

    Raises:
        DemoError: A request failed.
    """
    started, tokens = time.monotonic(), 0
    while time.monotonic() - started < TURN_S:
        seed += 1
        for answer in client.ask(prompts(seed, AT_ONCE), TOKENS):
            if answer.error is not None:
                raise DemoError(f"a request failed: {answer.error}")
            tokens += len(answer.tokens)
    return tokens / (time.monotonic() - started)


def student_t(samples: int) -> float:
    """Student's t for a two-sided 95 % interval, rounded up."""
    return 2.27 if samples < 30 else 2.05


def dead_end() -> dict[str, str]:
    """Variables that send everything to a port where nobody listens: 1 needs root to be bound."""
    return STEADY | {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{HOST}:1",
        "OTEL_METRIC_EXPORT_INTERVAL": "1000",
        "OTEL_BSP_SCHEDULE_DELAY": "1000",
    }


def run(fleet: Fleet, minutes: float) -> list[str]:
    """Load both for so many minutes each; give what is over budget."""
    prefill = fleet.start("prefill", ServerSettings(transfer_config("kv_producer"), env=STEADY))
    config = transfer_config("kv_consumer", connector=BARE)
    bare = fleet.start("decode-bare", ServerSettings(config, env=STEADY), core=1)
    observed = fleet.start(
        "decode",
        ServerSettings(transfer_config("kv_consumer", observed=EVERYTHING), env=dead_end()),
        core=1,
    )
    fleet.wait_ready(prefill, bare, observed)
    sides = [PairClient(prefill.ports, one.ports) for one in (bare, observed)]
    for number, side in enumerate(sides):
        turn(side, 1_000_000 * (number + 1))
    before = level(observed)
    ratios: list[float] = []
    turns = max(10, round(minutes * 60 / TURN_S))
    for number in range(turns):
        order = (0, 1) if number % 2 else (1, 0)
        rates = {side: turn(sides[side], 1000 * (2 * number + side)) for side in order}
        ratios.append(rates[1] / rates[0])
        say(
            f"turn {number + 1} of {turns}: bare {rates[0]:.0f}, observed {rates[1]:.0f} tokens/s, "
            f"ratio {ratios[-1]:.3f}"
        )
    return judge(ratios, before, level(observed), observed)


def judge(ratios: list[float], before: Level, after: Level, observed: Server) -> list[str]:
    """Say what came of it; give what is over budget."""
    mean = statistics.fmean(ratios)
    half = student_t(len(ratios)) * statistics.stdev(ratios) / math.sqrt(len(ratios))
    grown = after.memory_mib - before.memory_mib
    dropped = scrape(observed.ports.url).total("moriio_telemetry_dropped_total", signal="traces")
    say(
        f"decode throughput with a dead collector, observed / bare: {mean:.3f}, 95 % interval "
        f"{mean - half:.3f} to {mean + half:.3f} ({len(ratios)} pairs of turns of {TURN_S:.0f} s; "
        f"budget: it reaches {REACHED} and is at most {WIDTH} wide)"
    )
    say(
        f"memory of the decode server: {before.memory_mib:.0f} MiB, then {grown:+.0f} MiB (budget "
        f"{MEMORY_SLACK_MIB:.0f}); threads {before.threads} and {after.threads}; spans counted as "
        f"lost: {dropped:.0f}"
    )
    found = {
        "throughput": mean + half < REACHED,
        "the interval's width": 2 * half > WIDTH,
        "memory": grown > MEMORY_SLACK_MIB,
        "threads": after.threads > before.threads,
        "no loss was counted": not dropped,
    }
    return [what for what, over in found.items() if over]


def main() -> int:
    """Run it; the exit code tells whether all budgets were kept."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dead_collector")
    parser.add_argument("--minutes", type=float, default=10.0, help="of load on ours")
    try:
        with Fleet(BUILD, say) as fleet:
            found = run(fleet, parser.parse_args().minutes)
    except DemoError as error:
        say(f"could not go on: {error}")
        return 1
    say(f"over budget: {', '.join(found)}" if found else "all within budget")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
