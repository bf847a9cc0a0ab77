"""`moriio-observed`: one module of this package per subcommand.

A subcommand is a module with `NAME`, `SUMMARY`, `add_arguments(parser)` and
`run(arguments) -> int`, listed in `COMMANDS`.
"""

import argparse
import os
import select
import signal
import sys
from collections.abc import Sequence

from moriio_observed import __version__
from moriio_observed.alerting.errors import AlertsError
from moriio_observed.cli import accept, alerts, canary, dashboards, demo, doctor, top, traces
from moriio_observed.cli.extras import MissingExtraError
from moriio_observed.dashboarding.errors import DashboardsError
from moriio_observed.demo.errors import DemoError
from moriio_observed.traces.errors import TracesError

COMMANDS = (demo, doctor, top, canary, accept, traces, alerts, dashboards)
FAILURES = (AlertsError, DashboardsError, DemoError, MissingExtraError, OSError, TracesError)
INTERRUPTED = 130
TERMINATED = 143


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand.

    Args:
        argv: The arguments, by default those of the process.

    Returns:
        The exit status; when it is not 0 the last line on standard error says why, unless nobody
        reads what is printed.
    """
    arguments = _parser().parse_args(argv)
    # So that whatever a command started is stopped, and its files removed, on SIGTERM too.
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        status: int = arguments.run(arguments)
        sys.stdout.flush()
    except FAILURES as error:
        if isinstance(error, BrokenPipeError) and _nobody_reads():
            return 1
        print(f"moriio-observed {arguments.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"moriio-observed {arguments.command}: interrupted", file=sys.stderr)
        return INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, before)
    return status


def _nobody_reads() -> bool:
    """Whether standard output leads nowhere any more, as before ``| head``; then all is quiet."""
    poll = select.poll()
    poll.register(sys.stdout, 0)
    gone = bool(poll.poll(0))
    if gone:
        # What is still to be written would fail again when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return gone


def _terminate(*_: object) -> None:
    raise SystemExit(TERMINATED)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="moriio-observed",
        description="Observes MoRIIO's READ barrier in vLLM.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="command")
    for command in COMMANDS:
        subparser = subparsers.add_parser(
            command.NAME, help=command.SUMMARY, description=command.SUMMARY
        )
        command.add_arguments(subparser)
        subparser.set_defaults(run=command.run)
    return parser
