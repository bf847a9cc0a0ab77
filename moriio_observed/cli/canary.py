"""`moriio-observed canary`: known-answer probes of a running deployment."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from moriio_observed import __version__
from moriio_observed.canary import golden as golden_file
from moriio_observed.canary import prompts
from moriio_observed.canary.errors import CanaryError
from moriio_observed.canary.metrics import CanaryMetrics, Mode, RoundResult
from moriio_observed.canary.schedule import Schedule
from moriio_observed.cli.extras import MissingExtraError, extra
from moriio_observed.cli.probing import add_target, counts, seconds, text, whole
from moriio_observed.doctor.errors import InputError

if TYPE_CHECKING:
    from moriio_observed.canary.choices import Choice
    from moriio_observed.canary.http import Http
    from moriio_observed.canary.running import Canary, Ended

NAME = "canary"
SUMMARY = "Probe a running deployment with prompts whose answers are known."

NO_VERDICT = 2
API_KEY = "MORIIO_CANARY_API_KEY"
DEFAULT_CONCURRENCIES = (1, 4, 16)
CANDIDATES = 2
"""So many times the wanted prompts are tried."""
JITTER = 0.2

_EPILOG = f"""\
  moriio-observed canary record --url http://single.example:8000 --model MODEL --golden golden.json
  moriio-observed canary run --once --url http://router.example:8000 --golden golden.json

{API_KEY} in the environment is sent as a bearer token.

Exit status: 0 every probe was answered right, 1 wrong answers, 2 no verdict: an input cannot be
read, or a server does not answer, or is busy.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the two actions and their options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    actions = parser.add_subparsers(dest="action", required=True, metavar="record | run")
    for name, summary, add in (
        ("record", "Write golden answers.", _add_record),
        ("run", "Probe, once or forever.", _add_run),
    ):
        action = actions.add_parser(name, help=summary, description=summary)
        _add_target(action)
        add(action)


def run(arguments: argparse.Namespace) -> int:
    """Record golden answers, or probe.

    Whatever keeps it from that is no verdict: 1, the usual status of failure, says that answers
    are wrong.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Better an odd character than no report, on a terminal that is not UTF-8.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        return _act(arguments)
    except (CanaryError, InputError, MissingExtraError, OSError) as error:
        _say(f"moriio-observed canary: {error}")
        return NO_VERDICT


def _act(arguments: argparse.Namespace) -> int:
    with extra("canary"):
        from moriio_observed.canary.http import Http
    act = _record if arguments.action == "record" else _run
    with Http(arguments.timeout, os.environ.get(API_KEY)) as http:
        return act(arguments, http)


def _add_target(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    parser.add_argument(
        "--golden", type=Path, required=True, metavar="FILE", help="the golden answers"
    )
    parser.add_argument(
        "--model",
        type=text,
        metavar="NAME",
        help="by which the server serves it (run: as recorded)",
    )
    parser.add_argument(
        "--concurrency",
        type=counts,
        metavar="N,N,...",
        help="how many prompts are sent at once, step by step (record: 1,4,16; run: as recorded)",
    )
    parser.add_argument(
        "--mode",
        choices=[str(mode) for mode in Mode],
        help="exact: the same tokens each time; degeneration: signs that a text has degenerated,"
        " and answers to other prompts (record: exact; run: as recorded)",
    )
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=120.0,
        metavar="SECONDS",
        help="how long a request may take (default: 120)",
    )


def _add_record(parser: argparse.ArgumentParser) -> None:
    for option, default, about in (
        ("--prompts", 32, "how many are wanted; twice as many are tried"),
        ("--prompt-words", 192, "words of the longest prompt; the shortest has a third of them"),
        ("--max-tokens", 32, "length of the answers"),
        ("--repeats", 3, "how often everything is asked"),
        ("--seed", 1, "what the prompts are drawn from"),
    ):
        parser.add_argument(
            option,
            type=whole(1),
            default=default,
            metavar="N",
            help=f"{about} (default: {default})",
        )
    parser.add_argument(
        "--words",
        type=Path,
        metavar="FILE",
        help="words to make prompts of, for a model that does not know English (default: our own)",
    )


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--once", action="store_true", help="one round, and the exit status")
    parser.add_argument("--json", action="store_true", help="each round as an object on a line")
    parser.add_argument(
        "--interval",
        type=seconds,
        default=60.0,
        metavar="SECONDS",
        help="mean pause between rounds (default: 60)",
    )
    parser.add_argument(
        "--max-waiting",
        type=whole(0),
        default=8,
        metavar="N",
        help="no probe is sent while more requests wait in an engine (default: 8)",
    )
    parser.add_argument(
        "--engine",
        action="append",
        default=[],
        metavar="URL",
        help="an engine behind the router of --url, to see how many requests wait; repeatable",
    )
    parser.add_argument(
        "--target", type=text, metavar="NAME", help="label of the metrics (default: host and port)"
    )
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="where to serve /metrics (default: 127.0.0.1)",
    )
    parser.add_argument(
        "--port", type=int, default=9470, metavar="PORT", help="and at which port (default: 9470)"
    )


def _record(arguments: argparse.Namespace, http: Http) -> int:
    from moriio_observed.canary.recording import Recording, record

    if not arguments.model:
        raise CanaryError("--model is missing: the name by which the server serves the model")
    recording = Recording(
        model=arguments.model,
        max_tokens=arguments.max_tokens,
        concurrencies=arguments.concurrency or DEFAULT_CONCURRENCIES,
        repeats=arguments.repeats,
        keep=arguments.prompts,
        mode=Mode(arguments.mode or Mode.EXACT),
    )
    if arguments.prompts < recording.needed:
        raise CanaryError(
            f"--prompts = {arguments.prompts}: must be {recording.needed} at least, twice the"
            " highest --concurrency"
        )
    words = prompts.read_words(arguments.words) if arguments.words else prompts.WORDS
    tried = prompts.make(
        arguments.seed, arguments.prompts * CANDIDATES, arguments.prompt_words, words
    )
    choice = _choice(arguments)
    target, alone = choice.target(http), choice.alone(http)
    golden_file.check_place(arguments.golden)
    golden = record(recording, target, tried, alone, _say)
    golden_file.write(golden, arguments.golden)
    _say(f"{len(golden.known)} golden answers of {golden.source}: {arguments.golden}")
    return 0


def _run(arguments: argparse.Namespace, http: Http) -> int:
    from moriio_observed.canary.report import EXIT_STATUS

    with _canary(arguments, http) as canary:
        ended = canary.round()
        _tell(arguments, ended)
        if arguments.once:
            return EXIT_STATUS[ended.round.result]
        schedule = Schedule(arguments.interval, JITTER)
        while True:
            time.sleep(schedule.pause(answered=ended.round.answered))
            before, ended = ended, canary.round()
            quiet = before.round.result is ended.round.result is RoundResult.RIGHT
            if arguments.json or not quiet:
                _tell(arguments, ended)


@contextmanager
def _canary(arguments: argparse.Namespace, http: Http) -> Iterator[Canary]:
    """A canary that is about to begin, its metrics served if it is to go on."""
    from moriio_observed.canary.choices import check_fit, check_mode
    from moriio_observed.canary.endpoint import serving
    from moriio_observed.canary.load import waiting
    from moriio_observed.canary.rounds import Prober
    from moriio_observed.canary.running import Canary

    first = golden_file.read(arguments.golden)
    model = arguments.model or first.model
    mode = Mode(arguments.mode or first.mode)
    max_waiting: int = arguments.max_waiting
    choice = _choice(arguments)
    target, reference = choice.target(http), choice.alone(http)

    metrics = CanaryMetrics(
        model, arguments.target or target.name, _concurrencies(arguments, first)
    )
    metrics.set("started_timestamp_seconds", time.time())
    metrics.set("interval_seconds", arguments.interval)
    metrics.set("info", 1, mode=mode, route=target.route, version=__version__)

    def is_busy() -> bool:
        return waiting(http, target.metrics_pages) > max_waiting

    def prober(golden: golden_file.Golden) -> Prober:
        asked = replace(golden, model=arguments.model or golden.model)
        concurrencies = _concurrencies(arguments, golden)
        check_fit(asked, concurrencies, model)
        check_mode(asked, mode)
        metrics.begin(concurrencies)
        return Prober(
            asked,
            target,
            mode=mode,
            concurrencies=concurrencies,
            reference=reference,
            is_busy=is_busy,
        )

    canary = Canary(arguments.golden, prober, metrics)
    if arguments.once:
        yield canary
        return
    with serving(metrics, arguments.host, arguments.port) as port:
        _say(f"serving /metrics on {arguments.host}, port {port}")
        yield canary


def _concurrencies(arguments: argparse.Namespace, golden: golden_file.Golden) -> tuple[int, ...]:
    return arguments.concurrency or golden.concurrencies


def _choice(arguments: argparse.Namespace) -> Choice:
    from moriio_observed.canary.choices import Choice

    return Choice(
        url=arguments.url,
        prefill=arguments.prefill,
        decode=arguments.decode,
        prefill_address=arguments.prefill_address,
        decode_address=arguments.decode_address,
        reference=arguments.reference,
        engines=getattr(arguments, "engine", ()),
    )


def _tell(arguments: argparse.Namespace, ended: Ended) -> None:
    from moriio_observed.canary import report

    if arguments.json:
        print(json.dumps(report.as_dict(ended)), flush=True)
        return
    for line in report.lines(ended):
        print(line, flush=True)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
