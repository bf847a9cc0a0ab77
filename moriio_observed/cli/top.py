"""`moriio-observed top`: what engines say of themselves now, in the terminal."""

from __future__ import annotations

import argparse
import io
import math
import sys

from rich.console import Console

from moriio_observed.doctor.errors import InputError
from moriio_observed.doctor.read import address_of
from moriio_observed.top.as_json import as_json
from moriio_observed.top.board import Board
from moriio_observed.top.live import once, printable, watch
from moriio_observed.top.picture import Picture

NAME = "top"
SUMMARY = "Watch engines in the terminal: exposure, waits, reads, ranks and alerts, worst first."

BAD_INPUT = 2
SHORTEST_S, LONGEST_S = 0.2, 3600.0
_EPILOG = """\
q or Ctrl-C ends it. Where standard output is no terminal, it is as with --once.

Exit status of --once and --json: 0 all servers have told their numbers, 1 one has not,
2 an argument cannot be used.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the view."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument(
        "urls", nargs="+", metavar="URL", help="a vLLM server, such as http://decode.example:8000"
    )
    parser.add_argument(
        "--interval",
        type=_seconds,
        default=2.0,
        metavar="SECONDS",
        help="from one look to the next; rates and quantiles are those in between (default: 2)",
    )
    parser.add_argument(
        "--timeout",
        type=_seconds,
        default=5.0,
        metavar="SECONDS",
        help="a server that takes longer does not answer (default: 5)",
    )
    parser.add_argument(
        "--prometheus", metavar="URL", help="a Prometheus that has our alerts, to show which fire"
    )
    parser.add_argument(
        "--once", action="store_true", help="print one picture, of two looks, and end"
    )
    parser.add_argument("--json", action="store_true", help="the same for machines")


def run(arguments: argparse.Namespace) -> int:
    """Show the engines."""
    try:
        servers = [address_of(url, "URL") for url in arguments.urls]
        prometheus = arguments.prometheus and address_of(arguments.prometheus, "--prometheus")
    except InputError as error:
        print(f"moriio-observed top: {error}", file=sys.stderr)
        return BAD_INPUT
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Better an odd character than no picture, on a terminal that is not UTF-8.
        sys.stdout.reconfigure(errors="backslashreplace")
    board = Board(servers, prometheus, arguments.timeout)
    console = Console(highlight=False)
    # Of the descriptor, not the console: FORCE_COLOR makes a terminal of a pipe.
    live = sys.stdout.isatty() and not console.is_dumb_terminal
    if live and not (arguments.once or arguments.json):
        return watch(board, console, arguments.interval)
    seen = once(board, arguments.interval)
    if arguments.json:
        print(as_json(seen))
    else:
        for line in printable(seen, console, None):
            console.print(line, soft_wrap=True)
    return _status(seen)


def _status(seen: Picture) -> int:
    return int(any(row.engine is None for row in seen.rows))


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not SHORTEST_S <= value <= LONGEST_S:
        raise argparse.ArgumentTypeError(
            f"{text!r}: must be a number of seconds from {SHORTEST_S:g} to {LONGEST_S:g}"
        )
    return value
