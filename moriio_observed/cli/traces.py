"""`moriio-observed traces`: from a request to the read that was late, in the terminal."""

from __future__ import annotations

import argparse
import io
import os
import re
import shlex
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.text import Text

from moriio_observed.traces import sink
from moriio_observed.traces.errors import TracesError
from moriio_observed.traces.spans import READ, SLOW_S, STEP, Span
from moriio_observed.traces.store import DEMO_FOLDER, SpanStore, Summary, user_folder
from moriio_observed.traces.style import IN_ASCII, Style
from moriio_observed.traces.text import duration, safe
from moriio_observed.traces.tree import render

NAME = "traces"
SUMMARY = "Show where requests waited for reads, as a tree; or receive their spans."

TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
_INVITATION = """\
receiving spans at {url}, kept in {folder}

Start vLLM with
  export OTEL_EXPORTER_OTLP_ENDPOINT={url}
  export OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf
and, for vLLM's own spans as well, with
  export OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf
  --otlp-traces-endpoint {url}/v1/traces

Then look: moriio-observed traces --last{place}. Ctrl-C ends this."""
LISTED = 30
"""So many of the latest traces are listed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the traces."""
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--last",
        action="store_true",
        help="the latest trace in which reads were slow or failed, else the latest (default)",
    )
    what.add_argument(
        "--trace", metavar="ID", help="this trace: its id, the beginning of it, or a traceparent"
    )
    what.add_argument(
        "--request", metavar="ID", help="the latest trace of this request, by its id or a part"
    )
    what.add_argument("--list", action="store_true", help="the latest traces, one line each")
    what.add_argument(
        "--serve", action="store_true", help="receive spans by OTLP over HTTP until Ctrl-C"
    )
    parser.add_argument(
        "--from",
        "--to",
        dest="place",
        type=Path,
        metavar="PATH",
        help="the folder that --serve writes to, or, to look at, a file of OTLP JSON lines"
        f" (default: {user_folder(os.environ)}, to look at also {DEMO_FOLDER})",
    )
    parser.add_argument(
        "--port",
        type=int,
        default=sink.PORT,
        help=f"where --serve listens; 0 takes a free one (default: {sink.PORT})",
    )
    parser.add_argument(
        "--slow",
        type=float,
        default=SLOW_S,
        metavar="SECONDS",
        help=f"a wait this long is slow (default: {SLOW_S})",
    )
    parser.add_argument("--all", action="store_true", help="sum nothing up, leave nothing out")
    parser.add_argument("--verbose", action="store_true", help="every attribute, link and event")
    parser.add_argument(
        "--whole-axis", action="store_true", help="bars over the whole trace, not only its reads"
    )


def run(arguments: argparse.Namespace) -> int:
    """Show traces, or receive them.

    Raises:
        TracesError: When there is nothing to show, or nothing can be received.
    """
    if arguments.serve:
        return _serve(arguments.place, arguments.port)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Better an odd character than no page, on a terminal that is not UTF-8.
        sys.stdout.reconfigure(errors="backslashreplace")
    console = Console(highlight=False)
    unicode = console.encoding.lower().startswith("utf")
    for line in _listed(arguments) if arguments.list else _shown(arguments, console.width):
        if not unicode:
            line.plain = line.plain.translate(IN_ASCII)
        console.print(line, soft_wrap=True)
    return 0


def _serve(place: Path | None, port: int) -> int:
    folder = place or user_folder(os.environ)
    say = partial(print, flush=True)
    with sink.Sink(folder, port=port, say=say) as receiver:
        named = f" --from {shlex.quote(str(place))}" if place else ""
        say(_INVITATION.format(url=receiver.url, folder=folder, place=named))
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            say(f"\n{receiver.received} spans received")
    return 0


def _shown(arguments: argparse.Namespace, width: int) -> Iterator[Text]:
    store = _store(arguments)
    summary, why = _chosen(_summaries(store, arguments), arguments)
    spans = store.spans([summary.trace_id])
    skipped = store.skipped
    style = Style(
        width=width,
        slow_s=arguments.slow,
        everything=arguments.all,
        verbose=arguments.verbose,
        whole_axis=arguments.whole_axis,
    )
    yield Text(why, "dim")
    yield from render(summary.trace_id, spans, _linked_steps(store, spans), style)
    yield from _skipped(skipped)


def _listed(arguments: argparse.Namespace) -> Iterator[Text]:
    store = _store(arguments)
    summaries = _summaries(store, arguments)
    shown = summaries if arguments.all else summaries[-LISTED:]
    yield Text(
        f"{'began (UTC)':20}{'trace':34}{'took':>8}{'spans':>7}{'fail':>5}{'slow':>5}", "dim"
    )
    for summary in shown:
        began = datetime.fromtimestamp(summary.start_ns // 1_000_000_000, UTC)
        took = duration(summary.end_ns - summary.start_ns)
        yield Text(
            f"{began:%Y-%m-%d %H:%M:%S} {summary.trace_id}  {took:>8}{len(summary.keys):7}"
            f"{summary.failed or '-':>5}{summary.slow or '-':>5}",
            "bold" if summary.troubled else "",
        )
    if left_out := len(summaries) - len(shown):
        yield Text(f"and {left_out} earlier ones: --all", "dim")
    yield from _skipped(store.skipped)


def _skipped(number: int) -> Iterator[Text]:
    if number:
        yield Text(f"left out, because unreadable (torn, or not OTLP JSON): {number}", "dim")


def _store(arguments: argparse.Namespace) -> SpanStore:
    if arguments.place is not None:
        if not arguments.place.exists():
            raise TracesError(f"{arguments.place} does not exist: name a sink's folder or a file")
        return SpanStore([arguments.place])
    return SpanStore([user_folder(os.environ), DEMO_FOLDER])


def _summaries(store: SpanStore, arguments: argparse.Namespace) -> list[Summary]:
    summaries = store.summaries(arguments.slow)
    if not summaries:
        places = " and ".join(map(str, store.places))
        unreadable = f" ({store.skipped} lines there are not OTLP JSON)" if store.skipped else ""
        raise TracesError(
            f"no traces in {places}{unreadable}: start `moriio-observed traces --serve`, start vLLM"
            " with what that prints, and send a request with a sampled traceparent; or run"
            " `make demo`; or name another place with --from"
        )
    return summaries


def _chosen(summaries: list[Summary], arguments: argparse.Namespace) -> tuple[Summary, str]:
    """The trace to show, and why it is this one."""
    if arguments.trace is not None:
        return _by_id(summaries, arguments.trace), "the trace you asked for"
    if arguments.request is not None:
        return _by_request(summaries, arguments.request), "the latest trace of that request"
    for summary in reversed(summaries):
        if summary.troubled:
            return summary, "the latest trace in which reads were slow or failed"
    return summaries[-1], "the latest trace; none here has slow or failed reads"


def _by_id(summaries: list[Summary], text: str) -> Summary:
    wanted = text.strip().lower()
    if traceparent := TRACEPARENT.fullmatch(wanted):
        wanted = traceparent[1]
    found = [summary for summary in summaries if summary.trace_id.startswith(wanted)]
    if len(found) > 1:
        ids = ", ".join(summary.trace_id for summary in found[:3])
        raise TracesError(f"{len(found)} traces begin with {safe(text, 80)}: {ids} …")
    if not found or not wanted:
        raise TracesError(
            f"no trace {safe(text, 80)} among the {len(summaries)} here: it was not sampled, not"
            " sent here, or is too old; `moriio-observed traces --list` shows what there is"
        )
    return found[0]


def _by_request(summaries: list[Summary], text: str) -> Summary:
    # vLLM adds to the client's id before and behind, so what is asked for has more, or less.
    matches: tuple[Callable[[str], bool], ...] = (
        lambda known: known == text,
        lambda known: text in known,
        lambda known: known in text,
    )
    for matching in matches if text else ():
        for summary in reversed(summaries):
            if any(map(matching, summary.request_ids)):
                return summary
    raise TracesError(
        f"no span here names request {safe(text, 80)}: it was not sampled, not sent here, or is too"
        " old; and with otlp.hash_request_ids spans only carry hashes"
    )


def _linked_steps(store: SpanStore, spans: list[Span]) -> list[Span]:
    """The steps that waited for these reads on behalf of another request's trace, and theirs."""
    own = {span.trace_id for span in spans}
    links = {
        (link.trace_id, link.span_id)
        for span in spans
        if span.name == READ
        for link in span.links
        if link.trace_id not in own
    }
    others = store.spans({trace_id for trace_id, _ in links}) if links else []
    steps = {
        span.span_id
        for span in others
        if span.name == STEP and (span.trace_id, span.span_id) in links
    }
    return [span for span in others if span.span_id in steps or span.parent_id in steps]
