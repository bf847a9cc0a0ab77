"""The prompts the demo asks."""

import random

from moriio_observed.demo.model import VOCABULARY, word

REQUESTS = 16
SHORTEST, LONGEST = 70, 250
"""Prompt lengths in tokens: several KV blocks of 32, and no two alike."""


def prompts(seed: int, count: int = REQUESTS) -> list[str]:
    """Draw prompts of different lengths; the same seed gives the same prompts.

    Prompts of different seeds share no prefix, so that an engine that has answered one set
    has to read the next one.
    """
    draw = random.Random(seed)  # noqa: S311 - a repeatable workload
    lengths = draw.sample(range(SHORTEST, LONGEST), count)
    return [" ".join(word(draw.randrange(1, VOCABULARY)) for _ in range(n)) for n in lengths]
