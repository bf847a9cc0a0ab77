"""Dashboards drawn by a real browser from the numbers of a real Prometheus."""

from __future__ import annotations

import copy
import struct
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from moriio_observed.alerting.folder import Folder as AlertsFolder
from moriio_observed.cli import main
from moriio_observed.dashboarding.folder import Folder
from moriio_observed.dashboarding.preview import browser, page, pictures
from moriio_observed.dashboarding.preview.contents import WIDTH, Asker
from moriio_observed.dashboarding.preview.page import Page
from moriio_observed.dashboarding.preview.prometheus import Prometheus
from moriio_observed.dashboarding.preview.window import Window
from tests.monitoring import PROMETHEUS, prometheus
from tests.tools import needs

# The first test builds the page, which takes minutes.
pytestmark = [needs(PROMETHEUS, "promtool", "node", "npm", "chromium"), pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[2]
FOLDER = Folder(ROOT / "dashboards", AlertsFolder(ROOT / "alerts"))
BARRIER = FOLDER.built()["read-barrier.json"]

START = 1796025600
MINUTES = 60
SCRAPE = 15
CHANGE = START + 30 * 60
END = START + MINUTES * 60
TIMES = range(START, END + 1, SCRAPE)

Labels = Mapping[str, str]


def series(name: str, labels: Labels, at: Iterable[int], value: float, a_scrape: float = 0) -> str:
    """A series that begins with a value and rises with each scrape, as OpenMetrics."""
    engine = {"job": "vllm", "instance": "decode-0:8000", "model_name": "org/m", "engine": "0"}
    told = ",".join(f'{label}="{text}"' for label, text in {**engine, **labels}.items())
    return "".join(
        f"{name}{{{told}}} {value + a_scrape * (moment - START) / SCRAPE} {moment}\n"
        for moment in at
    )


def numbers() -> str:
    """An hour of an engine: its barrier changes half-way, and one wait in ten is long."""
    bucket = "moriio_barrier_wait_seconds_bucket"
    waits = {"0.001": 9, "1": 9, "5": 10, "+Inf": 10}
    blocked = "engine:moriio_step_blocked_seconds"
    before, after = range(START, CHANGE, SCRAPE), range(CHANGE, END + 1, SCRAPE)
    parts = [
        *(
            series(bucket, {"site": "step", "tp_rank": "0", "le": le}, TIMES, 0, count)
            for le, count in waits.items()
        ),
        series("moriio_barrier_timeouts_total", {"site": "layer"}, TIMES, 0, 0.5),
        series("moriio_layer_wait_seconds_total", {"layer": "3"}, TIMES, 0, 0.25),
        series("moriio_layer_waits_total", {"layer": "3"}, TIMES, 0, 10),
        series("moriio_config_info", {"barrier": "auto"}, before, 1),
        series("moriio_config_info", {"barrier": "upstream"}, after, 1),
        series(f"{blocked}:ratio_rate5m", {}, TIMES, 0.25),
        series(f"{blocked}:rate5m", {}, TIMES, 0.25),
        series("engine:moriio_step_seconds:rate5m", {}, TIMES, 1),
    ]
    return "".join([*parts, "# EOF\n"])


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prometheus that has the numbers."""
    folder = tmp_path_factory.mktemp("prometheus")
    source = folder / "numbers.txt"
    source.write_text(numbers())
    create = ["promtool", "tsdb", "create-blocks-from", "openmetrics", source, folder / "data"]
    subprocess.run(create, check=True, capture_output=True)
    with prometheus(folder, {}, "--storage.tsdb.retention.time=100y") as url:
        yield url


@pytest.fixture(scope="module")
def drawing() -> Page:
    """The page that draws."""
    return page.built(ROOT / "dashboards/preview", ROOT / "build/preview", print)


def broken(**changes: Any) -> dict[str, Any]:
    """Our dashboard with something wrong in the first panel of numbers."""
    dashboard = copy.deepcopy(BARRIER)
    dashboard["panels"][1].update(changes)
    return dashboard


@pytest.fixture(scope="module")
def taken(url, drawing, tmp_path_factory) -> dict[str, pictures.Picture]:
    """Our dashboard, and broken copies of it."""
    asker = Asker(Prometheus(url), Window(START, END), {"engine": ["0"]})
    target = BARRIER["panels"][1]["targets"][0]
    dashboards = {
        "ours": BARRIER,
        "query": broken(targets=[{**target, "expr": "sum("}]),
        "type": broken(type="singlestat"),
        "setting": broken(fieldConfig={"defaults": {"fillOpacty": 1}, "overrides": []}),
    }
    out = tmp_path_factory.mktemp("pictures")
    asked = {name: (dashboard, asker) for name, dashboard in dashboards.items()}
    drawn = pictures.take(asked, drawing, browser.find_chromium(), out, "dark")
    return {picture.path.stem: picture for picture in drawn}


@pytest.fixture
def panels(taken) -> dict[str, browser.DrawnPanel]:
    """The panels of our dashboard by their title."""
    return {panel.title: panel for panel in taken["ours"].panels}


def test_every_panel_is_drawn_without_an_error(taken, panels) -> None:
    assert not list(taken["ours"].errors())
    assert set(panels) == {panel["title"] for panel in BARRIER["panels"] if panel["type"] != "row"}


@pytest.mark.parametrize(
    ("title", "text"),
    [
        ("Share of step time waited", "25%"),
        ("Timeouts", "120"),
        ("FULL steps without protection", "none"),
    ],
)
def test_a_stat_shows_its_number_in_its_unit(panels, title, text) -> None:
    assert panels[title].text == f"{title}\n{text}"


def test_a_table_shows_its_columns_by_their_titles_and_its_cells_in_their_units(panels) -> None:
    head = ["Layer", "Waited", "A wait", "Waits"]
    cells = ["3", "1 min", "25 ms", "2,400"]
    assert panels["Waits by layer"].text.split("\n") == ["Waits by layer", *head, *cells]


def test_lines_are_named_by_their_legends(panels) -> None:
    assert panels["Waits by site"].text.split("\n")[1:] == ["step p50", "step p99", "deadline"][:2]


def test_a_heatmap_has_a_row_for_each_bucket_and_cells_where_something_was(panels) -> None:
    rows = [row.partition(": ") for row in panels["Barrier waits"].text.split("\n")]
    counts = {label: int(cells.split()[0]) for label, _, cells in rows if cells}
    assert list(counts) == ["1 ms", "1 s", "5 s", "+Inf"]
    assert counts["1 ms"] == counts["5 s"] > 200
    assert counts["1 s"] == counts["+Inf"] == 0


def test_a_state_timeline_names_the_states_of_each_engine_in_their_order(panels) -> None:
    assert "decode-0:8000 0: auto, upstream" in panels["Barrier in force"].text.split("\n")


def test_panels_without_a_number_are_listed(taken, panels) -> None:
    assert "FULL steps without protection" in taken["ours"].empty
    assert "Timeouts" not in taken["ours"].empty
    assert panels["FULL graphs protected"].text.endswith("no FULL graphs")


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("query", "parse error: unclosed left parenthesis"),
        ("type", "cannot draw a panel of the type singlestat"),
        ("setting", "cannot draw with fillOpacty"),
    ],
)
def test_a_panel_that_cannot_be_drawn_says_why_and_the_others_are_drawn(taken, name, error) -> None:
    (told,) = taken[name].errors()
    assert told.startswith(f"{name}.png: panel 'Share of step time waited': ")
    assert error in told
    assert "120" in next(panel.text for panel in taken[name].panels if panel.title == "Timeouts")


def processes_with(variable: str) -> list[str]:
    """The processes that were started with an environment variable."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if variable.encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "comm").read_text())
        except OSError:
            continue
    return found


@pytest.mark.usefixtures("drawing")
def test_the_command_writes_a_picture_lists_what_has_no_data_and_leaves_nobody_running(
    url, tmp_path, capsys, monkeypatch
) -> None:
    monkeypatch.setenv("STARTED_BY", tmp_path.name)
    monkeypatch.chdir(ROOT)
    words = ["dashboards", "preview", "--prometheus", url, "--dashboard", "moriio-read-barrier"]
    words += ["--to", str(END), "--range", "1h", "--theme", "light", "--out", str(tmp_path)]
    assert main([*words, "--strict"]) == 1
    said = capsys.readouterr()
    assert said.out.startswith(f"{tmp_path / 'read-barrier.png'}\n")
    assert "read-barrier.png: no data: FULL graphs protected\n" in said.out
    assert "panels have no data" in said.err
    assert processes_with(f"STARTED_BY={tmp_path.name}") == []
    header = (tmp_path / "read-barrier.png").read_bytes()[:24]
    assert header.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", header[16:24])
    assert width == WIDTH
    assert height > 2000
