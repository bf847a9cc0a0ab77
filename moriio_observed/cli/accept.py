"""`moriio-observed accept`: what only real hardware can prove, and a report to send back."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from moriio_observed.canary import prompts
from moriio_observed.canary.errors import CanaryError
from moriio_observed.canary.metrics import Mode
from moriio_observed.cli.canary import API_KEY, DEFAULT_CONCURRENCIES
from moriio_observed.cli.extras import extra
from moriio_observed.cli.probing import add_target, counts, positive, seconds, whole
from moriio_observed.config import shown
from moriio_observed.doctor.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from moriio_observed.accept.deployment import Deployment
    from moriio_observed.accept.plan import Plan
    from moriio_observed.accept.report import Report
    from moriio_observed.canary.http import Http

NAME = "accept"
SUMMARY = "Prove on your hardware what no machine of ours could, and write a report to send back."

BAD_INPUT = 2
_EPILOG = f"""\
  moriio-observed accept --report accept.json --hardware "MI300X, CX7" \\
    --prefill http://prefill.example:8000 --decode http://decode.example:8000

It says what it is going to send before it begins. {API_KEY} in the environment is sent as a
bearer token.

Exit status: 0 nothing is refuted, 1 something is, 2 no verdict: an input cannot be read, or a
server does not answer.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    add_target(parser)
    parser.add_argument(
        "--engine",
        action="append",
        default=[],
        metavar="URL",
        help="an engine behind the router of --url, for its numbers; repeatable, both sides",
    )
    parser.add_argument(
        "--bare-decode",
        metavar="URL",
        help="a decode engine with vLLM's own connector and the same prefill engine, to compare"
        " the cost with",
    )
    parser.add_argument(
        "--bare-decode-address", metavar="ADDRESS", help="where MoRIIO of that engine listens"
    )
    parser.add_argument(
        "--prometheus", metavar="URL", help="a Prometheus that should have our metrics"
    )
    parser.add_argument(
        "--hardware", default="", metavar="TEXT", help="your GPUs and cards, for the report only"
    )
    parser.add_argument("--quick", action="store_true", help="less of everything, in 5 minutes")
    parser.add_argument(
        "--minutes",
        type=positive("minutes"),
        metavar="N",
        help="after so many nothing more is sent (default: 20, with --quick 5)",
    )
    parser.add_argument(
        "--concurrency",
        type=counts,
        default=DEFAULT_CONCURRENCIES,
        metavar="N,N…",
        help="how many probes are sent at once, step by step (default: 1,4,16)",
    )
    parser.add_argument(
        "--model", metavar="NAME", help="(default: as the decode engine's numbers call it)"
    )
    parser.add_argument(
        "--mode",
        choices=[str(mode) for mode in Mode],
        default=str(Mode.EXACT),
        help="exact: the same tokens each time; degeneration: only signs that a text has"
        " degenerated, for models whose greedy answers vary (default: exact)",
    )
    parser.add_argument(
        "--words",
        type=Path,
        metavar="FILE",
        help="words to make prompts of, for a model that does not know English (default: our own)",
    )
    parser.add_argument(
        "--max-tokens",
        type=whole(1),
        default=32,
        metavar="N",
        help="length of the answers (default: 32)",
    )
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=120.0,
        metavar="SECONDS",
        help="how long a request may take (default: 120)",
    )
    parser.add_argument(
        "--max-waiting",
        type=whole(0),
        default=8,
        metavar="N",
        help="no probe is sent while more requests wait in an engine (default: 8)",
    )
    parser.add_argument(
        "--report",
        type=Path,
        metavar="FILE",
        help="write the report there as JSON, and beside it as Markdown (.md)",
    )
    parser.add_argument(
        "--with-hosts", action="store_true", help="leave addresses in the report (default: out)"
    )
    parser.add_argument("--json", action="store_true", help="the report on standard output")


def run(arguments: argparse.Namespace) -> int:
    """Gather, judge and tell.

    Raises:
        MissingExtraError: A library of the extra `accept` is not installed.
    """
    with extra(NAME):
        from moriio_observed.canary.http import Http
    try:
        with Http(arguments.timeout, os.environ.get(API_KEY)) as http:
            return _accept(arguments, http)
    except (CanaryError, InputError) as error:
        print(f"moriio-observed accept: {error}", file=sys.stderr)
        return BAD_INPUT


class _Kept:
    """The report in its file, from before the first request on; without a file nothing.

    Args:
        path: The file; None: none.
        known: Gives the report as far as it is known.
    """

    def __init__(self, path: Path | None, known: Callable[[], Report]) -> None:
        self._path = path
        self._known = known

    def save(self) -> None:
        """Write what is known.

        Raises:
            CanaryError: It cannot be written.
        """
        from moriio_observed.accept import report

        if self._path is not None:
            report.write(self._known().as_dict(), self._path)

    def try_to_save(self) -> None:
        """The same, while there is more to come: that it cannot be written is only said."""
        try:
            self.save()
        except CanaryError as error:
            _say(str(error))

    def say(self, what: str) -> None:
        """Say where it is."""
        if self._path is not None:
            _say(f"{what}: {self._path}, {self._path.with_suffix('.md')}")


def _accept(arguments: argparse.Namespace, http: Http) -> int:
    from moriio_observed.accept.gather import Acceptance
    from moriio_observed.accept.privacy import Privacy
    from moriio_observed.accept.report import Report

    path = _report_path(arguments)
    deployment = _deployment(arguments, http)
    plan = _plan(arguments, deployment)
    key = os.environ.get(API_KEY)
    privacy = Privacy(deployment.names, hosts=arguments.with_hosts, key=key)

    def known() -> Report:
        return Report(acceptance.facts, plan, privacy, arguments.hardware)

    kept = _Kept(path, known)
    acceptance = Acceptance(
        deployment,
        plan,
        http,
        max_waiting=arguments.max_waiting,
        say=_say,
        phase_ended=kept.try_to_save,
    )
    for line in plan.say():
        _say(line)
    # Rather now than after all that: can it be written?
    kept.save()
    try:
        acceptance.run()
    except BaseException:
        acceptance.stop("interrupted")
        kept.try_to_save()
        kept.say("what is known so far")
        raise
    found = known()
    # First: a disk that is full by now must not take the verdicts along.
    _tell(found, arguments)
    kept.save()
    kept.say("the report")
    if found.facts.ended:
        _say(f"moriio-observed accept: not complete: {found.facts.ended}")
    return found.exit_status


def _report_path(arguments: argparse.Namespace) -> Path | None:
    path: Path | None = arguments.report
    # Its Markdown stands beside it.
    if path is not None and (not path.name or path.is_dir() or path.suffix == ".md"):
        raise InputError(f"--report = {shown(str(path))}: must be a file for JSON: accept.json")
    return path


def _deployment(arguments: argparse.Namespace, http: Http) -> Deployment:
    from moriio_observed.accept.deployment import deployment
    from moriio_observed.canary.choices import Choice

    choice = Choice(
        url=arguments.url,
        prefill=arguments.prefill,
        decode=arguments.decode,
        prefill_address=arguments.prefill_address,
        decode_address=arguments.decode_address,
        reference=arguments.reference,
        engines=arguments.engine,
    )
    return deployment(
        choice,
        http,
        bare_decode=arguments.bare_decode,
        bare_address=arguments.bare_decode_address,
        prometheus=arguments.prometheus,
    )


def _plan(arguments: argparse.Namespace, deployment: Deployment) -> Plan:
    from moriio_observed.accept.plan import QUICK, Plan

    model = arguments.model or deployment.model
    if model is None:
        raise CanaryError("--model is missing: the name by which the servers serve it")
    plan = Plan(
        model=model,
        concurrencies=arguments.concurrency,
        max_tokens=arguments.max_tokens,
        mode=Mode(arguments.mode),
        words=prompts.read_words(arguments.words) if arguments.words else prompts.WORDS,
        compares=deployment.bare is not None,
        **(QUICK if arguments.quick else {}),
    )
    return plan.limited(arguments.minutes)


def _tell(known: Report, arguments: argparse.Namespace) -> None:
    from moriio_observed.accept import report

    found = known.as_dict()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Better an odd character than no page, on a terminal that is not UTF-8.
        sys.stdout.reconfigure(errors="backslashreplace")
    if arguments.json:
        print(json.dumps(found, indent=2, ensure_ascii=False))
        return
    console = Console(highlight=False)
    for line in report.lines(found):
        console.print(line)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
