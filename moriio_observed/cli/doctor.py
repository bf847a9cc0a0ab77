"""`moriio-observed doctor`: what is wrong with a deployment, and what to do about it."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Iterator

from rich.console import Console

from moriio_observed.doctor import report
from moriio_observed.doctor.command_line import split
from moriio_observed.doctor.engines import Engine, Model
from moriio_observed.doctor.errors import InputError
from moriio_observed.doctor.examine import Case, examine
from moriio_observed.doctor.findings import exit_status
from moriio_observed.doctor.inputs import (
    Given,
    compilation_of,
    engine_of_command,
    engine_of_config,
    environ_of,
    that_matters,
    version_given,
)
from moriio_observed.doctor.read import address_of, text_of

NAME = "doctor"
SUMMARY = "Say what is wrong with a deployment, its numbers or its log, and what to do about it."

BAD_INPUT = 2
_EPILOG = """\
Everything is optional, and engines can be given several at once: the prefill and the decode side
together show more than each alone. Behind -- goes a whole command line, as it is:

  moriio-observed doctor -- vllm serve MODEL -tp 8 --kv-transfer-config '{…}'

Exit status: 0 nothing that matters, 1 something does, 2 an input cannot be read.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the doctor."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument(
        "--kv-transfer-config",
        action="append",
        default=[],
        metavar="JSON",
        help="an engine's, or a file with it",
    )
    parser.add_argument(
        "--command",
        dest="commands",
        action="append",
        default=[],
        metavar="'vllm serve …'",
        help="an engine's whole command line, with variables in front if there are any",
    )
    parser.add_argument("words", nargs="*", metavar="-- vllm serve …", help=argparse.SUPPRESS)
    parser.add_argument(
        "--compilation-config",
        metavar="JSON",
        help="or a file with it, or just a CUDA graph mode; for engines that do not say"
        " (default: vLLM's)",
    )
    parser.add_argument(
        "--environ",
        metavar="FILE",
        help="the engines' environment, as `env` prints it, or /proc/PID/environ"
        " (default: this process's)",
    )
    parser.add_argument(
        "--vllm-version",
        metavar="VERSION",
        help="(default: that of the running server, else of the vLLM installed here)",
    )
    parser.add_argument(
        "--kv-heads", type=int, metavar="N", help="the model's KV heads (default: its config.json)"
    )
    parser.add_argument(
        "--url", action="append", default=[], metavar="URL", help="a running vLLM server"
    )
    parser.add_argument(
        "--prometheus", metavar="URL", help="a Prometheus that should have our metrics"
    )
    parser.add_argument(
        "--log", action="append", default=[], metavar="FILE", help="a vLLM log; - is standard input"
    )
    parser.add_argument("--router", metavar="COMMAND", help="the command that starts the router")
    parser.add_argument(
        "--notes", action="store_true", help="also what nothing has to be done about"
    )
    parser.add_argument("--json", action="store_true", help="for machines; with the notes")


def run(arguments: argparse.Namespace) -> int:
    """Look at everything that was given, and say what was found."""
    try:
        findings = examine(_case(arguments))
    except InputError as error:
        print(f"moriio-observed doctor: {error}", file=sys.stderr)
        return BAD_INPUT
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Better an odd character than no page, on a terminal that is not UTF-8.
        sys.stdout.reconfigure(errors="backslashreplace")
    if arguments.json:
        print(report.as_json(findings))
    else:
        console = Console(highlight=False)
        for line in report.lines(findings, notes=arguments.notes):
            console.print(line)
    return exit_status(findings)


def _case(arguments: argparse.Namespace) -> Case:
    case = Case(
        engines=list(_engines(arguments)),
        version=version_given(arguments.vllm_version) if arguments.vllm_version else None,
        servers=[address_of(url, "--url") for url in arguments.url],
        prometheus=address_of(arguments.prometheus, "--prometheus")
        if arguments.prometheus
        else None,
        logs=arguments.log,
        router=split(arguments.router) if arguments.router else (),
    )
    if not (case.engines or case.servers or case.prometheus or case.logs or case.router):
        raise InputError(
            "nothing to look at: give a --kv-transfer-config, a command line behind --, a --url, a"
            " --prometheus, a --log or a --router"
        )
    return case


def _engines(arguments: argparse.Namespace) -> Iterator[Engine]:
    environ = that_matters(
        environ_of(text_of(arguments.environ, "--environ"))
        if arguments.environ
        else dict(os.environ)
    )
    compilation = arguments.compilation_config
    if arguments.kv_heads is not None and arguments.kv_heads < 1:
        raise InputError(f"--kv-heads = {arguments.kv_heads}: must be a number above 0")
    given = Given(
        environ,
        compilation=None if compilation is None else compilation_of(compilation),
        model=Model(arguments.kv_heads) if arguments.kv_heads else None,
    )
    for text in arguments.kv_transfer_config:
        yield engine_of_config(text, given)
    for text in arguments.commands:
        yield engine_of_command(split(text), given)
    if arguments.words:
        yield engine_of_command(arguments.words, given)
