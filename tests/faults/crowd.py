"""Healthy traffic in every barrier mode, and what one hung read costs those beside it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import cycle
from typing import Any, TypeVar

from moriio_observed.demo.client import Answer, PairClient
from moriio_observed.demo.server import ServerSettings
from moriio_observed.demo.workload import prompts
from tests.faults.modes import FAIL, INSTALLED, RECOMPUTE, REPORT, decode_settings
from tests.faults.scene import Scene, asked
from tests.faults.servers import Servers
from tests.faults.table import sentence
from tests.faults.verdict import Row, judge

Say = Callable[[str], None]
Got = TypeVar("Got")

REQUESTS, AT_ONCE = 500, 32
DRAW = 125
"""Prompts of one draw: no more have lengths of their own."""
ANSWERS = (8, 16, 32, 64)
"""How many tokens are asked for, in turns."""
AUTO = "auto"
KINDS = (
    (REPORT, AUTO),
    (REPORT, "upstream"),
    (REPORT, "layer"),
    (REPORT, "step"),
    (REPORT, "adaptive"),
    (RECOMPUTE, AUTO),
    (FAIL, AUTO),
)
BATCH = 16
HUNG = {"reset_ordinals": True, "rules": [{"requests": [3], "layers": [3], "hang": True}]}


def settings(mode: str, barrier: str) -> ServerSettings:
    """A decode engine with room for all, so that nobody is preempted."""
    usual = decode_settings(mode, INSTALLED)
    assert usual.transfer_config is not None
    extra: Mapping[str, Any] = usual.transfer_config["kv_connector_extra_config"]
    observed = extra["observed"] | {"barrier": barrier}
    config = {**usual.transfer_config, "kv_connector_extra_config": {**extra, "observed": observed}}
    return replace(usual, transfer_config=config, flags=())


def crowd(servers: Servers, say: Say) -> list[str]:
    """Serve healthy traffic to each kind of decode engine; give what should not be."""
    found = []
    drawn = [prompt for seed in range(REQUESTS // DRAW) for prompt in prompts(seed, DRAW)]
    requests = [([prompt], length) for prompt, length in zip(drawn, cycle(ANSWERS), strict=False)]
    references: list[list[Answer]] = []
    for mode, barrier in KINDS:
        servers.decode_as(settings(mode, barrier))
        scene = Scene(f"healthy, barrier {barrier}", servers)
        references = references or _each(scene.client.reference, requests)
        answers = _each(scene.client.ask, requests)
        name = f"healthy, {REQUESTS} requests, barrier {barrier}"
        served = asked(_flat(answers), _flat(references))
        row = judge(name, INSTALLED, mode, served, scene.settle(0.0))
        say(sentence(row))
        found += _problems(row, barrier)
        if mode != REPORT:
            found += _beside_a_hung_read(servers, mode, say)
    return found


def _problems(row: Row, barrier: str) -> list[str]:
    clean = row.right == row.requests and row.certain == 0
    if clean and (barrier != AUTO or row.exposed == 0):
        return []
    return [f"nothing was harmed, yet {sentence(row)}, {row.certain} of them certain"]


def _beside_a_hung_read(servers: Servers, mode: str, say: Say) -> list[str]:
    """Whether the others of a batch take at most twice as long, and one deadline."""
    transfer = servers.decode.settings.transfer_config
    assert transfer is not None
    deadline_s = float(transfer["kv_connector_extra_config"]["transfer_timeout"])
    healthy = max(_took(servers.client, seed=101))
    servers.faults.set(HUNG)
    hung = sorted(_took(servers.client, seed=102))
    servers.faults.clear()
    others = hung[-2]
    allowed = 2 * healthy + deadline_s
    told = (
        f"{mode}: beside a hung read the slowest of the others took {others:.2f} s, "
        f"{others / healthy:.2f} times as long as healthy ({healthy:.2f} s); "
        f"allowed are {allowed:.2f} s"
    )
    say(told)
    return [] if others <= allowed else [told]


def _took(client: PairClient, seed: int) -> list[float]:
    """How long each request of a batch takes, seconds."""

    def took(prompt: str) -> float:
        began = time.monotonic()
        client.ask([prompt])
        return time.monotonic() - began

    return _each(took, [(prompt,) for prompt in prompts(seed, BATCH)])


def _each(ask: Callable[..., Got], items: Sequence[tuple[Any, ...]]) -> list[Got]:
    """Ask with each of these arguments, so many at once."""
    with ThreadPoolExecutor(AT_ONCE) as threads:
        return list(threads.map(lambda item: ask(*item), items))


def _flat(answers: Sequence[Sequence[Answer]]) -> list[Answer]:
    return [answer for each in answers for answer in each]
