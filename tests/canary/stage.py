"""A canary for a real pair of the tiny model."""

from __future__ import annotations

from moriio_observed.canary.choices import Choice
from moriio_observed.canary.golden import Golden
from moriio_observed.canary.http import Http
from moriio_observed.canary.metrics import Mode
from moriio_observed.canary.prompts import make
from moriio_observed.canary.recording import Recording, record
from moriio_observed.canary.rounds import Prober
from moriio_observed.canary.targets import Target
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


def choice(client: PairClient) -> Choice:
    """The pair that a client asks, as a user names it."""
    return Choice(
        prefill=client.prefill.url,
        decode=client.decode.url,
        prefill_address=client.prefill.zmq_address,
        decode_address=client.decode.zmq_address,
    )


def recorded(http: Http, client: PairClient) -> Golden:
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
    return record(recording, alone, make(1, PROMPTS + 4, LONGEST, WORDS))


def prober(http: Http, client: PairClient, golden: Golden, target: Target | None = None) -> Prober:
    """What probes the pair, or something else of it."""
    chosen = choice(client)
    return Prober(
        golden,
        target or chosen.target(http),
        mode=golden.mode,
        concurrencies=SWEEP,
        reference=chosen.alone(http),
    )
