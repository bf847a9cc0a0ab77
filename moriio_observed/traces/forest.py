"""Spans as trees, whatever is missing between them, and long rows of siblings in short."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from moriio_observed.traces.spans import Span


@dataclass(frozen=True)
class Node:
    """A span and the spans below it, by their start."""

    span: Span
    children: list[Node] = field(default_factory=list)

    def walk(self) -> Iterator[Span]:
        """The span and all below it."""
        pending = [self]
        while pending:
            node = pending.pop()
            yield node.span
            pending += node.children


@dataclass(frozen=True)
class Forest:
    """The spans of a trace.

    Attributes:
        roots: Those without a parent.
        orphans: Those whose parent is not among the spans, by that parent's id.
        loops: Those which only have ancestors that descend from them; one of each loop.
    """

    roots: list[Node] = field(default_factory=list)
    orphans: dict[str, list[Node]] = field(default_factory=dict)
    loops: list[Node] = field(default_factory=list)

    @property
    def tops(self) -> Iterator[Node]:
        """Every node that is below none."""
        yield from self.roots
        for nodes in self.orphans.values():
            yield from nodes
        yield from self.loops


@dataclass(frozen=True)
class Rest:
    """Siblings of one name that are not shown one by one."""

    nodes: list[Node]


def forest(spans: Sequence[Span]) -> Forest:
    """The trees of these spans, which are in the order of their start; every span is in one."""
    nodes = [Node(span) for span in spans]
    # Two spans of one id should not be; the first one gets the children.
    by_id = {node.span.span_id: node for node in reversed(nodes)}
    found = Forest()
    orphans: defaultdict[str, list[Node]] = defaultdict(list)
    for node in nodes:
        parent = node.span.parent_id
        if not parent:
            found.roots.append(node)
        elif parent in by_id:
            by_id[parent].children.append(node)
        else:
            orphans[parent].append(node)
    found.orphans.update(orphans)
    _open_loops(nodes, by_id, found)
    return found


def _open_loops(nodes: list[Node], by_id: dict[str, Node], found: Forest) -> None:
    reached = {id(span) for top in found.tops for span in top.walk()}
    for node in nodes:
        if id(node.span) in reached:
            continue
        top = _in_loop_above(node, by_id)
        siblings = by_id[top.span.parent_id].children
        siblings[:] = [sibling for sibling in siblings if sibling is not top]
        found.loops.append(top)
        reached.update(id(span) for span in top.walk())


def _in_loop_above(node: Node, by_id: dict[str, Node]) -> Node:
    """Up, until somebody comes again: who is below the loop comes only once."""
    seen: set[int] = set()
    while id(node) not in seen:
        seen.add(id(node))
        node = by_id[node.span.parent_id]
    return node


def in_short(siblings: Sequence[Node], most: int) -> list[Node | Rest]:
    """Siblings, where of each name only so many are left: the failed and the longest waits.

    The others of a name are together in one `Rest`, behind the last that is left of them.
    """
    by_name: defaultdict[str, list[Node]] = defaultdict(list)
    for node in siblings:
        by_name[node.span.name].append(node)
    shown: list[tuple[int, int, Node | Rest]] = []
    for nodes in by_name.values():
        # One line saved is none: it is the line of the rest.
        least = sorted(nodes, key=_weight)[: max(0, len(nodes) - most)]
        rest = least if len(least) > 1 else []
        left_out = {id(node) for node in rest}
        left = [node for node in nodes if id(node) not in left_out]
        shown += [(node.span.start_ns, 0, node) for node in left]
        if rest:
            behind = max((node.span.start_ns for node in left), default=rest[0].span.start_ns)
            in_order = [node for node in nodes if id(node) in left_out]
            shown.append((behind, 1, Rest(in_order)))
    return [item for _, _, item in sorted(shown, key=lambda entry: entry[:2])]


def _weight(node: Node) -> tuple[bool, float, int]:
    span = node.span
    return span.failed, span.waited_ns, span.took_ns
