import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moriio_observed.traces.forest import Rest, forest, in_short
from moriio_observed.traces.spans import Event, Link
from moriio_observed.traces.style import Style
from moriio_observed.traces.text import duration, safe
from moriio_observed.traces.tree import SHOWN, render
from tests.unit.otel_spans import CLIENT, EPOCH_NS, MS, OTHER_TRACE, TRACE, a_span

SHORT = {"moriio.site": "layer", "moriio.reads": 2}


def page(*spans, others=(), **style) -> str:
    in_order = sorted(spans, key=lambda span: span.start_ns)
    return "\n".join(line.plain for line in render(TRACE, in_order, others, Style(**style)))


def row(text: str, *words: str) -> str:
    """The one row of the tree with these words."""
    tree = text.partition("took ")[2].partition("took")[2]
    [found] = [line for line in tree.splitlines() if all(word in line for word in words)]
    return found


def bar(line: str) -> str:
    """What stands in the last 20 of 80 columns."""
    return line[60:]


def barrier(layer: int, start: float, took: float, *, parent: int = 1, **more):
    attributes = {**SHORT, "moriio.layer": layer, "moriio.outcome": "landed"}
    return a_span(
        "moriio.barrier", 100 + layer, start, took, parent=parent, attributes=attributes, **more
    )


def a_step(took: float = 1000, **attributes):
    return a_span("moriio.step", 1, 0, took, attributes={"moriio.step.number": 7, **attributes})


def timed_out(layer: int, start: float, took: float):
    span = barrier(layer, start, took, failed=True, message="timeout")
    span.attributes.update({"moriio.outcome": "timeout", "error.type": "timeout"})
    return span


# The answer at a glance


def test_the_slowest_barrier_is_named_before_the_tree():
    text = page(a_step(), barrier(2, 10, 20), barrier(3, 30, 320), barrier(4, 350, 120))
    [line] = [line for line in text.splitlines()[:5] if "slowest barrier" in line]
    assert line == "▲ slowest barrier: 320.0 ms, moriio.barrier layer 3 of moriio.step 7, landed"


def test_a_trace_without_barriers_says_so():
    assert "no barrier waited here" in page(a_span("llm_request", 1))


def test_errors_are_named_before_the_tree():
    text = page(a_span("moriio.read", 1, failed=True, attributes={"error.type": "ERR_RDMA_OP"}))
    assert "✖ moriio.read ERR_RDMA_OP" in text.splitlines()[3]


def test_the_slowest_barrier_is_not_named_twice():
    assert page(a_step(), timed_out(3, 0, 300)).count("layer 3") == 2


def test_equal_errors_are_named_once_and_of_many_how_many_more():
    spans = [a_span("a", 1, failed=True), a_span("a", 2, failed=True)]
    assert "✖ a status ERROR (2 times)" in page(*spans)
    spans = [a_span(f"kind{number}", 1 + number, failed=True) for number in range(SHOWN + 2)]
    assert "✖ and 2 other errors" in page(*spans)


def test_slow_and_failed_rows_have_signs_at_the_left_edge_and_solid_bars():
    text = page(a_step(), barrier(2, 10, 20), barrier(3, 30, 120), timed_out(4, 200, 300))
    assert row(text, "layer 2").startswith("   ")
    assert set(bar(row(text, "layer 2"))) <= set("━ ")
    assert row(text, "layer 3").startswith(" ▲ ")
    assert row(text, "layer 4").startswith("✖▲ ")
    assert set(bar(row(text, "layer 4"))) <= set("█ ")


def test_signs_come_with_colors():
    lines = list(render(TRACE, [a_step(), barrier(3, 0, 120), timed_out(4, 0, 1)], (), Style()))
    assert [line.style for line in lines if "─ moriio.barrier layer 3" in line.plain] == [
        "bold yellow"
    ]
    assert [line.style for line in lines if "─ moriio.barrier layer 4" in line.plain] == [
        "bold red"
    ]


def test_what_is_slow_can_be_said():
    assert row(page(a_step(), barrier(3, 0, 120), slow_s=0.5), "layer 3").startswith("   ")


def test_a_step_is_slow_by_its_waits_not_by_its_forward():
    assert row(page(a_step(900, **{"moriio.blocked_s": 0.0})), "moriio.step").startswith("   ")
    assert row(page(a_step(900, **{"moriio.blocked_s": 0.1})), "moriio.step").startswith(" ▲ ")


def test_a_failed_barrier_says_how_it_failed():
    span = timed_out(4, 0, 300)
    span.attributes.update({"moriio.reads.in_flight": 1, "moriio.reads.failed": 0})
    assert "timeout, 2 reads, 1 in flight" in page(a_step(), span)


# Times and bars


def test_times_are_relative_to_the_start():
    text = page(a_step(), barrier(3, 31, 120))
    assert re.search(r"moriio\.step 7 +0 +1\.00 s ", text)
    assert re.search(r"layer 3 +\+31\.0 ms +120\.0 ms ", text)
    assert "began 2026-09-21 14:13:20.000 UTC, took 1.00 s, 2 spans" in text


def test_bars_share_one_axis():
    text = page(a_step(100), barrier(1, 0, 50), barrier(2, 50, 50))
    first, second = (bar(row(text, f"layer {layer}")) for layer in (1, 2))
    assert len(bar(row(text, "moriio.step"))) == len(second)
    assert second == " " * len(first.rstrip()) + "━" * len(first.rstrip())


def test_a_bar_is_always_to_be_seen():
    text = page(a_step(100), barrier(1, 99.9999, 0.0001), barrier(2, 100, 0), barrier(3, 50, 0))
    assert bar(row(text, "layer 1")) == " " * 19 + "━"
    assert bar(row(text, "layer 2")) == " " * 19 + "━"
    assert bar(row(text, "layer 3")) == " " * 10 + "━"


def test_no_time_at_all_is_no_axis():
    text = page(a_span("llm_request", 9, 0, 9000), a_span("moriio.step", 1, 5, 0))
    assert "bars show" not in text
    assert bar(row(text, "moriio.step")) == "━"


def test_a_long_answer_does_not_hide_the_reads():
    request = a_span("llm_request", 9, 0, 60_000)
    text = page(request, a_step(500), barrier(3, 100, 250))
    assert len(bar(row(text, "layer 3")).strip()) == len(bar(row(text, "moriio.step"))) // 2
    assert bar(row(text, "llm_request")).endswith("▶")
    assert "bars show 0 to +500.0 ms" in text
    whole = page(request, a_step(500), barrier(3, 100, 250), whole_axis=True)
    assert "▶" not in whole
    assert bar(row(whole, "layer 3")).strip() == "█"


def test_what_lies_beyond_the_axis_points_there():
    text = page(
        a_span("before", 8, 0, 1), a_step(500), barrier(3, 0, 9), a_span("behind", 9, 9000, 1)
    )
    assert bar(row(text, "behind")).strip() == "▶"
    late_step = a_span("moriio.step", 1, 8000, 500)
    assert bar(row(page(a_span("before", 8, 0, 1), late_step), "before")).strip() == "◀"


@pytest.mark.parametrize("width", [40, 80, 132])
def test_rows_fit_the_terminal(width):
    text = page(a_step(), barrier(3, 30, 320), a_span("x" * 300, 8, 0, 60_000), width=width)
    limit = max(width, 55)
    assert "xxx… " in text
    for line in text.partition("start")[2].partition("✖ failed")[0].splitlines()[1:]:
        assert len(line) <= limit, line


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0.0 µs"),
        (300, "0.3 µs"),
        (999_960, "1.0 ms"),
        (31_040_000, "31.0 ms"),
        (999_960_000, "1.00 s"),
        (1.52e9, "1.52 s"),
        (86_399e9, "86399 s"),
    ],
)
def test_durations(nanoseconds, text):
    assert duration(nanoseconds) == text
    assert len(text) <= 8


# The shape of the tree


def test_our_spans_and_vllms_stand_under_the_missing_parent_they_share():
    text = page(
        a_span("llm_request", 1, 0, 9, parent=CLIENT),
        a_span("moriio.read", 2, 1, 2, parent=CLIENT),
        a_span("moriio.step", 3, 1, 3, parent=CLIENT),
        barrier(0, 1, 1, parent=3),
    )
    lines = text.splitlines()
    [at] = [number for number, line in enumerate(lines) if f"parent {CLIENT} is not here" in line]
    tree = [line[3:34].rstrip() for line in lines[at + 1 :] if "─ " in line[:14]]
    assert tree == [
        "├─ llm_request",
        "├─ moriio.read",
        "└─ moriio.step",
        "   └─ moriio.barrier layer 0",
    ]


def test_several_roots_stand_beside_each_other():
    text = page(a_span("one", 1), a_span("two", 2))
    assert row(text, "one").startswith("   one ")
    assert row(text, "two").startswith("   two ")


def test_spans_that_are_each_others_parents_are_shown_and_said_to_be():
    text = page(
        a_span("below", 3, 0, parent=2),
        a_span("a", 1, 1, parent=2),
        a_span("b", 2, 1, parent=1),
        a_span("self", 4, parent=4),
    )
    assert "each other's parents" in text
    for name in ("a", "b", "below", "self"):
        assert row(text, f"─ {name} ")


def test_what_hangs_below_a_loop_stays_there():
    spans = [a_span("below", 3, 0, parent=2), a_span("a", 1, parent=2), a_span("b", 2, parent=1)]
    [loop] = forest(spans).loops
    assert loop.span.name in {"a", "b"}


def test_two_spans_of_one_id_are_both_shown():
    text = page(a_span("one", 1), a_span("two", 1), a_span("child", 3, parent=1))
    assert [bool(row(text, name)) for name in ("one", "two", "child")] == [True] * 3


def test_a_very_deep_trace_stays_on_the_screen():
    text = page(
        *(a_span(f"level{number}", number + 1, parent=number or "") for number in range(3000))
    )
    assert re.search(r"^ +….*level2999? ?…? ", text, re.MULTILINE)
    assert max(map(len, text.splitlines())) <= 90


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9), st.integers(0, 5)), max_size=25))
def test_every_span_is_in_the_forest_once(drawn):
    spans = [
        a_span(f"{number}", own, start, parent=parent or "")
        for number, (own, parent, start) in enumerate(drawn)
    ]
    walked = [span for top in forest(spans).tops for span in top.walk()]
    assert sorted(walked, key=lambda span: int(span.name)) == spans


# Many layers


def many(number: int = 61):
    return [barrier(layer, layer, 0.01 * (1 + layer)) for layer in range(number)]


def test_of_many_barriers_the_slowest_stand_alone_and_the_others_are_summed_up():
    text = page(a_step(), *many())
    shown = re.findall(r"─ moriio\.barrier layer (\d+)", text)
    assert shown == ["56", "57", "58", "59", "60"]
    rest = row(text, "56 other moriio.barrier")
    assert re.search(r" 0 +16\.0 ms ", rest)
    assert "each 10.0 µs to 560.0 µs, summed" in text


def test_failed_barriers_come_before_slower_ones():
    text = page(a_step(), *many(), timed_out(70, 0, 0.001))
    assert row(text, "─ moriio.barrier layer 70")


def test_what_is_summed_up_says_how_many_of_it_are_bad_and_has_their_sign():
    slow = [barrier(layer, layer, 200) for layer in range(20)]
    failed = [timed_out(layer, layer, 50) for layer in range(20, 30)]
    text = page(a_step(), *slow, *failed)
    assert row(text, "25 other moriio.barrier").startswith("✖▲ ")
    assert "5 failed, 20 slow" in text.replace("\n   ", " ")


def test_what_is_below_the_summed_up_is_counted():
    steps = [a_span("moriio.step", 1 + number, number) for number in range(9)]
    below = [barrier(layer, 0, 1, parent=1 + layer) for layer in range(9)]
    text = page(*steps, *below)
    assert "4 spans below them" in text


def test_nothing_is_summed_up_when_all_is_asked_for():
    text = page(a_step(), *many(), everything=True)
    assert len(re.findall(r"─ moriio\.barrier layer", text)) == 61
    assert "other" not in text.partition("✖ failed")[0]


def test_a_single_one_more_is_not_summed_up():
    assert "other" not in page(a_step(), *many(SHOWN + 1)).partition("✖ failed")[0]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9)), max_size=40))
def test_summing_up_loses_nothing(drawn):
    nodes = forest([a_span(name, 1 + at, start) for at, (name, start) in enumerate(drawn)]).roots
    kept = [
        node
        for item in in_short(nodes, 3)
        for node in (item.nodes if isinstance(item, Rest) else [item])
    ]
    assert sorted(map(id, kept)) == sorted(map(id, nodes))


# What spans say


def test_the_ranks_are_told_apart_where_there_are_several():
    ranks = [
        a_span("moriio.step", 1 + rank, resource={"moriio.tp_rank": str(rank)}) for rank in (0, 1)
    ]
    assert "moriio.step rank 1" in page(*ranks)
    assert "rank" not in page(ranks[0]).partition("✖ failed")[0]


def test_a_read_says_whose_from_where_and_what_became_of_it():
    attributes = {
        "moriio.request_id": "cmpl-7",
        "moriio.remote": "10.0.0.7:6301",
        "moriio.bytes": 3 << 20,
        "moriio.layers": 61,
        "moriio.outcome": "aborted",
        "moriio.exposure.cause": "timeout",
        "moriio.exposure.certainty": "certain",
        "moriio.exposure.action": "reported",
        "error.type": "timeout",
    }
    text = page(a_span("moriio.read", 1, failed=True, message="timeout", attributes=attributes))
    assert (
        "aborted timeout, exposed: timeout (certain), reported, cmpl-7, 3.0 MiB, 61 layers,"
        " from 10.0.0.7:6301"
    ) in text.replace("\n      ", " ")


def test_an_exposed_read_that_landed_after_all_is_told_by_its_exposure():
    attributes = {"moriio.outcome": "landed", "error.type": "timeout"}
    text = page(a_span("moriio.read", 1, failed=True, message="timeout", attributes=attributes))
    assert "✖ moriio.read timeout\n" in text


def test_an_id_is_not_broken_at_its_hyphens():
    attributes = {"gen_ai.request.id": "cmpl-" + "-".join(["abcdefg"] * 8), "error.type": "e" * 30}
    text = page(a_span("llm_request", 1, attributes=attributes))
    assert attributes["gen_ai.request.id"] in text


def test_attributes_of_a_wrong_kind_do_no_harm():
    attributes = {
        "moriio.bytes": "many",
        "moriio.blocked_s": [1],
        "moriio.layer": {"a": 1},
        "moriio.step.number": None,
        "gen_ai.latency.time_to_first_token": "soon",
    }
    for name in ("moriio.read", "moriio.step", "moriio.barrier", "moriio.hold", "llm_request"):
        assert name in page(a_span(name, 1, attributes=attributes), verbose=True)


def test_links_name_what_is_here_and_where_to_look_otherwise():
    read = a_span("moriio.read", 2, links=(Link(TRACE, f"{1:016x}", {}),))
    assert "linked to moriio.step 7" in page(a_step(), read)
    read = a_span("moriio.read", 2, links=(Link(TRACE, "f" * 16, {}),))
    assert "linked to a span that is not here" in page(read)
    read = a_span("moriio.read", 2, links=(Link(OTHER_TRACE, "f" * 16, {}),))
    assert f"linked to trace {OTHER_TRACE}" in page(read).replace("\n      ", "")


def test_a_steps_many_links_are_counted():
    links = tuple(Link(OTHER_TRACE, f"{number:016x}", {}) for number in range(1, 257))
    text = page(a_span("moriio.step", 1, links=links))
    assert "linked to another trace (256 times)" in text


def test_a_linked_step_of_another_trace_is_shown_on_the_same_axis():
    step = a_span("moriio.step", 1, 0, 100, trace_id=OTHER_TRACE, parent=CLIENT)
    waited = barrier(5, 0, 100, trace_id=OTHER_TRACE)
    read = a_span("moriio.read", 2, 0, 50, links=(Link(OTHER_TRACE, step.span_id, {}),))
    text = page(read, others=[step, waited])
    assert f"linked from here, in trace {OTHER_TRACE}" in text
    assert "slowest barrier: 100.0 ms, moriio.barrier layer 5" in text
    assert 2 * len(bar(row(text, "moriio.read"))) == len(bar(row(text, "layer 5")))


def test_verbose_keeps_what_is_not_known():
    span = a_span(
        "custom",
        1,
        parent=CLIENT,
        scope="their.scope",
        attributes={"their.key": {"deep": [1, 2]}},
        events=(Event("exception", EPOCH_NS + 5 * MS, {"exception.type": "OSError"}),),
        links=(Link(OTHER_TRACE, "f" * 16, {"why": "because"}),),
        resource={"service.name": "gateway"},
    )
    assert "their.key" not in page(span)
    text = page(span, verbose=True)
    for told in (
        f"span {1:016x}, parent {CLIENT}, INTERNAL, their.scope",
        'their.key = {"deep": [1, 2]}',
        "event exception at +5.0 ms",
        "exception.type = OSError",
        f"link to span {'f' * 16} of trace {OTHER_TRACE}",
        "why = because",
        "service.name = gateway",
    ):
        assert told in text


# What others wrote

HOSTILE = "\x1b[2J\r\n\u202e\ud800[bold]x[/bold]\x00"


def test_hostile_text_is_shown_and_cannot_act():
    span = a_span(
        f"name{HOSTILE}",
        1,
        failed=True,
        message=HOSTILE,
        scope=HOSTILE,
        kind=HOSTILE,
        attributes={HOSTILE: HOSTILE, "moriio.request_id": HOSTILE, "error.type": HOSTILE},
        events=(Event(HOSTILE, EPOCH_NS, {HOSTILE: [HOSTILE]}),),
        resource={HOSTILE: HOSTILE, "moriio.role": HOSTILE},
    )
    for name in (span.name, "moriio.read", "moriio.step", "llm_request"):
        text = page(a_span(name, 2, attributes=span.attributes), span, verbose=True, width=1000)
        assert text.replace("\n", "").isprintable()
        assert r"\x1b[2J\r\n\u202e\ud800[bold]x[/bold]\x00" in text


@given(st.text())
def test_safe_text_is_printable(text):
    assert safe(text, 20).isprintable()


def test_very_long_text_is_cut_and_says_so():
    assert safe("x" * 500, 20) == "x" * 20 + "… (480 more)"
    text = page(a_span("n" * 5000, 1, attributes={"a": "v" * 10**6}), verbose=True)
    assert "999000 more" in text
    assert len(text) < 5000
