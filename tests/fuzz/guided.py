"""One door under libFuzzer, by atheris: ``python -m tests.fuzz.guided DOOR CORPUS …``."""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["moriio_observed", "prometheus_client"]):
    from tests.fuzz.doors import DOORS

if __name__ == "__main__":
    program, door, *options = sys.argv
    atheris.Setup([program, *options], DOORS[door].takes)
    atheris.Fuzz()
