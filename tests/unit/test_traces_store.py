import json
import math
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moriio_observed.traces import otlp
from moriio_observed.traces import store as stores
from moriio_observed.traces.errors import TracesError
from moriio_observed.traces.store import NEWEST, OLDER, SpanStore, SpanWriter, user_folder
from tests.unit.otel_spans import EPOCH_NS, MS, OTHER_TRACE, TRACE, line_of

SLOW_S = 0.1


@pytest.fixture
def writer(tmp_path):
    writer = SpanWriter(tmp_path)
    yield writer
    writer.close()


def store_of(path: Path, *lines: object) -> SpanStore:
    file = path / "lines.jsonl"
    file.write_bytes(
        b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines)
    )
    return SpanStore([file])


def names(store: SpanStore, *trace_ids: str) -> list[str]:
    return [span.name for span in store.spans(trace_ids or [TRACE])]


def only_span(tmp_path, **more):
    [span] = store_of(tmp_path, line_of(**more)).spans([TRACE])
    return span


def summary_of(tmp_path, *lines):
    [summary] = store_of(tmp_path, *lines).summaries(SLOW_S)
    return summary


def attributes(**pairs) -> list[dict]:
    return [
        {"key": key.replace("__", "."), "value": {"stringValue": value}}
        for key, value in pairs.items()
    ]


# Writing


def test_what_is_written_is_read_by_its_trace(writer, tmp_path):
    writer.append(line_of(name="one"))
    writer.append(line_of(OTHER_TRACE, name="two"))
    assert names(SpanStore([tmp_path])) == ["one"]
    assert names(SpanStore([tmp_path]), TRACE, OTHER_TRACE) == ["one", "two"]


def test_only_the_user_can_read_what_is_kept(tmp_path):
    folder = tmp_path / "new" / "traces"
    SpanWriter(folder).close()
    assert folder.stat().st_mode & 0o077 == 0
    assert (folder / NEWEST).stat().st_mode & 0o077 == 0


def test_the_oldest_go_when_it_is_full(tmp_path):
    size = len(json.dumps(line_of(span_id=1), separators=(",", ":"))) + 1
    writer = SpanWriter(tmp_path, limit_bytes=20 * size)
    for number in range(1, 101):
        writer.append(line_of(span_id=number))
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 20 * size
    writer.close()
    assert {path.name for path in tmp_path.iterdir()} == {NEWEST, OLDER, "writer.lock"}
    left = {int(span.span_id, 16) for span in SpanStore([tmp_path]).spans([TRACE])}
    assert left == set(range(101 - len(left), 101))
    assert len(left) >= 10


def test_a_torn_last_line_costs_that_line_alone(tmp_path):
    torn = json.dumps(line_of(name="torn"))[:-9]
    (tmp_path / NEWEST).write_text(f"{json.dumps(line_of(name='before'))}\n{torn}")
    writer = SpanWriter(tmp_path)
    writer.append(line_of(name="after", span_id=2))
    writer.close()
    store = SpanStore([tmp_path])
    assert sorted(names(store)) == ["after", "before"]
    assert store.skipped == 1


def test_half_a_line_is_taken_back_when_the_disk_fills(writer, tmp_path, monkeypatch):
    writer.append(line_of(name="before"))
    monkeypatch.setattr(writer, "_file", HalfFull(writer._file.fileno(), "ab", closefd=False))
    with pytest.raises(TracesError, match=f"{tmp_path}: No space left.*make room"):
        writer.append(line_of(name="lost"))
    writer.append(line_of(name="after", span_id=2))
    store = SpanStore([tmp_path])
    assert names(store) == ["before", "after"]
    assert store.skipped == 0


class HalfFull(stores.io.FileIO):
    """The second half of the first line does not fit."""

    writes = 0

    def write(self, data):
        self.writes += 1
        if self.writes == 2:
            raise OSError(28, os.strerror(28))
        return super().write(data[:10] if self.writes == 1 else data)


def test_a_folder_that_was_removed_is_made_again(writer, tmp_path):
    writer.append(line_of(name="before"))
    (tmp_path / NEWEST).unlink()
    writer.append(line_of(name="after"))
    assert names(SpanStore([tmp_path])) == ["after"]


def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(TracesError, match=r"cannot keep traces in .*/file/traces: Not a dir"):
        SpanWriter(tmp_path / "file" / "traces")


def test_two_writers_do_not_share_a_folder(writer, tmp_path):
    with pytest.raises(TracesError, match="another sink keeps its traces there"):
        SpanWriter(tmp_path)
    writer.close()
    SpanWriter(tmp_path).close()


def test_a_closed_writer_refuses(writer):
    writer.close()
    with pytest.raises(TracesError, match="closed"):
        writer.append(line_of())


# Reading


def test_a_place_without_files_has_no_traces(tmp_path):
    assert SpanStore([tmp_path, tmp_path / "missing"]).summaries(SLOW_S) == []


def test_a_place_that_cannot_be_read_is_a_clear_error(tmp_path):
    (tmp_path / NEWEST).mkdir()
    with pytest.raises(TracesError, match=f"cannot read .*{NEWEST}: Is a directory"):
        SpanStore([tmp_path]).summaries(SLOW_S)


def test_a_span_sent_twice_is_there_once(tmp_path):
    line = line_of(status={"code": 2})
    store = store_of(tmp_path, line, line)
    assert len(store.spans([TRACE])) == 1
    [summary] = store.summaries(SLOW_S)
    assert (len(summary.keys), summary.failed) == (1, 1)


def test_two_spans_of_one_id_are_both_there(tmp_path):
    assert names(store_of(tmp_path, line_of(name="a"), line_of(name="b"))) == ["a", "b"]


def test_lines_that_are_no_otlp_are_counted_and_passed_over(tmp_path):
    bad = [b"\xff\xfe", b"7", b"{", b'{"resourceSpans": {"a": 1}}', b"[" * 10_000]
    store = store_of(tmp_path, *bad, b"", line_of())
    assert len(store.summaries(SLOW_S)) == 1
    assert store.skipped == len(bad)


@pytest.mark.parametrize("part", [{"spanId": "beef"}, {"startTimeUnixNano": math.inf}])
def test_spans_that_are_none_are_counted_and_passed_over(tmp_path, part):
    store = store_of(tmp_path, line_of(**part), line_of())
    assert len(store.spans([TRACE])) == 1
    store.summaries(SLOW_S)
    assert store.skipped == 1


def test_a_value_that_is_too_deep_costs_its_span_alone():
    value = {"stringValue": "bottom"}
    for _ in range(sys.getrecursionlimit()):
        value = {"arrayValue": {"values": [value]}}
    assert otlp.spans_of(line_of(attributes=[{"key": "deep", "value": value}])) == ([], 1)


def test_a_line_without_end_is_counted_and_passed_over(tmp_path, monkeypatch):
    monkeypatch.setattr(stores, "LONGEST_LINE", 1000)
    store = store_of(tmp_path, b"x" * 5000, line_of())
    assert names(store) == ["moriio.read"]
    assert store.skipped == 1


def test_the_collectors_spelling_is_read_too(tmp_path):
    span = only_span(
        tmp_path,
        traceId=TRACE.upper(),
        kind="SPAN_KIND_SERVER",
        status={"code": "STATUS_CODE_ERROR"},
        parentSpanId="0" * 16,
        attributes=None,
    )
    assert (span.kind, span.failed, span.parent_id) == ("SERVER", True, "")


def test_everything_a_span_says_is_kept(tmp_path):
    span = only_span(
        tmp_path,
        parentSpanId="00f067aa0ba902b7",
        kind=3,
        status={"code": 2, "message": "timeout"},
        attributes=[
            {"key": "text", "value": {"stringValue": "x"}},
            {"key": "int", "value": {"intValue": "9"}},
            {"key": "float", "value": {"doubleValue": 0.5}},
            {"key": "bool", "value": {"boolValue": False}},
            {"key": "list", "value": {"arrayValue": {"values": [{"intValue": 3}]}}},
            {"key": "map", "value": {"kvlistValue": {"values": attributes(a="b")}}},
            {"key": "nothing", "value": {}},
            {"key": "unknown", "value": {"newValue": 1}},
        ],
        events=[{"name": "e", "timeUnixNano": "5", "attributes": attributes(why="w")}],
        links=[{"traceId": OTHER_TRACE, "spanId": "00f067aa0ba902b7"}],
    )
    assert (span.kind, span.failed, span.message) == ("CLIENT", True, "timeout")
    assert span.attributes == {
        "text": "x",
        "int": 9,
        "float": 0.5,
        "bool": False,
        "list": [3],
        "map": {"a": "b"},
        "nothing": None,
        "unknown": {"newValue": 1},
    }
    [event] = span.events
    assert (event.name, event.at_ns, event.attributes) == ("e", 5, {"why": "w"})
    [link] = span.links
    assert (link.trace_id, link.span_id) == (OTHER_TRACE, "00f067aa0ba902b7")


def test_a_span_never_ends_before_its_start(tmp_path):
    assert only_span(tmp_path, endTimeUnixNano="0").took_ns == 0


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "resourceSpans",
                    "scopeSpans",
                    "spans",
                    "traceId",
                    "attributes",
                    "key",
                    "value",
                    "links",
                ]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=20,
)


@given(json_values)
def test_no_json_breaks_the_reading(value):
    for data in (value, {"resourceSpans": value}, line_of(attributes=value, links=value)):
        try:
            spans, rejected = otlp.spans_of(otlp.from_json(json.dumps(data).encode()))
        except otlp.MalformedError:
            continue
        assert len(spans) + rejected >= 0


@given(st.binary(max_size=60))
def test_no_bytes_break_the_receiving(body):
    for read in (otlp.from_protobuf, otlp.from_json):
        try:
            otlp.spans_of(read(body))
        except otlp.MalformedError:
            continue


# Summaries


def test_a_summary_tells_when_and_what(tmp_path):
    child = line_of(name="child", parentSpanId="0000000000000002")
    root = line_of(
        name="root", span_id=2, startTimeUnixNano=EPOCH_NS + MS, endTimeUnixNano=EPOCH_NS + 9 * MS
    )
    summary = summary_of(tmp_path, child, root)
    assert summary.trace_id == TRACE
    assert (summary.start_ns, summary.end_ns) == (EPOCH_NS, EPOCH_NS + 9 * MS)
    assert summary.name == "root"


def test_the_trace_that_ended_last_comes_last(tmp_path):
    early = line_of(OTHER_TRACE, startTimeUnixNano="5", endTimeUnixNano="6")
    store = store_of(tmp_path, line_of(), early)
    assert [summary.trace_id for summary in store.summaries(SLOW_S)] == [OTHER_TRACE, TRACE]


def test_the_requests_of_a_trace_are_known(tmp_path):
    summary = summary_of(
        tmp_path,
        line_of(attributes=attributes(moriio__request_id="ours")),
        line_of(name="llm_request", attributes=attributes(gen_ai__request__id="vllms")),
    )
    assert summary.request_ids == {"ours", "vllms"}


LONG = {"endTimeUnixNano": str(EPOCH_NS + 200 * MS)}
ERROR = {"status": {"code": 2}}


def blocked(seconds: float) -> dict:
    return {"attributes": [{"key": "moriio.blocked_s", "value": {"doubleValue": seconds}}]}


@pytest.mark.parametrize(
    ("name", "more", "failed", "slow", "troubled"),
    [
        ("moriio.barrier", LONG, 0, 1, True),
        ("moriio.read", LONG, 0, 1, True),
        ("moriio.barrier", {}, 0, 0, False),
        ("moriio.barrier", ERROR, 1, 0, True),
        ("moriio.step", {**LONG, **blocked(0.1)}, 0, 1, True),
        # Long by its forward, by the decode engine's other work, by its tokens.
        ("moriio.step", {**LONG, **blocked(0.01)}, 0, 0, False),
        ("moriio.hold", LONG, 0, 0, False),
        ("llm_request", LONG, 0, 0, False),
        ("llm_request", ERROR, 1, 0, False),
    ],
)
def test_what_counts_as_slow_or_failed(tmp_path, name, more, failed, slow, troubled):
    summary = summary_of(tmp_path, line_of(name=name, **more))
    assert (summary.failed, summary.slow, summary.troubled) == (failed, slow, troubled)


def test_the_users_folder_follows_xdg():
    assert user_folder({"XDG_STATE_HOME": "/state"}) == Path("/state/moriio-observed/traces")
    assert user_folder({}) == Path.home() / ".local/state/moriio-observed/traces"
