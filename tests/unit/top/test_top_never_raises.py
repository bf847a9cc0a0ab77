"""Whatever a server or a Prometheus says: a row, never a traceback."""

from __future__ import annotations

import io
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console, Group

from moriio_observed.doctor.exposition import NotMetricsError
from moriio_observed.telemetry.catalog import CATALOG, Kind
from moriio_observed.top.alerts import Alerts, _ours
from moriio_observed.top.as_json import as_json
from moriio_observed.top.draw import lines
from moriio_observed.top.history import History
from moriio_observed.top.picture import Picture, picture
from moriio_observed.top.snapshot import snapshot
from tests.unit.top.pages import AT, line

many = settings(max_examples=60, deadline=None)

words = st.text(max_size=8)
values = st.one_of(
    st.floats(), st.sampled_from([0.0, 1.0, 1e308, -1e308, float("inf"), float("nan"), 5e-324])
)
SUFFIXES = {Kind.HISTOGRAM: ("_bucket", "_sum", "_count"), Kind.COUNTER: ("",), Kind.GAUGE: ("",)}
NAMES = [
    *(f"{each.name}{suffix}" for each in CATALOG.values() for suffix in SUFFIXES[each.kind]),
    *("vllm:num_requests_running", "vllm:request_success_total", "process_start_time_seconds"),
]
LABELS = [
    *("cause", "certainty", "action", "site", "tp_rank", "le", "role", "mode", "guard", "hook"),
    *("engine", "model_name", "barrier"),
]
known = st.sampled_from(
    ["", "0", "1", "+Inf", "0.5", "NaN", "certain", "reported", "layer", "read", "\x1b[2J", "[/]"]
)
samples = st.builds(
    lambda name, value, labels: line(name, value, **labels),
    st.sampled_from(NAMES),
    values,
    st.dictionaries(st.sampled_from(LABELS), st.one_of(known, words), max_size=4),
)
raw = st.one_of(
    st.text(),
    st.text(alphabet='moriio_x{}=",\\ #0123456789.eE+-NaIf\n'),
    st.sampled_from(["# TYPE a histogram", "# TYPE a", "a_bucket{le=", "moriio_x{", "{"]),
)
pages = st.one_of(
    st.lists(samples, max_size=12).map("".join), st.lists(st.one_of(samples, raw)).map("\n".join)
)
anything = st.recursive(
    st.one_of(st.none(), st.booleans(), st.floats(), words),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
)


def can_be_shown(seen: Picture) -> None:
    for height in (None, 24, 1):
        file = io.StringIO()
        console = Console(file=file, width=80, height=height or 500, highlight=False)
        console.print(Group(*lines(seen, 80, height)), soft_wrap=height is None)
        assert "\x1b" not in file.getvalue()
    assert json.loads(as_json(seen))["rows"]


@many
@given(st.lists(pages, min_size=1, max_size=3), st.sampled_from([0.0, 2.0]))
def test_any_pages_one_after_the_other(texts: list[str], every_s: float) -> None:
    history = History("http://x")
    for number, text in enumerate(texts):
        try:
            history = history.saw(snapshot(text, number * every_s))
        except NotMetricsError as error:
            history = history.missed(str(error))
        can_be_shown(picture([history], number * every_s, AT))


@many
@given(
    st.one_of(
        anything,
        st.lists(
            st.fixed_dictionaries(
                {"labels": anything, "annotations": anything, "state": anything},
                optional={"activeAt": anything},
            )
        ),
        st.lists(
            st.builds(
                lambda name, labels: {"labels": {**labels, "alertname": f"Moriio{name}"}},
                words,
                st.dictionaries(st.sampled_from(["severity", "instance"]), anything),
            )
        ),
    )
)
def test_any_alerts(listed: Any) -> None:
    alerts = Alerts("http://p", tuple(_ours({"data": {"alerts": listed}})))
    can_be_shown(picture([History("http://x")], 0.0, AT, alerts))
