"""Records both recordings anew from a real pair: `python -m tests.incident.record`.

Takes a quarter of an hour and wants a machine with nothing else to do; a recording says of itself
whether it had one. What is recorded, and why so, is in alerts/incident/README.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from moriio_observed.alerting.queries import FOREIGN
from moriio_observed.demo.client import PairClient
from moriio_observed.demo.model import write_model
from moriio_observed.demo.pair import Fleet
from moriio_observed.demo.server import Server, ServerSettings, transfer_config
from moriio_observed.telemetry.catalog import PREFIX
from tests.incident.judged import answers, first_late
from tests.incident.quiet import UNANSWERED, Quiet
from tests.incident.recording import FOLDER, Moment, Recording, save
from tests.incident.traffic import Traffic, references
from tests.incident.watch import Log, Watch
from tests.trees import vllm_tree

ROOT = Path(__file__).parents[2]
VLLM = "0.30.0"
LAYERS, GAIN = 16, 0.125
"""Of such a model one late layer changes one answer in fifty, all of them nearly every one."""
INTERVAL_S = 5.0
FEW_CLIENTS, MOST_CLIENTS = 6, 24
INSTANCES = {"prefill": "prefill-0:8000", "decode": "decode-0:8000"}

HEALTHY_S, RAMP_S, SALAD_S = 80.0, 300.0, 60.0
RAMP_STEP_S = 10.0
FIRST_SHARE, LAST_SHARE = 0.001, 1.0
"""The share of the reads that is slowed, when the link begins to slow and at the end."""
SLOW_S, SLOWEST_S = 0.04, 0.64
"""How long a slowed read of the last layer takes at least; of the others, in proportion."""


@dataclass(frozen=True, slots=True)
class Stage:
    """What holds from a moment on; before the first, nobody asks.

    Attributes:
        at_s: When, seconds since the recording began.
        clients: How many ask at a time.
        faults: What slows reads.
        what: In words.
    """

    at_s: float
    clients: int
    faults: Mapping[str, Any]
    what: str


def slowed(share: float, last_s: float) -> Mapping[str, Any]:
    """Faults that slow a share of the reads, each for itself: those of later layers by more."""
    rules = [
        {
            "layers": [layer],
            "probability": share,
            "latency_s": last_s * (layer + 1) / LAYERS,
            "jitter_s": last_s / 2 * (layer + 1) / LAYERS,
        }
        for layer in range(LAYERS)
    ]
    return {"rules": rules}


def healthy_plan() -> Iterator[Stage]:
    """Load that grows and falls as in the incident, and reads as fast as they are."""
    for at_s, clients in (
        (1.0, 4),
        (60.0, 8),
        (120.0, 16),
        (180.0, MOST_CLIENTS),
        (240.0, 4),
    ):
        yield Stage(at_s, clients, {}, f"{clients} clients")


def incident_plan() -> Iterator[Stage]:
    """Load that grows, and a link that slows: the tail of its reads first, in the end all."""
    yield Stage(1.0, 4, {}, "4 clients, healthy reads")
    yield Stage(HEALTHY_S / 2, FEW_CLIENTS, {}, f"{FEW_CLIENTS} clients, healthy reads")
    steps = int(RAMP_S / RAMP_STEP_S)
    for step in range(steps):
        gone = step / steps
        share = FIRST_SHARE * (LAST_SHARE / FIRST_SHARE) ** gone
        last_s = SLOW_S * (SLOWEST_S / SLOW_S) ** gone
        clients = FEW_CLIENTS + round((MOST_CLIENTS - FEW_CLIENTS) * gone)
        yield _slowing(HEALTHY_S + step * RAMP_STEP_S, clients, share, last_s)
    yield _slowing(HEALTHY_S + RAMP_S, MOST_CLIENTS, LAST_SHARE, SLOWEST_S)


def _slowing(at_s: float, clients: int, share: float, last_s: float) -> Stage:
    what = f"{clients} clients, {share:.1%} of the reads slowed, the last layer's to {last_s:.2f} s"
    return Stage(at_s, clients, slowed(share, last_s), what)


RECORDINGS: Mapping[str, tuple[str, Callable[[], Iterator[Stage]], float]] = {
    "healthy": ("auto", healthy_plan, 300.0),
    "incident": ("upstream", incident_plan, HEALTHY_S + RAMP_S + SALAD_S),
}
"""The barrier, the plan and the length of each."""


def main() -> None:
    """Record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=FOLDER, help="where to write")
    parser.add_argument("--only", choices=RECORDINGS, help="one of them")
    parser.add_argument("--seed", type=int, default=1, help="draws other prompts and slows others")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with Fleet(ROOT / "build" / "incident") as fleet:
        model = write_model(fleet.place.build / "model", LAYERS, GAIN)
        fleet.place = dataclasses.replace(fleet.place, model=model)
        prefill = fleet.start("prefill", _settings("kv_producer"), core=0)
        known: Mapping[str, tuple[int, ...]] = {}
        for name in [options.only] if options.only else RECORDINGS:
            barrier, plan, length_s = RECORDINGS[name]
            decode = fleet.start(f"decode-{name}", _settings("kv_consumer", barrier), core=1)
            fleet.wait_ready(prefill, decode)
            known = known or references(PairClient(prefill.ports, decode.ports))
            servers = {"prefill": prefill, "decode": decode}
            recording = _record(fleet, servers, known, list(plan()), length_s, options.seed)
            recording = _described(recording, barrier, options.seed)
            save(recording, options.out / f"{name}.json.gz")
            print(f"{name}: {len(recording.answers)} answers", flush=True)
            print(f"at worst: {recording.about['at worst']}", flush=True)
            print(f"disturbed: {recording.about['disturbed']}", flush=True)
            fleet.faults.clear()
            fleet.stop(decode)


def _settings(role: Any, barrier: str | None = None) -> ServerSettings:
    deadlines: Mapping[str, Any] = {"transfer_timeout": 30, "recv_abort_timeout": 120}
    if barrier is None:
        config = transfer_config(role, **deadlines)
    else:
        full = ("FullGraphConnector", "tests.incident.full_graph")
        config = transfer_config(role, connector=full, observed={"barrier": barrier}, **deadlines)
    # A prompt comes more than once: the decode engine shall read it each time.
    flags = () if barrier is None else ("--no-enable-prefix-caching",)
    return ServerSettings(config, {"PYTHONPATH": str(ROOT)}, flags, vllm_tree=vllm_tree(VLLM))


def _record(
    fleet: Fleet,
    servers: Mapping[str, Server],
    known: Mapping[str, tuple[int, ...]],
    plan: Sequence[Stage],
    length_s: float,
    seed: int,
) -> Recording:
    client = PairClient(servers["prefill"].ports, servers["decode"].ports)
    log = Log(servers["decode"].log)
    urls = {job: server.ports.url for job, server in servers.items()}
    quiet, stages = Quiet(), []
    with (
        Traffic(client, known, MOST_CLIENTS, seed) as traffic,
        Watch(urls, log, INTERVAL_S, quiet) as watch,
    ):
        for stage in plan:
            time.sleep(max(0.0, watch.began + stage.at_s - time.monotonic()))
            traffic.clients = stage.clients
            fleet.faults.set({"seed": seed, **stage.faults})
            stages.append(Moment(round(time.monotonic() - watch.began, 1), stage.what))
            print(f"{stages[-1].at_s:5.0f} s: {stage.what}", flush=True)
        # Past the last scrape and short of the next, so that there are as many each time.
        end = watch.began + length_s + INTERVAL_S / 2
        time.sleep(max(0.0, end - time.monotonic()))
    # An answer given later has its exposure in a part of the log that nobody followed.
    given = sorted(
        (each for each in traffic.given if watch.began <= each.given < watch.ended),
        key=lambda one: one.given,
    )
    moments = [watch.began + stages[0].at_s, *(each.given for each in given), watch.ended]
    for sooner, later in itertools.pairwise(moments):
        quiet.saw(UNANSWERED, later - sooner, sooner - watch.began)
    return Recording(
        about=quiet.about(),
        interval_s=INTERVAL_S,
        series=_series(watch.pages),
        answers=answers(given, log.exposed, watch.began),
        stages=stages,
        first_late_s=first_late(given, log.exposed, watch.began),
        pages={
            job: next((page for page in reversed(pages) if page), "")
            for job, pages in watch.pages.items()
        },
    )


def _described(recording: Recording, barrier: str, seed: int) -> Recording:
    about = {
        "recorded": datetime.now(UTC).date().isoformat(),
        "vllm": VLLM,
        "barrier": barrier,
        "graphs": "FULL, emulated",
        "reads": "loopback",
        "seed": str(seed),
        **recording.about,
    }
    return dataclasses.replace(recording, about=about)


def _series(pages: Mapping[str, Sequence[str]]) -> Mapping[str, Sequence[float | None]]:
    """The series that rules and panels may ask for, by their names and labels."""
    scrapes = min(map(len, pages.values()))
    found: dict[str, list[float | None]] = {}
    for job, all_pages in pages.items():
        for number, page in enumerate(all_pages[:scrapes]):
            for name, labels, value in _samples(page):
                series = _name(name, {"job": job, "instance": INSTANCES[job], **labels})
                found.setdefault(series, [None] * scrapes)[number] = value
    return found


def _samples(page: str) -> Iterator[tuple[str, Mapping[str, str], float]]:
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name.startswith(PREFIX) or sample.name in FOREIGN:
                yield sample.name, sample.labels, sample.value


def _name(name: str, labels: Mapping[str, str]) -> str:
    inner = ",".join(f'{label}="{value}"' for label, value in sorted(labels.items()))
    return f"{name}{{{inner}}}"


if __name__ == "__main__":
    main()
