"""A canary for a real pair of the tiny model."""

from __future__ import annotations

from collections.abc import Sequence

from moriio_observed.canary.choices import Choice
from moriio_observed.canary.golden import Golden
from moriio_observed.canary.http import Http
from moriio_observed.canary.metrics import Mode
from moriio_observed.canary.prompts import make
from moriio_observed.canary.recording import Recording, record
from moriio_observed.canary.rounds import Prober
from moriio_observed.canary.targets import Pair, Target
from moriio_observed.demo.client import PairClient
from moriio_observed.demo.model import VOCABULARY, word

SWEEP = (1, 4, 16)
ROUND = sum(SWEEP)
"""Probes of one round."""
PROMPTS = 32
LONGEST = 192
MAX_TOKENS = 16
WORDS = tuple(word(token) for token in range(1, VOCABULARY))
"""What the tiny model knows."""

USUAL = tuple(make(1, PROMPTS + 4, LONGEST, WORDS))
"""Prompts as a canary has them."""
ALIKE = tuple(
    " ".join([*prompt.split()[: LONGEST // 3], WORDS[0]])
    for prompt in make(2, PROMPTS + 4, LONGEST, WORDS)
)
"""Prompts of one length and with one last word, the one that a decode engine computes itself: with
another's KV it gives just the other's answer."""


def choice(client: PairClient) -> Choice:
    """The pair that a client asks, as a user names it."""
    return Choice(
        prefill=client.prefill.url,
        decode=client.decode.url,
        prefill_address=client.prefill.zmq_address,
        decode_address=client.decode.zmq_address,
    )


def pair_of(http: Http, client: PairClient) -> Pair:
    """The pair that a client asks, as the canary asks it."""
    pair = choice(client).target(http)
    assert isinstance(pair, Pair)
    return pair


def recorded(http: Http, client: PairClient, prompts: Sequence[str] = USUAL) -> Golden:
    """Golden answers of the prefill engine alone."""
    alone = choice(client).alone(http)
    assert alone is not None
    recording = Recording(
        model="tiny",
        max_tokens=MAX_TOKENS,
        concurrencies=SWEEP[-1:],
        repeats=1,
        keep=PROMPTS,
        mode=Mode.EXACT,
    )
    return record(recording, alone, prompts)


def prober(http: Http, client: PairClient, golden: Golden, target: Target | None = None) -> Prober:
    """What probes the pair, or something else of it."""
    return Prober(
        golden,
        target or pair_of(http, client),
        mode=golden.mode,
        concurrencies=SWEEP,
        reference=choice(client).alone(http),
    )
