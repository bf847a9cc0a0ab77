"""Many requests under mixed faults on a pair with a guard: nothing may be left over."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from moriio_observed.demo.client import PairClient
from moriio_observed.demo.phases import SLOW_READS
from tests.faults.levels import Level, grown, level
from tests.faults.modes import RECOMPUTE, decode_settings
from tests.faults.rows import SEND_QUEUE_FULL, TENTH_FAILS, taking
from tests.faults.scene import Scene, asked
from tests.faults.servers import Servers
from tests.faults.table import problems, sentence
from tests.faults.verdict import Asked, judge

Say = Callable[[str], None]

BATCH = 20
SEED = 20
SETTLE_S = 60.0
"""How long what was held may take to be given back: longer than any deadline here, seconds."""

HANG = "one hung read"
LEAVE = "clients leave"
PLAIN = "plain requests"
INJECTED: Mapping[str, Mapping[str, Any]] = {
    "healthy": {},
    "slow": SLOW_READS,
    "failed reads": TENTH_FAILS,
    "send queue full": SEND_QUEUE_FULL,
    LEAVE: taking(1.0),
    PLAIN: {},
    HANG: {"reset_ordinals": True, "rules": [{"requests": [3], "layers": [3], "hang": True}]},
}
"""What harms the reads of a batch, by the batch's kind."""


def plan(batches: int, hangs: int, seed: int = SEED) -> list[str]:
    """The kinds of all batches: so many with a hung read, the others in equal shares, shuffled.

    Args:
        batches: How many.
        hangs: How many of them have one hung read each.
        seed: The same seed gives the same order.
    """
    others = [kind for kind in INJECTED if kind != HANG]
    kinds = [HANG] * hangs + [others[n % len(others)] for n in range(batches - hangs)]
    random.Random(seed).shuffle(kinds)  # noqa: S311 - a repeatable order
    return kinds


def soak(servers: Servers, vllm: str, requests: int, hangs: int, say: Say) -> list[str]:
    """Serve mixed faults.

    Args:
        servers: The prefill engine is taken as it is.
        vllm: Their version.
        requests: How many are sent, after one batch of each kind to warm up.
        hangs: In how many reads hang.
        say: Gets a line for each batch.

    Returns:
        What is wrong: answers, and what was not given back.
    """
    servers.decode_as(decode_settings(RECOMPUTE, vllm))
    found = _serve(servers, vllm, list(INJECTED), "warm-up", say)
    before = _levels(servers)
    found += _serve(servers, vllm, plan(requests // BATCH, hangs), "soak", say)
    after = _levels(servers)
    for was, now in zip(before, after, strict=True):
        say(f"before {was}")
        say(f"after  {now}")
        found += grown(was, now)
    return found


def _serve(servers: Servers, vllm: str, kinds: Sequence[str], part: str, say: Say) -> list[str]:
    found = []
    for number, kind in enumerate(kinds, 1):
        scene = Scene(f"{part} {number}", servers)
        sent = _batch(scene, kind)
        row = judge(kind, vllm, RECOMPUTE, sent, scene.settle(0.0))
        say(f"{part} {number} of {len(kinds)}: {sentence(row)}")
        found += problems([row])
    return found


def _batch(scene: Scene, kind: str) -> list[Asked]:
    prompts = scene.prompts(BATCH)
    references = scene.references(prompts)
    if kind == PLAIN:
        return asked(scene.client.ask_decode(prompts), references)
    held = scene.client.hold(prompts)
    scene.harm(INJECTED[kind])
    client: PairClient = scene.client
    if kind == LEAVE:
        client = replace(client, patience_s=0.5)
    return asked(client.resume(held), references)


def _levels(servers: Servers) -> list[Level]:
    """Both engines once they hold nothing any more, or when that takes too long."""
    deadline = time.monotonic() + SETTLE_S
    scene = Scene("levels", servers)
    while True:
        # Gauges travel with steps.
        scene.client.ask_decode(scene.prompts(1), max_tokens=1)
        scene.client.reference(scene.prompts(1), max_tokens=1)
        levels = [level(server) for server in (servers.prefill, servers.decode)]
        if all(one.idle for one in levels) or time.monotonic() > deadline:
            return levels
        time.sleep(0.5)
