"""One door under libFuzzer, by atheris: ``python -m tests.fuzz.guided DOOR CORPUS …``."""

from __future__ import annotations

import random
import sys

import atheris

with atheris.instrument_imports(include=["moriio_observed", "prometheus_client"]):
    from tests.fuzz.door import ODD, tokens
    from tests.fuzz.doors import DOORS


def changed(brought: bytes, longest: int, seed: int) -> bytes:
    """Half of the time as libFuzzer does it, by bytes and likely words; else a whole word."""
    chance = random.Random(seed)  # noqa: S311  (no secret)
    if chance.random() < 0.5:
        return atheris.Mutate(brought, longest)
    begin, end = chance.choice(tokens(brought))
    return (brought[:begin] + chance.choice(ODD) + brought[end:])[:longest]


if __name__ == "__main__":
    program, door, *options = sys.argv
    atheris.Setup([program, *options], DOORS[door].takes, custom_mutator=changed)
    atheris.Fuzz()
