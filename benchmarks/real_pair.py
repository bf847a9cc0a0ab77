"""A real pair in every barrier mode, against bare: ``python -m benchmarks.real_pair``.

One prefill engine serves two decode engines, bare upstream's and ours, that share a core. For each
mode and each latency of the reads they decode the same prompts in turns: tokens/s by pairs, without
a budget, which ``benchmarks.throughput`` has, and
from vLLM's own histograms the time to the first token and per token. Then requests are sent to ours
one at a time: how much of the time that reads take is not waited for, because layers are computed
meanwhile.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.decoding import AT_ONCE, STEADY, WARM_UP_S, Side, decode, load, say, tokens_of
from benchmarks.modes import MODES
from benchmarks.result import Row, measured, merge, over_budget, paired, ratio_of, table
from moriio_observed.demo.client import PairClient
from moriio_observed.demo.errors import DemoError
from moriio_observed.demo.metrics import Scrape, scrape
from moriio_observed.demo.pair import Fleet
from moriio_observed.demo.server import BARE, Server, ServerSettings, transfer_config
from moriio_observed.demo.workload import prompts

BUILD = Path(__file__).parents[1] / "build" / "real-pair"
BARRIERS = ("auto", "adaptive", "step", "layer", "upstream")
"""Modes in which a step waits for reads; with a guard, a request waits before it is in any step."""
SAME_AS_AUTO = "adaptive"
"""On the installed vLLM; so it is measured only when asked for."""
LATENCIES_MS = (0, 1, 5, 20)
TOKENS = 64
"""Of each answer."""
ALONE, ALONE_TOKENS = 30, 4
"""Requests that are sent one at a time, and how long their answers are."""
HISTOGRAMS = {
    "time to first token": "vllm:time_to_first_token_seconds",
    "time per output token": "vllm:request_time_per_output_token_seconds",
}
QUANTILES = {"median": 0.5, "99th percentile": 0.99}


class Bench:
    """A prefill engine and two decode engines of one mode.

    Args:
        fleet: Where they run.
        mode: Ours.
        tokens: How long each answer is.
        warm_up: Seconds of load before anything is measured.
    """

    def __init__(self, fleet: Fleet, mode: str, tokens: int, warm_up: float) -> None:
        self.fleet = fleet
        self.mode = mode
        self.tokens = tokens
        # No decode engine has seen a prompt before: it would read less of it.
        self.seeds = itertools.count()
        # All of both decode engines on one core, all else on the other: where the kernel happens to
        # put them moves the throughput of a run by half.
        os.sched_setaffinity(0, {0})
        prefill = fleet.start("prefill", ServerSettings(transfer_config("kv_producer"), env=STEADY))
        os.sched_setaffinity(0, {1})
        self.bare = self._decode("decode-bare", connector=BARE)
        self.ours = self._decode("decode", observed=MODES[mode])
        os.sched_setaffinity(0, {0})
        fleet.wait_ready(prefill, self.bare, self.ours)
        self.clients = {
            side: PairClient(prefill.ports, side.ports) for side in (self.bare, self.ours)
        }
        for client in self.clients.values():
            load(client, warm_up, tokens)

    def _decode(self, name: str, **how: Any) -> Server:
        config = transfer_config("kv_consumer", **how)
        return self.fleet.start(name, ServerSettings(config, env=STEADY), core=1)

    def rows(self, latency_ms: float, pairs: int) -> list[Row]:
        """What one latency of the reads does."""
        self._slow_down(latency_ms)
        before = {side: scrape(side.ports.url) for side in self.clients}
        rates: dict[Server, list[float]] = {side: [] for side in self.clients}
        for number in range(pairs):
            # P has them cached the second time; what is timed comes after P.
            asked = prompts(next(self.seeds), AT_ONCE)
            order = list(self.clients) if number % 2 else list(reversed(self.clients))
            for side in order:
                cost = decode(Side(side, self.clients[side]), asked, self.tokens)
                rates[side].append(cost.rate)
            say(
                f"{self.mode}, reads at {latency_ms} ms, pair {number + 1} of {pairs}: "
                f"{rates[self.ours][-1] / rates[self.bare][-1]:.3f}"
            )
        after = {side: scrape(side.ports.url).since(before[side]) for side in self.clients}
        what = f"{self.mode}, reads at {latency_ms} ms"
        found = [
            paired(f"decode throughput, {what}", "tokens/s", rates[self.ours], rates[self.bare]),
            *latencies(what, after[self.ours], after[self.bare]),
        ]
        if latency_ms and self.mode in BARRIERS:
            found.append(self._hidden(what, latency_ms / 1e3))
        return found

    def _slow_down(self, latency_ms: float) -> None:
        if latency_ms:
            self.fleet.faults.set({"rules": [{"latency_s": latency_ms / 1e3}]})
        else:
            self.fleet.faults.clear()

    def _hidden(self, what: str, latency_s: float) -> Row:
        """The share of the reads' time in which no step was blocked: one request at a time."""
        client, url = self.clients[self.ours], self.ours.ports.url
        before = scrape(url)
        for _ in range(ALONE):
            tokens_of(client.ask(prompts(next(self.seeds), 1), ALONE_TOKENS))
        after = scrape(url).since(before)
        blocked_s = after.total("moriio_step_blocked_seconds_sum")
        reading_s = after.total("moriio_requests_total") * latency_s
        name = f"share of the reads' time not waited for, {what}"
        return measured(name, "%", [100 * (1 - blocked_s / reading_s)])


def latencies(what: str, ours: Scrape, bare: Scrape) -> list[Row]:
    """Time to the first token and per token: means, and quantiles by vLLM's buckets."""
    found = []
    for name, histogram in HISTOGRAMS.items():
        told = {"mean": (mean_of(ours, histogram), mean_of(bare, histogram))} | {
            quantile: (ours.quantile(histogram, q), bare.quantile(histogram, q))
            for quantile, q in QUANTILES.items()
        }
        for word, (own, theirs) in told.items():
            if own and theirs:
                found.append(ratio_of(f"{name}, {word}, {what}", "ms", own * 1e3, theirs * 1e3))
    return found


def mean_of(scraped: Scrape, histogram: str) -> float | None:
    """The mean of what a histogram has observed, None when it holds no observation."""
    count = scraped.total(f"{histogram}_count")
    return scraped.total(f"{histogram}_sum") / count if count else None


def run(arguments: argparse.Namespace) -> list[Row]:
    """Measure every mode with servers of its own."""
    found: list[Row] = []
    for mode in arguments.modes:
        with Fleet(BUILD, say) as fleet:
            bench = Bench(fleet, mode, arguments.tokens, arguments.warm_up)
            for latency_ms in arguments.latencies_ms:
                rows = bench.rows(latency_ms, max(10, arguments.pairs))
                merge(rows)
                found += rows
    return found


def main() -> int:
    """Run it; the exit code tells whether all budgets were kept."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.real_pair")
    modes = [mode for mode in MODES if mode != SAME_AS_AUTO]
    parser.add_argument("--modes", nargs="+", choices=MODES, default=modes)
    parser.add_argument("--latencies-ms", nargs="+", type=float, default=LATENCIES_MS)
    parser.add_argument("--pairs", type=int, default=10, help="of measured runs, at least 10")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of each answer")
    parser.add_argument("--warm-up", type=float, default=WARM_UP_S, help="seconds of load before")
    try:
        rows = run(parser.parse_args())
    except DemoError as error:
        say(f"could not go on: {error}")
        return 1
    print(table(rows))
    return 1 if over_budget(rows) else 0


if __name__ == "__main__":
    sys.exit(main())
