"""A decode engine with its prefill engine, and what its users and its metrics say."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moriio_observed.demo.server import Ports
from moriio_observed.telemetry.aggregate import empty, merge, split_key
from moriio_observed.telemetry.vllm_stats import payload_of
from tests.contract.on_each.cache import next_token
from tests.contract.on_each.engine import Engine, Step
from tests.contract.on_each.prefill import Prefill

RELEASE_S = 10.0
LONGEST_S = 30.0
EXPOSURE, PHANTOM_HIT, STALE_READ = "moriio_exposure", "moriio_phantom_hit", "moriio_stale_read"


class _EventLog(logging.Handler):
    """Keeps what the log says of requests, by the event's name."""

    def __init__(self) -> None:
        super().__init__()
        self.events: dict[str, list[dict[str, Any]]] = {
            EXPOSURE: [],
            PHANTOM_HIT: [],
            STALE_READ: [],
        }

    def emit(self, record: logging.LogRecord) -> None:
        event, _, told = record.getMessage().partition(" ")
        if event in self.events:
            self.events[event].append(json.loads(told))


def _ours(connector: Any) -> Any:
    """The connector itself, or MultiConnector's first child."""
    return next(iter(getattr(connector, "_connectors", [connector])))


def right_answer(prompt: Sequence[int], count: int) -> list[int]:
    """What the model says after a prompt where all the KV it reads is right."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens, right=True))
    return tokens[len(prompt) :]


@dataclass(frozen=True)
class Asked:
    """A request, and the answer that is right."""

    request_id: str
    right: list[int]


class Decode:
    """A decode engine under test.

    Attributes:
        engine: The engine.
        prefill: Its prefill engine.
        ports: Where it listens.
        answers: What was served, by request.
        salad: Requests that were served a token from wrong KV.
    """

    def __init__(self, engine: Engine, prefill: Prefill, ports: Ports) -> None:
        self.engine = engine
        self.prefill = prefill
        self.ports = ports
        self.answers: dict[str, list[int]] = {}
        self.salad: set[str] = set()
        self._payload = empty()
        self._failed: list[str] = []
        self._held_before = prefill.held()
        self._log = _EventLog()
        logging.getLogger("vllm.moriio_observed").addHandler(self._log)

    def shutdown(self) -> None:
        """Take the engine down."""
        logging.getLogger("vllm.moriio_observed").removeHandler(self._log)
        self.engine.shutdown()

    def ask(
        self, prompt: Sequence[int], max_tokens: int = 3, traceparent: str | None = None
    ) -> Asked:
        """Send a request through both engines, as a router does."""
        request_id, params = self.prefill.leg(prompt, self.ports)
        return self.ask_alone(
            prompt, max_tokens, request_id=request_id, params=params, traceparent=traceparent
        )

    def ask_alone(
        self,
        prompt: Sequence[int],
        max_tokens: int = 3,
        *,
        request_id: str = "plain",
        params: Mapping[str, Any] | None = None,
        traceparent: str | None = None,
    ) -> Asked:
        """Send a request to the decode engine only."""
        self.engine.add(
            request_id, prompt, max_tokens=max_tokens, params=params, traceparent=traceparent
        )
        self.answers[request_id] = []
        return Asked(request_id, right_answer(prompt, max_tokens))

    def step(self, graph: str = "NONE") -> Step:
        """Run one step and keep what it brought."""
        step = self.engine.step(graph)
        for request_id, tokens in step.tokens.items():
            self.answers[request_id] += tokens
            if tokens and request_id in step.wrong:
                self.salad.add(request_id)
        self._failed += step.errors
        if step.stats is not None:
            ours = step.stats.get(type(_ours(self.engine.connector)).__name__, step.stats)
            self._payload = merge(self._payload, payload_of(ours))
        return step

    def serve(self, graph: str = "NONE") -> list[Step]:
        """Step until every request has ended, and once more, which brings what is left to say."""
        steps = []
        deadline = time.monotonic() + LONGEST_S
        while self.engine.scheduler.has_unfinished_requests():
            steps.append(self.step(graph))
            assert time.monotonic() < deadline, "the engine makes no progress"
        steps.append(self.flush())
        return steps

    def step_until(self, done: Callable[[], object]) -> None:
        """Step on until something has become true."""
        self._until(done, self.step)

    def flush_until(self, done: Callable[[], object]) -> None:
        """The same, and whatever is counted meanwhile is told."""
        self._until(done, self.flush)

    def _until(self, done: Callable[[], object], step: Callable[[], object]) -> None:
        deadline = time.monotonic() + LONGEST_S
        while not done():
            assert time.monotonic() < deadline, "it does not become true"
            step()

    def land_what_hangs(self) -> None:
        """All reads that are in flight land."""
        transport = _ours(self.engine.connector).connector_worker.moriio_engine._transport
        while transport._due:
            transport._ready.put(transport._due.pop()[-1])

    def flush(self) -> Step:
        """One step that brings whatever was counted and has not been told yet."""
        # Where the engine runs ahead, what a step brings comes with the next.
        for _ in range(1 + self.engine.ahead):
            for side in (self.engine.connector, self.engine.scheduler.connector):
                _ours(side)._look_at = _ours(side)._flush_at = float("-inf")
            step = self.step()
        return step

    def released(self) -> bool:
        """Whether the prefill engine holds no block for this engine any more."""
        deadline = time.monotonic() + RELEASE_S
        # The release arrives on another process's thread, in milliseconds.
        while (held := self.prefill.held() > self._held_before) and time.monotonic() < deadline:
            time.sleep(0.01)
        return not held

    @property
    def exposures(self) -> list[dict[str, Any]]:
        """What the log has said of exposed requests."""
        return self._log.events[EXPOSURE]

    @property
    def phantoms(self) -> list[dict[str, Any]]:
        """What the log has said of phantom hits."""
        return self._log.events[PHANTOM_HIT]

    @property
    def stale(self) -> list[dict[str, Any]]:
        """What the log has said of stale reads."""
        return self._log.events[STALE_READ]

    def errors(self) -> list[str]:
        """The requests that were answered with an error."""
        return self._failed

    def settled(self) -> bool:
        """Whether, after one more step, every block is free."""
        self.flush()
        return self.blocks_in_use() == 0 and self.gauge("quarantined_blocks") == 0

    def blocks_in_use(self) -> int:
        """How many KV cache blocks are not free."""
        pool = self.engine.scheduler.kv_cache_manager.block_pool
        # One block is vLLM's own, for nothing.
        return int(pool.num_gpu_blocks - 1 - pool.get_num_free_blocks())

    def blocks_read(self) -> dict[str, list[int]]:
        """The blocks that the reads in flight go into, by request."""
        guard = _ours(self.engine.connector)._guard
        return {name: sorted(each.blocks) for name, each in guard._requests.items()}

    def gauge(self, name: str) -> float:
        """A gauge as it left the engine last, its sources added."""
        return sum(
            value
            for key, sources in self._payload["gauges"].items()
            if split_key(key)[0] == name
            for _, value in sources.values()
        )

    def exposed(self, cause: str) -> set[str]:
        """The requests that were said to be exposed for this cause."""
        return {each["request_id"] for each in self.exposures if each["cause"] == cause}

    def is_right(self, *asked: Asked) -> list[bool]:
        """Whether each of these requests was served the right answer."""
        return [self.answers[each.request_id] == each.right for each in asked]

    def counted(self, name: str) -> dict[tuple[str, ...], float]:
        """A counter as it left the engine: by label values, without zeros."""
        found = {split_key(key): value for key, value in self._payload["counters"].items()}
        return {
            labels: value for (metric, labels), value in found.items() if metric == name and value
        }

    def total(self, name: str) -> float:
        """The same, summed."""
        return sum(self.counted(name).values())

    def waits(self, site: str) -> int:
        """How many barrier calls at this site had reads to wait for."""
        return self._observed("barrier_wait_seconds", site)[0]

    def blocked(self) -> float:
        """How long steps have waited for reads, seconds."""
        return self._observed("step_blocked_seconds")[1]

    def hooks_installed(self) -> set[float]:
        """What the gauge says of the hooks: {1} if each is in force."""
        return {
            value
            for key, sources in self._payload["gauges"].items()
            if split_key(key)[0] == "hook_installed"
            for _, value in sources.values()
        }

    def handshakes(self) -> int:
        """How many handshakes with prefill ranks have succeeded."""
        return self._observed("handshake_seconds")[0]

    def _observed(self, name: str, *labels: str) -> tuple[int, float]:
        """Count and sum of a histogram, over all series that have these label values."""
        found = [
            (sum(counts), total)
            for key, (counts, total) in self._payload["histograms"].items()
            if split_key(key)[0] == name and set(labels) <= set(split_key(key)[1])
        ]
        return sum(count for count, _ in found), sum(total for _, total in found)
