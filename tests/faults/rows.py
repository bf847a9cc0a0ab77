"""The faults of the table, in the order in which one decode engine plays them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from moriio_observed.demo.client import (
    MAX_TOKENS,
    Answer,
    Held,
    PairClient,
    body,
    concurrently,
    engine_request_id,
    post,
)
from moriio_observed.demo.metrics import scrape
from moriio_observed.demo.phases import SLOW_READS
from tests.faults.modes import LEASE_S, Decode
from tests.faults.scene import REQUESTS, Scene, asked
from tests.faults.table import HEALTHY
from tests.faults.verdict import Asked

Play = Callable[[Scene], list[Asked]]

ABORT_S = 6.0
"""`recv_abort_timeout` of the decode engines: a read that hangs is given up by then, seconds."""
WHOLE_BLOCKS = 64
"""Tokens of two blocks; no prompt is shorter."""
MID_READ_S = 0.5
"""After so long, reads that take three times that are in flight, seconds."""

ONE_FAILS = {
    "seed": 3,
    "reset_ordinals": True,
    "rules": [
        {"requests": [4], "layers": [0], "fail": True},
        {"latency_s": 0.05, "jitter_s": 0.25},
    ],
}
TENTH_FAILS = {
    "seed": 4,
    "rules": [{"probability": 0.1, "fail": True}, {"latency_s": 0.05, "jitter_s": 0.25}],
}
HUNG_LAYER = {"reset_ordinals": True, "rules": [{"requests": [3, 8], "layers": [3], "hang": True}]}
LATE_LAYER = {"rules": [{"layers": [0], "latency_s": 5.0}]}
SEND_QUEUE_FULL = {"seed": 5, "rules": [{"sq_full": True, "probability": 0.5}]}


def taking(seconds: float) -> Mapping[str, Any]:
    """Every read takes so long."""
    return {"rules": [{"latency_s": seconds}]}


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        name: Its name in the table.
        play: Asks under the fault and gives what came back.
        decode: The decode engine it needs.
        lingers_s: How long after its beginning a read of it may still land, seconds.
        short_lease: Whether it needs the prefill engine with the short lease.
        revives_prefill: Whether it starts a dead prefill engine by itself.
    """

    name: str
    play: Play
    decode: Decode = Decode.USUAL
    lingers_s: float = 0.0
    short_lease: bool = False
    revives_prefill: bool = False


def under(faults: Mapping[str, Any]) -> Play:
    """Sixteen prompts at once while reads are harmed so."""

    def play(scene: Scene) -> list[Asked]:
        prompts = scene.prompts()
        references = scene.references(prompts)
        scene.harm(faults)
        return asked(scene.client.ask(prompts), references)

    return play


def plain(scene: Scene) -> list[Asked]:
    """Requests without a prefill leg, as a router sends by mistake."""
    prompts = scene.prompts()
    return asked(scene.client.ask_decode(prompts), scene.references(prompts))


def two_choices(scene: Scene) -> list[Asked]:
    """One prefill leg for two choices, each of which takes the likeliest token."""
    prompts = scene.prompts(REQUESTS // 2)
    references = scene.references(prompts)
    held = scene.client.hold(prompts)
    scene.harm(SLOW_READS)
    answers = concurrently(lambda one: _choose_twice(scene.client, one), held)
    return [
        Asked(answer, reference)
        for choices, reference in zip(answers, references, strict=True)
        for answer in choices
    ]


def _choose_twice(client: PairClient, held: Held) -> list[Answer]:
    # With temperature 0 vLLM refuses more than one choice.
    greedy_twice = {"n": 2, "temperature": 1, "top_k": 1, "kv_transfer_params": held.params}
    known_as = [f"{choice}_{engine_request_id(held.request_id)}" for choice in range(2)]
    try:
        request = body(held.prompt, MAX_TOKENS) | greedy_twice
        completion = post(client.decode.url, request, held.request_id)
    except (OSError, ValueError) as error:
        return [Answer(name, error=str(error)) for name in known_as]
    choices = sorted(completion["choices"], key=lambda choice: choice["index"])
    return [
        Answer(name, tuple(choice["token_ids"]), choice["text"])
        for name, choice in zip(known_as, choices, strict=True)
    ]


def full_hits(scene: Scene) -> list[Asked]:
    """Prompts whose whole blocks the decode engine has, while reads are slow."""
    return _twice(
        scene, [_cut(prompt, WHOLE_BLOCKS + 1) for prompt in scene.prompts(REQUESTS // 2)]
    )


def partial_hits(scene: Scene) -> list[Asked]:
    """Prompts whose first two blocks the decode engine has, while reads are slow."""
    known, others = scene.prompts(REQUESTS // 2), scene.prompts(REQUESTS // 2, draw=1)
    forks = [f"{_cut(one, WHOLE_BLOCKS)} {other}" for one, other in zip(known, others, strict=True)]
    return _twice(scene, known, forks)


def _twice(scene: Scene, first: Sequence[str], then: Sequence[str] | None = None) -> list[Asked]:
    then = then or first
    references = [scene.references(first), scene.references(then)]
    healthy = asked(scene.client.ask(first), references[0])
    scene.harm(SLOW_READS)
    return healthy + asked(scene.client.ask(then), references[1])


def _cut(prompt: str, tokens: int) -> str:
    return " ".join(prompt.split()[:tokens])


def hits_on_unlanded(scene: Scene) -> list[Asked]:
    """The same prompts again, long after their reads hung and were given up.

    They hit with all their whole blocks, so that nothing is left to read.
    """
    prompts = [_cut(prompt, WHOLE_BLOCKS + 1) for prompt in scene.prompts(REQUESTS // 2)]
    first, again = scene.references(prompts, 1), scene.references(prompts)
    scene.harm({"rules": [{"layers": [0], "hang": True}]})
    hung = asked(scene.client.ask(prompts, max_tokens=1), first)
    scene.settle(ABORT_S + 5)
    return hung + asked(scene.client.ask(prompts), again)


def client_leaves(scene: Scene) -> list[Asked]:
    """Clients hang up in mid-transfer; those who come next get the blocks."""
    leavers, next_ones = scene.prompts(), scene.prompts(20, draw=1)
    references = [scene.references(leavers), scene.references(next_ones)]
    held = scene.client.hold(leavers)
    scene.harm(LATE_LAYER)
    # So long that those who waited for the first step to end have been posted as well.
    left = replace(scene.client, patience_s=3.0).resume(held)
    scene.heal()
    came = scene.client.ask(next_ones)
    return asked(left, references[0]) + asked(came, references[1])


def late_landings(scene: Scene) -> list[Asked]:
    """Reads land two seconds after their requests were answered, in a full cache."""
    victims, next_ones = scene.prompts(20), scene.prompts(10, draw=1)
    references = [scene.references(victims, 1), scene.references(next_ones, 250)]
    held = scene.client.hold(victims)
    scene.harm({"rules": [{"layers": [0], "latency_s": 4.0}]})
    answered = scene.client.resume(held, max_tokens=1)
    scene.heal()
    came = scene.client.ask(next_ones, max_tokens=250)
    return asked(answered, references[0]) + asked(came, references[1])


def preempted(scene: Scene) -> list[Asked]:
    """More long answers than the decode engine's cache can hold."""
    prompts = scene.prompts(32)
    references = scene.references(prompts, 120)
    return asked(scene.client.ask(prompts, max_tokens=120), references)


def stale_params(scene: Scene) -> list[Asked]:
    """The decode leg comes after the prefill engine gave the blocks to others."""
    prompts = scene.prompts(REQUESTS // 2)
    references = scene.references(prompts)
    client = scene.servers.short_client
    before = scrape(client.prefill.url)
    held = client.hold(prompts)
    expired, draw = 0.0, 1
    while expired < len(held):
        # The prefill engine looks at its deadlines with its steps.
        client.reference(scene.prompts(draw=draw), max_tokens=1)
        draw += 1
        since = scrape(client.prefill.url).since(before)
        expired = since.total("moriio_deferred_sends_expired_total")
    for more in (draw, draw + 1):
        client.reference(scene.prompts(draw=more), max_tokens=1)
    return asked(client.resume(held), references)


def lease_ends_in_mid_read(scene: Scene) -> list[Asked]:
    """The read is posted within the lease and lands when others have the blocks."""
    prompts = scene.prompts(REQUESTS // 2)
    references = scene.references(prompts)
    client = scene.servers.short_client
    held = client.hold(prompts)
    began = time.monotonic()
    scene.harm(taking(1.8))
    time.sleep(LEASE_S - 1)
    with meanwhile(lambda: client.resume(held)) as answering:
        draw = 1
        while not answering.done():
            if time.monotonic() > began + LEASE_S:
                client.reference(scene.prompts(draw=draw), max_tokens=1)
                draw += 1
            else:
                time.sleep(0.1)
    return asked(answering.result(), references)


def params_twice(scene: Scene) -> list[Asked]:
    """The same params again, when the blocks they name are released and others'."""
    prompts = scene.prompts(REQUESTS // 2)
    references = scene.references(prompts)
    client = scene.servers.short_client
    held = client.hold(prompts)
    first = client.resume(held)
    for draw in (1, 2, 3):
        # Through both engines: the decode engine shall not have the prompts either.
        client.ask(scene.prompts(draw=draw), max_tokens=1)
    again = [replace(one, request_id=client.new_request_id()) for one in held]
    return asked(first, references) + asked(client.resume(again), references)


def prefill_killed(scene: Scene) -> list[Asked]:
    """The prefill engine is killed while its blocks are read."""
    prompts = scene.prompts()
    references = scene.references(prompts)
    held = scene.client.hold(prompts)
    scene.harm(taking(3 * MID_READ_S))
    with meanwhile(lambda: scene.client.resume(held)) as answering:
        time.sleep(MID_READ_S)
        scene.servers.kill_prefill()
    return asked(answering.result(), references)


def prefill_restarted(scene: Scene) -> list[Asked]:
    """The decode engine reads from a prefill engine that has the address of a dead one."""
    if scene.servers.prefill.running:
        scene.client.ask(scene.prompts(1, draw=1))
    scene.servers.restart_prefill()
    prompts = scene.prompts()
    references = scene.references(prompts)
    return asked(scene.client.ask(prompts), references)


def decode_restarted(scene: Scene) -> list[Asked]:
    """The decode engine is killed in mid-read; those still held are asked of its successor."""
    prompts = scene.prompts()
    references = scene.references(prompts)
    held = scene.client.hold(prompts)
    half = len(held) // 2
    scene.harm(taking(3 * MID_READ_S))
    with meanwhile(lambda: scene.client.resume(held[:half])) as answering:
        time.sleep(MID_READ_S)
        scene.heal()
        scene.restart_decode()
    return asked([*answering.result(), *scene.client.resume(held[half:])], references)


@contextmanager
def meanwhile(ask: Callable[[], list[Answer]]) -> Iterator[Future[list[Answer]]]:
    """Ask in another thread; the block ends when all is answered."""
    with ThreadPoolExecutor(1) as thread:
        yield thread.submit(ask)


FAULTS = (
    Fault(HEALTHY, under({})),
    Fault("slow", under(SLOW_READS)),
    Fault("one failed read", under(ONE_FAILS)),
    Fault("10 % failed reads", under(TENTH_FAILS)),
    Fault("send queue full", under(SEND_QUEUE_FULL)),
    Fault("plain request to D", plain),
    Fault("n=2", two_choices),
    Fault("prefix cache, full hits", full_hits),
    Fault("prefix cache, partial hits", partial_hits),
    Fault("preemption", preempted),
    Fault("hung layer", under(HUNG_LAYER), lingers_s=ABORT_S + 2),
    Fault("all late", under(taking(3.0)), lingers_s=4.0),
    Fault("client leaves in mid-transfer", client_leaves, lingers_s=8.0),
    Fault("late landing into reused blocks", late_landings, lingers_s=5.0),
    Fault("prefix cache, hits on unlanded", hits_on_unlanded),
    Fault("stale params", stale_params, short_lease=True),
    Fault("lease ends in mid-read", lease_ends_in_mid_read, short_lease=True),
    Fault("duplicate transfer id", params_twice, short_lease=True),
    Fault("D restarted", decode_restarted),
    # From here on the decode engine's sessions lead to a dead one: only another can follow.
    Fault("P killed in mid-read", prefill_killed, lingers_s=2.0),
    Fault("P restarted", prefill_restarted, revives_prefill=True),
    Fault("slow, FULL graphs", under(SLOW_READS), Decode.FULL_GRAPHS),
    Fault("slow, barrier off", under(SLOW_READS), Decode.BARRIER_OFF),
)
FAST = frozenset(
    {
        "slow",
        "one failed read",
        "plain request to D",
        "prefix cache, full hits",
        "prefix cache, partial hits",
        "hung layer",
    }
)
"""What a test run can afford."""
