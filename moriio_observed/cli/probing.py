"""Options of the commands that send probes: whom to ask, and values that are checked."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

from moriio_observed.canary.golden import is_sendable

MOST_AT_ONCE = 256
"""Probes are no load test."""
LONGEST_S = 604_800
"""Seconds of a week."""


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
        value = _number(text)
        if not (value > 0 and math.isfinite(value)):
            raise argparse.ArgumentTypeError(f"{text!r}: must be {unit} above 0")
        return value

    return parse


def seconds(text: str) -> float:
    """Seconds above 0, and a week at most."""
    value = _number(text)
    if not 0 < value <= LONGEST_S:
        raise argparse.ArgumentTypeError(
            f"{text!r}: must be seconds above 0, and a week ({LONGEST_S}) at most"
        )
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def text(given: str) -> str:
    """Text that can be sent."""
    if not is_sendable(given):
        raise argparse.ArgumentTypeError(f"{given!r}: must be text in UTF-8")
    return given


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """Reads whole numbers from `least` on, to `most` where there is one."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least or (most is not None and value > most):
            upto = "on" if most is None else f"to {most}"
            raise argparse.ArgumentTypeError(
                f"{text!r}: must be a whole number from {least} {upto}"
            )
        return value

    return parse


def counts(text: str) -> tuple[int, ...]:
    """Different numbers of requests at once, between commas, in their order."""
    return tuple(sorted({whole(1, MOST_AT_ONCE)(part) for part in text.split(",")}))
