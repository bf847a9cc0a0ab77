"""A trace as a tree for a terminal: who waited, for how long, and where it went wrong.

Meant for a tired person in 80 columns without color: what is slow or failed has a sign at the
left edge and a solid bar, and all bars share one axis.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from moriio_observed.traces.axis import axis_of, extent
from moriio_observed.traces.facts import facts, label
from moriio_observed.traces.forest import Forest, Node, Rest, forest, in_short
from moriio_observed.traces.spans import BARRIER, STEP, Attributes, Span
from moriio_observed.traces.style import (
    BRANCH,
    CUT,
    FAILED,
    GAP,
    LAST,
    LINE,
    MARKED,
    PLAIN,
    SLOW,
    Style,
)
from moriio_observed.traces.text import duration, safe

SHOWN = 5
"""So many siblings of one name are shown one by one; the others are summed up."""
DEEPEST_GUIDES = 24
LONGEST_VALUE = 1000
START, TOOK = 10, 9


def render(
    trace_id: str, spans: Sequence[Span], others: Sequence[Span], style: Style
) -> Iterator[Text]:
    """The lines of a trace.

    Args:
        trace_id: Its id.
        spans: Its spans, by their start; at least one.
        others: Spans of other traces to show below it: the steps it links to, and theirs.
        style: How.
    """
    return _Page(trace_id, spans, others, style).lines()


class _Page:
    def __init__(
        self, trace_id: str, spans: Sequence[Span], others: Sequence[Span], style: Style
    ) -> None:
        self.trace_id, self.spans, self.others, self.style = trace_id, spans, others, style
        self.origin = min(span.start_ns for span in spans)
        self.by_id = {(span.trace_id, span.span_id): span for span in (*spans, *others)}
        ranks = {str(span.resource.get("moriio.tp_rank", "")) for span in self.by_id.values()}
        self.with_rank = len(ranks - {""}) > 1
        self.everything = [*spans, *others]
        self.axis = axis_of(self.everything, whole=style.whole_axis)
        self.bar_width = max(12, (style.width - START - TOOK) * 2 // 5 - 4)
        self.label_width = max(20, style.width - START - TOOK - self.bar_width - 4)

    def lines(self) -> Iterator[Text]:
        yield from self._head()
        yield self._scale()
        yield from self._trees(forest(self.spans))
        by_trace: dict[str, list[Span]] = {}
        for span in self.others:
            by_trace.setdefault(span.trace_id, []).append(span)
        for trace_id, spans in by_trace.items():
            yield Text(f"linked from here, in trace {trace_id}", "bold")
            yield from self._trees(forest(spans), linked=True)
        yield from self._foot()

    # The head: the answer, in words.

    def _head(self) -> Iterator[Text]:
        began = datetime.fromtimestamp(self.origin // 1_000_000_000, UTC)
        milliseconds = self.origin // 1_000_000 % 1000
        yield Text(f"trace {self.trace_id}", "bold")
        yield Text(
            f"began {began:%Y-%m-%d %H:%M:%S}.{milliseconds:03} UTC, took {self._length()},"
            f" {_count(len(self.spans), 'span')}"
        )
        barriers = [span for span in self.everything if span.name == BARRIER]
        slowest = max(barriers, key=lambda span: span.waited_ns, default=None)
        yield self._slowest(slowest)
        failed = Counter(
            f"{label(span, with_rank=self.with_rank)} {facts(span)[0]}"
            for span in self.everything
            if span.failed and span is not slowest
        )
        for what, times in failed.most_common(SHOWN):
            repeated = f" ({times} times)" if times > 1 else ""
            yield Text(f"{FAILED} {what}{repeated}", "bold red")
        if len(failed) > SHOWN:
            yield Text(f"{FAILED} and {len(failed) - SHOWN} other errors", "bold red")
        yield Text()

    def _slowest(self, slowest: Span | None) -> Text:
        if slowest is None:
            return Text("no barrier waited here, or its spans were not kept", "dim")
        step = self.by_id.get((slowest.trace_id, slowest.parent_id))
        of_step = f" of {label(step, with_rank=False)}" if step else ""
        sign, style = self._mark([slowest])
        return Text(
            f"{sign.strip() or ' '} slowest barrier: {duration(slowest.waited_ns)},"
            f" {label(slowest, with_rank=self.with_rank)}{of_step}, {_outcome(slowest)}",
            style or "bold",
        )

    def _scale(self) -> Text:
        first, last = (self._after(at) for at in (self.axis.start, self.axis.end))
        gap = self.bar_width - len(first) - len(last)
        scale = first + " " * gap + last if gap > 0 else last.rjust(self.bar_width)
        return self._row("   ", "", "start", "took", scale, "dim")

    # The trees.

    def _trees(self, trees: Forest, *, linked: bool = False) -> Iterator[Text]:
        yield from self._below(trees.roots, "", top=True)
        for parent, nodes in trees.orphans.items():
            if not linked:
                yield Text(
                    f"   parent {parent} is not here: its sender keeps its spans elsewhere", "dim"
                )
            yield from self._below(nodes, "", top=linked)
        if trees.loops:
            yield Text("   each other's parents, which cannot be:", "dim")
            yield from self._below(trees.loops, "")

    def _below(self, siblings: Sequence[Node], guides: str, *, top: bool = False) -> Iterator[Text]:
        """The rows of these nodes and all below them."""
        pending = [(item, guides, last, top) for item, last in self._pieces(siblings)][::-1]
        while pending:
            item, guides, last, is_top = pending.pop()
            own = "" if is_top else LAST if last else BRANCH
            below = guides + ("" if is_top else GAP if last else LINE)
            if len(below) > DEEPEST_GUIDES:
                below = CUT + below[-DEEPEST_GUIDES + 1 :]
            if isinstance(item, Rest):
                yield from self._rest(item, guides + own, below)
                continue
            yield from self._node(item, guides + own, below)
            pending += [(child, below, last, False) for child, last in self._pieces(item.children)][
                ::-1
            ]

    def _pieces(self, siblings: Sequence[Node]) -> Iterable[tuple[Node | Rest, bool]]:
        most = len(siblings) if self.style.everything else SHOWN
        items = in_short(siblings, most)
        return [(item, number == len(items)) for number, item in enumerate(items, 1)]

    def _node(self, node: Node, guides: str, below: str) -> Iterator[Text]:
        span = node.span
        sign, style = self._mark([span])
        glyph = MARKED if style else PLAIN
        yield self._row(
            sign,
            guides + label(span, with_rank=self.with_rank),
            self._after(span.start_ns),
            duration(span.took_ns),
            self.axis.bar([span], self.bar_width, glyph),
            style,
        )
        below += LINE if node.children else GAP
        told = facts(span) if style or span.name != BARRIER or self.style.verbose else []
        yield from self._note(below, ", ".join([*told, *self._links(span)]))
        if self.style.verbose:
            for note in self._details(span):
                yield from self._note(below, note)

    def _rest(self, rest: Rest, guides: str, below: str) -> Iterator[Text]:
        spans = [node.span for node in rest.nodes]
        took = [span.took_ns for span in spans]
        under = sum(1 for node in rest.nodes for _ in node.walk()) - len(spans)
        sign, style = self._mark(spans)
        glyph = MARKED if style else PLAIN
        yield self._row(
            sign,
            f"{guides}{len(spans)} other {safe(spans[0].name, LONGEST_VALUE)}",
            self._after(spans[0].start_ns),
            duration(sum(took)),
            self.axis.bar(spans, self.bar_width, glyph),
            style or "dim",
        )
        notes = [f"each {duration(min(took))} to {duration(max(took))}, summed"]
        for number, what in (
            (sum(span.failed for span in spans), "failed"),
            (sum(span.is_slow(self.style.slow_s) for span in spans), "slow"),
            (under, "spans below them"),
        ):
            notes += [f"{number} {what}"] if number else []
        yield from self._note(below + GAP, ", ".join([*notes, "--all shows them"]))

    def _links(self, span: Span) -> Iterator[str]:
        """Where the links go, in short: to be followed by eye, or by the next command."""
        names: Counter[str] = Counter()
        for link in span.links:
            other = self.by_id.get((link.trace_id, link.span_id))
            if other is not None:
                names[f"linked to {label(other, with_rank=self.with_rank)}"] += 1
            elif link.trace_id == self.trace_id:
                names["linked to a span that is not here"] += 1
            elif span.name == STEP or len(span.links) > SHOWN:
                names["linked to another trace"] += 1
            else:
                names[f"linked to trace {link.trace_id}"] += 1
        for name, times in names.items():
            yield f"{name} ({times} times)" if times > 1 else name

    def _details(self, span: Span) -> Iterator[str]:
        parent = f"parent {span.parent_id}" if span.parent_id else ""
        told = (f"span {span.span_id}", parent, safe(span.kind, 20), safe(span.scope, 80))
        yield ", ".join(filter(None, told))
        yield from _pairs("", span.attributes)
        for event in span.events:
            yield f"event {safe(event.name, LONGEST_VALUE)} at {self._after(event.at_ns)}"
            yield from _pairs("  ", event.attributes)
        for link in span.links:
            yield f"link to span {link.span_id} of trace {link.trace_id}"
            yield from _pairs("  ", link.attributes)

    # The foot: what the signs mean, and what was not said.

    def _foot(self) -> Iterator[Text]:
        yield Text()
        if self.style.verbose:
            resources: dict[str, Span] = {
                repr(sorted(map(str, span.resource.items()))): span for span in self.by_id.values()
            }
            for span in resources.values():
                yield Text("resource", "dim")
                for pair in _pairs("  ", span.resource):
                    yield Text(pair, "dim")
        limit = duration(self.style.slow_s * 1e9)
        yield Text(
            f"{FAILED} failed or exposed  {SLOW} waited {limit} or more for"
            " reads" + ("" if self.style.verbose else "  (--verbose: every attribute)"),
            "dim",
        )
        if self.axis != extent(self.everything):
            yield Text(
                f"bars show {self._after(self.axis.start)} to {self._after(self.axis.end)}, where"
                f" reads were waited for; --whole-axis for all {self._length()}",
                "dim",
            )

    def _mark(self, spans: Sequence[Span]) -> tuple[str, str]:
        """The sign for these spans, three columns wide, and the style of their row."""
        failed = any(span.failed for span in spans)
        slow = any(span.is_slow(self.style.slow_s) for span in spans)
        sign = (FAILED if failed else " ") + (SLOW if slow else " ") + " "
        return sign, "bold red" if failed else "bold yellow" if slow else ""

    def _length(self) -> str:
        return duration(extent(self.spans).end - self.origin)

    def _after(self, at_ns: int) -> str:
        """A moment, relative to the start of the trace."""
        if at_ns == self.origin:
            return "0"
        sign = "+" if at_ns > self.origin else "-"
        return sign + duration(abs(at_ns - self.origin))

    def _row(self, sign: str, what: str, start: str, took: str, bar: str, style: str) -> Text:
        room = self.label_width
        if cell_len(what) > room:
            what = set_cell_size(what, room - 1) + CUT
        what = set_cell_size(what, room)
        return Text(f"{sign}{what}{start:>{START}}{took:>{TOOK}} {bar}".rstrip(), style)

    def _note(self, guides: str, text: str) -> Iterator[Text]:
        room = max(30, self.style.width - len(guides) - 3)
        for line in textwrap.wrap(text, room, break_on_hyphens=False):
            yield Text(f"   {guides}{line}", "dim")


def _pairs(indent: str, attributes: Attributes) -> Iterator[str]:
    for key, value in attributes.items():
        yield f"{indent}{safe(key, LONGEST_VALUE)} = {safe(value, LONGEST_VALUE)}"


def _outcome(span: Span) -> str:
    return next(iter(facts(span)), "")


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")
