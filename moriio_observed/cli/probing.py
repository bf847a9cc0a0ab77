"""Options of the commands that send probes: whom to ask, and values that are checked."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable


def add_target(parser: argparse.ArgumentParser) -> None:
    """Add the options that name whom to ask: see `moriio_observed.canary.choices`."""
    parser.add_argument("--url", metavar="URL", help="a router, or an engine that answers alone")
    for side, other in (("prefill", "decode"), ("decode", "prefill")):
        parser.add_argument(
            f"--{side}", metavar="URL", help=f"the {side} engine, together with --{other}"
        )
        parser.add_argument(
            f"--{side}-address",
            metavar="ADDRESS",
            help=f"where MoRIIO of the {side} engine listens (default:"
            " host:HOST,handshake:6301,notify:61005 with the host of its URL)",
        )
    parser.add_argument(
        "--reference",
        metavar="URL",
        help="an engine that answers alone, with which answers are compared (default: the prefill"
        " engine, where it is given)",
    )


def positive(unit: str) -> Callable[[str], float]:
    """Reads numbers above 0."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (value > 0 and math.isfinite(value)):
            raise argparse.ArgumentTypeError(f"{text!r}: must be {unit} above 0")
        return value

    return parse


def whole(least: int) -> Callable[[str], int]:
    """Reads whole numbers from `least` on."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"{text!r}: must be a whole number from {least} on")
        return value

    return parse


def counts(text: str) -> tuple[int, ...]:
    """Different whole numbers above 0, between commas, in their order."""
    return tuple(sorted({whole(1)(part) for part in text.split(",")}))
