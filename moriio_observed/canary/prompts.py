"""Synthetic prompts: lists of words, of which the answer is to say the beginning once more.

To copy a list a model has to look at every part of the prompt's KV, and is sure of each token, so
the answer rarely hangs on rounding. The words are drawn from a seed: no prompt is anybody's.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from moriio_observed.canary.errors import CanaryError
from moriio_observed.config import shown

LEAD_WORDS = 3
"""How many words of the copy the prompt already has."""
FEWEST_WORDS = 64
"""What a file of words has at least."""

_TEXT = """
acid anchor apple arrow autumn bacon badge bamboo banana barrel basket beach bean bell bench
bird blanket board boat bone book border bottle box branch brass bread breeze brick bridge
brush bucket button cabin cable cactus camel camera candle canoe canvas captain carbon card
carpet castle cat cave cedar cellar chain chair chalk cheese cherry chest circle clay cliff
clock cloud clover coal coast coffee coin collar copper coral corn cotton cow crab crane
crystal cup curtain daisy dance deer desert desk diamond dog dolphin door dragon drum duck
eagle earth east echo egg elbow engine fabric falcon farm feather fence field finger fire fish
flag flame flute forest fork fox frog frost fruit garden garlic gate ginger glass globe glove
goat gold goose grape grass gravel guitar hammer harbor harvest hat hawk hay hill honey hook
horn horse hotel ice ink iron island ivory jacket jar jelly jewel jungle kettle key king kite
kitchen knife ladder lake lamp lantern lava leaf leather lemon library light lily lion lizard
lobster lock lotus magnet maple marble market mask meadow melon metal milk mint mirror monkey
moon moss mountain mouse museum mushroom nail needle nest night north nut oak ocean olive onion
orange orchid otter oven owl oyster paint palace palm panda paper parrot peach pearl pencil
pepper piano pigeon pillow pine pirate planet plate plum pocket pony potato prince pumpkin
puzzle quartz queen rabbit radio rain raven ribbon rice ring river road robin rocket roof rope
rose ruby saddle sail salmon salt sand saucer scarf school shadow shark sheep shell ship silk
silver sister skate smoke snail snow soap south spider spoon spring squirrel star steam stone
storm straw sugar summer sun swan table tailor teapot temple tent thread thunder tiger timber
toast tomato tower train tree trumpet tulip tunnel turtle umbrella valley vase velvet village
violin wagon walnut water wax west whale wheat wheel willow window wine winter wolf wood wool
yarn zebra
"""
WORDS: tuple[str, ...] = tuple(_TEXT.split())


def make(seed: int, count: int, longest: int, words: Sequence[str] = WORDS) -> list[str]:
    """Draw prompts; the same arguments give the same prompts, and a longer list begins alike.

    Args:
        seed: What they are drawn from.
        count: How many.
        longest: The most words of a list; the shortest has a third of that. No word comes twice in
            a list while there are enough of them.
        words: What they are made of.
    """
    draw = random.Random(seed)  # noqa: S311 - repeatable on purpose
    return [_prompt(draw, draw.randint(-(-longest // 3), longest), words) for _ in range(count)]


def read_words(path: Path) -> tuple[str, ...]:
    """Words for prompts from a file, separated by space.

    Raises:
        CanaryError: It cannot be read, or has too few.
    """
    try:
        words = tuple(dict.fromkeys(path.read_text(encoding="utf-8").split()))
    except (OSError, ValueError) as error:
        raise CanaryError(f"--words {shown(str(path))} cannot be read: {error}") from None
    if len(words) < FEWEST_WORDS:
        raise CanaryError(
            f"--words {shown(str(path))} has {len(words)} different words:"
            f" must have {FEWEST_WORDS} at least, separated by space"
        )
    return words


def _prompt(draw: random.Random, length: int, words: Sequence[str]) -> str:
    drawn: list[str] = []
    while len(drawn) < length:
        drawn += draw.sample(words, min(length - len(drawn), len(words)))
    return f"{' '.join(drawn)}\n\n{' '.join(drawn[:LEAD_WORDS])}"
