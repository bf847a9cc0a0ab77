"""How long our rules take over a large fleet, in a real Prometheus that has one core.

500 decode engines of 8 ranks, one in ten of them in an incident in which every counter grows that
may, each for one cause. Their series, as far back as any rule looks and every 15 s, are written as
blocks beforehand, so that nothing but rules is measured.
"""

from __future__ import annotations

import itertools
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shutil import which
from typing import TextIO

import promql_parser as promql

from benchmarks.result import Budget, On, Row, measured, over_budget
from moriio_observed.alerting.folder import Folder
from moriio_observed.alerting.formats import plain
from moriio_observed.alerting.queries import instrument_of
from moriio_observed.alerting.rules import Group, render_groups, rules_of
from moriio_observed.alerting.yaml_text import to_yaml
from moriio_observed.canary import metrics as canary
from moriio_observed.demo.metrics import Scrape, scrape
from moriio_observed.telemetry.catalog import CERTAINTIES, Kind
from tests.monitoring import PROMETHEUS, eventually, prometheus, query

ENGINES, RANKS, MODELS, REMOTES = 500, 8, 5, 8
BROKEN_ONE_IN = 10
SCRAPED_EVERY_S = 15
LARGE_S = 2 * 3600
PREPARING_S = 60
"""Written up to so long after the beginning: about what writing takes."""
EVALUATED_EVERY = "5s"
"""More often than in use, to see more of them: one takes as long however often it comes."""
EVALUATIONS = 4
BUDGET_S = 2.0
BUDGET = Budget(On.OURS, BUDGET_S)

PROMTOOL = "promtool"
BACKFILL = ("tsdb", "create-blocks-from", "openmetrics")

OPEN = {
    "remote": tuple(f"10.1.0.{number}:6301" for number in range(REMOTES)),
    "hook": tuple(f"hook_{number}" for number in range(14)),
    "tp_rank": tuple(map(str, range(RANKS))),
    "concurrency": ("1", "4", "16"),
    "role": ("kv_consumer",),
    "mode": ("read",),
    **dict.fromkeys(("cudagraph_mode", "barrier", "guard"), ("x",)),
    **dict.fromkeys(("vllm_version", "mori_version", "version"), ("x",)),
}
RECORDED = {"certainty": CERTAINTIES}
"""What a fleet's recorded series have beyond the labels of a fleet."""
UNEVENTFUL = {
    "moriio_requests_total": 30,
    "moriio_steps_total": 2400,
    "moriio_reads_posted_total": 1800,
    "moriio_reads_landed_total": 1800,
    "moriio_remote_reads_total": 200,
    "moriio_remote_read_seconds_total": 1,
    "moriio_step_seconds_count": 2400,
    "moriio_step_seconds_sum": 96,
    "moriio_step_blocked_seconds_count": 300,
    "moriio_step_blocked_seconds_sum": 0.25,
}
"""What a healthy engine adds to its counters between two scrapes; to others nothing."""
FAULT = {"cause": "failed", "error_type": "ERR_RDMA_OP", "reason": "PEER_UNREACHABLE"}
"""Why an engine in the incident adds 1 to all others."""


@dataclass(frozen=True)
class Series:
    """One series: its name with labels, and the difference of two neighbouring samples."""

    text: str
    step: float


def windows(groups: Iterable[Group]) -> Mapping[str, float]:
    """How far back the rules look at each metric, in seconds; 0 for its latest value only."""
    longest: dict[str, float] = {}

    def visit(node: promql.Expr, window: float = 0) -> None:
        if isinstance(node, promql.VectorSelector):
            longest[str(node.name)] = max(longest.get(str(node.name), 0), window)
        elif isinstance(node, promql.MatrixSelector):
            visit(node.vector_selector, node.range.total_seconds())
        elif isinstance(node, promql.SubqueryExpr) and node.range is not None:
            visit(node.expr, node.range.total_seconds())

    for rule in rules_of(groups):
        promql.walk(promql.parse(rule["expr"]), visit)
    return longest


def labels_of(name: str) -> Mapping[str, tuple[str, ...]]:
    """The values of each label of a metric, beyond those of an engine."""
    instrument = instrument_of(name)
    if instrument is None:
        return {}
    return {label: instrument.closed.get(label) or OPEN[label] for label in instrument.labels}


def of_engines(name: str) -> Iterator[Series]:
    """A metric's series of every engine."""
    instrument = instrument_of(name)
    counts = instrument is not None and instrument.kind is not Kind.GAUGE
    closed = labels_of(name)
    for number in range(ENGINES):
        engine = {
            "job": "decode",
            "instance": f"10.0.{number // 250}.{number % 250}:8000",
            "model_name": f"org/model-{number % MODELS}",
            "engine": "0",
        }
        broken = number % BROKEN_ONE_IN == 0
        for values in itertools.product(*closed.values()):
            labels = dict(zip(closed, values, strict=True))
            grows = broken and all(labels.get(label, why) == why for label, why in FAULT.items())
            step = float(UNEVENTFUL.get(name, grows)) if counts else 0
            yield Series(series(name, {**engine, **labels}), step)


def of_fleets(name: str) -> Iterator[Series]:
    """A recorded metric's series of every fleet."""
    labels = RECORDED if "exposed" in name else {}
    for number in range(MODELS):
        fleet = {"job": "decode", "model_name": f"org/model-{number}"}
        for values in itertools.product(*labels.values()):
            yield Series(series(name, {**fleet, **dict(zip(labels, values, strict=True))}), 0)


def of_canaries(name: str) -> Iterator[Series]:
    """A metric's series of a canary for each model, or what is recorded of it; nothing is wrong."""
    closed = labels_of(name)
    for number in range(MODELS):
        probed = {"job": "canary", "model_name": f"org/model-{number}", "target": "router:8000"}
        scraped = {"instance": f"10.2.0.{number}:9470"} if instrument_of(name) else {}
        for values in itertools.product(*closed.values()):
            labels = {**probed, **scraped, **dict(zip(closed, values, strict=True))}
            yield Series(series(name, labels), 0)


def series(name: str, labels: Mapping[str, str]) -> str:
    """A series as OpenMetrics writes it."""
    inside = ",".join(f'{label}="{value}"' for label, value in labels.items())
    return f"{name}{{{inside}}}"


def pasts(groups: list[Group]) -> Iterator[tuple[Iterator[Series], float]]:
    """What of the past the rules look at, each with its seconds; what is recorded comes last."""
    recorded = {rule["record"] for rule in rules_of(groups) if "record" in rule}
    looked_at = windows(groups)
    for name in looked_at.keys() - recorded:
        whose = of_canaries if canary.asked_for_in(name) else of_engines
        yield whose(name), looked_at[name]
    for name in looked_at.keys() & recorded:
        # Those of which only the latest is asked for are recorded anew at once.
        if looked_at[name]:
            whose = of_canaries if canary.asked_for_in(name) else of_fleets
            yield whose(name), looked_at[name]


def write(past: Iterable[Series], seconds: float, until: int, file: TextIO) -> int:
    """Write some series, so many seconds of them; returns the number of samples."""
    times = range(until - int(seconds), until + 1, SCRAPED_EVERY_S)
    samples = 0
    for one in past:
        file.writelines(
            f"{one.text} {1 + one.step * number:g} {at}\n" for number, at in enumerate(times)
        )
        samples += len(times)
    return samples


def store(groups: list[Group], until: int, folder: Path) -> int:
    """Write what the rules look at as blocks of a Prometheus; returns the number of samples."""
    # The tool reads a file once for every two hours in it: what reaches back for days is small.
    samples = 0
    with ExitStack() as stack:
        files = [stack.enter_context((folder / name).open("w")) for name in ("hours", "days")]
        for past, seconds in pasts(groups):
            samples += write(past, seconds, until, files[seconds > LARGE_S])
        for file in files:
            file.write("# EOF\n")
    for file in files:
        subprocess.run(
            [str(which(PROMTOOL)), *BACKFILL, file.name, folder / "data"],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        Path(file.name).unlink()
    return samples


@contextmanager
def fleet(groups: list[Group], folder: Path) -> Iterator[str]:
    """A Prometheus that evaluates the rules over the fleet's series."""
    until = int(time.time()) + PREPARING_S
    samples = store(groups, until, folder)
    print(
        f"rules over {ENGINES} engines of {RANKS} ranks: {samples / 1e6:.1f} million samples of "
        "the past",
        flush=True,
    )
    time.sleep(max(0.0, until - time.time()))
    rules = folder / "rules.yaml"
    rules.write_text(
        to_yaml(plain([{**group, "interval": EVALUATED_EVERY} for group in groups], {}))
    )
    with prometheus(folder, {"rule_files": [str(rules)]}, GOMAXPROCS="1") as url:
        yield url


def evaluations(page: Scrape) -> float:
    """How often the group that came least was evaluated."""
    counts = [
        value
        for (name, _), value in page.samples.items()
        if name == "prometheus_rule_group_iterations_total"
    ]
    return min(counts, default=0)


def seconds_by_group(page: Scrape) -> Mapping[str, float]:
    """How long each group's last evaluation took, on the clock."""
    return {
        dict(labels)["rule_group"].rpartition(";")[2]: value
        for (name, labels), value in page.samples.items()
        if name == "prometheus_rule_group_last_duration_seconds"
    }


def rows(_: object = None) -> list[Row]:
    """Seconds of one core that an evaluation of every rule takes over a large fleet."""
    if which(PROMETHEUS) is None:
        print("rules over a large fleet: not measured, Prometheus is not installed")
        return []
    root = Path(__file__).parents[1]
    source = Folder(root / "alerts")
    groups = render_groups(source.sources(), source.values())
    (root / "build").mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=root / "build") as name,
        fleet(groups, Path(name)) as url,
    ):
        # The first evaluation finds nothing recorded yet.
        pages = [
            eventually(partial(page_after, url, number), f"evaluation {number} of every group")
            for number in range(2, 3 + EVALUATIONS)
        ]
        firing = query(url, 'count(ALERTS{alertstate="firing"})')
        engines = query(url, "count(engine:moriio_requests:rate5m)")
    assert engines[0]["value"][1] == str(ENGINES), "the series have ended before the rules"
    of_process = pages[-1].since(pages[0])
    rounds = evaluations(pages[-1]) - evaluations(pages[0])
    core = of_process.total("process_cpu_seconds_total") / rounds
    taken = [seconds_by_group(page) for page in pages]
    for group in taken[0]:
        print(f"  {group}: {statistics.median(seconds[group] for seconds in taken):.2f} s")
    clock = statistics.median(sum(seconds.values()) for seconds in taken)
    print(
        f"  all rules once: {core:.2f} s of one core with all else that Prometheus did (budget "
        f"{BUDGET_S} s), {clock:.2f} s on the clock of this machine; {firing[0]['value'][1]} "
        f"alerts were firing, one engine in {BROKEN_ONE_IN} is in an incident"
    )
    return [
        measured(f"all rules once, {ENGINES} engines of {RANKS} ranks", "s", [core], BUDGET),
        measured(f"all rules once, {ENGINES} engines, on the clock", "s", [clock]),
    ]


def page_after(url: str, number: int) -> Scrape | None:
    """Prometheus' own /metrics once every group has been evaluated so often."""
    page = scrape(url)
    return page if evaluations(page) >= number else None


if __name__ == "__main__":
    sys.exit(bool(over_budget(rows())))
