"""`moriio-observed demo`: a real pair, healthy and then broken, and the numbers for both."""

import argparse
from functools import partial
from pathlib import Path

from moriio_observed.demo import phases

NAME = "demo"
SUMMARY = "Run a real prefill/decode pair, break its reads, and show what the metrics say."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the demo."""
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("build"),
        metavar="DIR",
        help="where everything is written (default: build)",
    )
    parser.add_argument(
        "--keep", action="store_true", help="leave the pair and Prometheus running until Ctrl-C"
    )
    parser.add_argument(
        "--vllm-tree",
        type=Path,
        metavar="DIR",
        help="a folder with another vLLM version's package (an unzipped wheel)",
    )
    parser.add_argument(
        "--request",
        nargs="?",
        const="",
        metavar="WORDS",
        help="only send one request to the pair that a demo with --keep left running",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the demo, or send one request to a running one.

    Raises:
        DemoError: When the demo fails or there is nothing to send the request to.
    """
    if arguments.request is not None:
        answer = phases.request(arguments.out, arguments.request)
        print(f"request id: {answer.request_id}\nanswer: {answer.error or answer.text}")
        return 1 if answer.error else 0
    options = phases.Options(arguments.out, arguments.keep, arguments.vllm_tree)
    # Flushed, so that progress shows as it happens when the output goes through a pipe.
    phases.run(options, partial(print, flush=True))
    return 0
