"""From YAML to dashboards: what is made, and that whatever is not right ends the build."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from moriio_observed.alerting.folder import Folder as AlertsFolder
from moriio_observed.dashboarding.build import build
from moriio_observed.dashboarding.check import differences
from moriio_observed.dashboarding.errors import DashboardsError
from moriio_observed.dashboarding.folder import Folder

ROOT = Path(__file__).parents[3]
MAIN = "from moriio_observed.cli import main; exit(main())"
QUERIES = {
    "waits": {
        "expr": "sum by (le) (rate(a_bucket{${selectors.engines}}[$__rate_interval]))",
        "legend": "{{le}} != {a: b}",
    },
    "total": {"expr": "sum by (layer) (increase(x{${selectors.engines}}[$__range]))"},
    "now": {"expr": "sum by (layer) (y{${selectors.engines}})", "legend": "now"},
}
COMMON = {
    "title": "P",
    "description": "What it\nmeans.",
    "unit": "s",
    "width": 12,
    "height": 5,
    "thresholds": {"base": "green", "red": "late_landings"},
}
COLUMNS = [
    {"title": "Layer", "label": "layer", "number": True, "link": "fleet"},
    {"title": "Sum", "query": "total", "unit": "short"},
    {"title": "Now", "query": "now"},
]
TABLE = {"table": {**COMMON, "columns": COLUMNS, "sort": "Sum"}}
SERIES = {"time-series": {**COMMON, "queries": ["waits"]}}


class Sources:
    """A folder with one dashboard, to be changed and built."""

    def __init__(self, path: Path) -> None:
        self.folder = Folder(path / "dashboards", AlertsFolder(path / "alerts"))
        self.values = AlertsFolder(ROOT / "alerts").values()
        self.queries: dict = {**QUERIES}
        self.panels: list = [SERIES, TABLE]
        self.more: list = []
        self.dashboard: dict = {
            "title": "D",
            "uid": "d",
            "description": "About",
            "templates": [
                {"prometheus-variable": {"name": "datasource", "label": "Data source"}},
                {
                    "label-variable": {
                        "name": "instance",
                        "label": "Instance",
                        "of": "instance",
                        "metric": "m",
                        "within": {"job": "job"},
                    }
                },
                {"place-variable": {"name": "runbooks"}},
            ],
            "annotations": [
                {"annotation": {"name": "A", "query": "now", "colour": "red", "tells": ["job"]}}
            ],
        }
        (path / "dashboards" / "sources").mkdir(parents=True)
        (path / "alerts").mkdir()

    def build(self) -> dict:
        rows = [{"row": {"title": "R", "panels": self.panels}}]
        components = [
            {"name": "p", "project": {"dashboards": ["d"]}},
            {"name": "d", "dashboard": {**self.dashboard, "rows": rows}},
            *self.more,
        ]
        (self.folder.path / "sources" / "d.yaml").write_text(yaml.safe_dump(components))
        (self.folder.alerts.path / "queries.yaml").write_text(yaml.safe_dump(self.queries))
        return dict(build(self.folder, self.values))["d.json"]


@pytest.fixture
def sources(tmp_path) -> Sources:
    return Sources(tmp_path)


def test_a_dashboard_is_of_grafanas_present_format_and_not_editable(sources) -> None:
    made = sources.build()
    assert (made["schemaVersion"], made["editable"], made["uid"]) == (42, False, "d")
    assert [panel["type"] for panel in made["panels"]] == ["row", "timeseries", "table"]


def test_panels_have_numbers_and_places_of_their_own(sources) -> None:
    made = sources.build()["panels"]
    assert [panel["id"] for panel in made] == [1, 2, 3]
    assert [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in made] == [
        (0, 0),
        (0, 1),
        (12, 1),
    ]


def test_queries_and_legends_come_through_as_they_are_in_the_catalogue(sources) -> None:
    (target,) = sources.build()["panels"][1]["targets"]
    assert target["expr"] == (
        'sum by (le) (rate(a_bucket{job=~"$job", instance=~"$instance",'
        ' model_name=~"$model", engine=~"$engine"}[$__rate_interval]))'
    )
    assert target["legendFormat"] == "{{le}} != {a: b}"
    assert (target["range"], target["instant"], target["exemplar"]) == (True, False, True)


def test_thresholds_are_those_of_the_alerts_by_their_name(sources) -> None:
    sources.values["thresholds"]["late_landings"] = 7
    steps = sources.build()["panels"][1]["fieldConfig"]["defaults"]["thresholds"]["steps"]
    assert steps == [{"color": "green", "value": None}, {"color": "red", "value": 7}]


def test_above_nothing_begins_at_next_to_nothing(sources) -> None:
    sources.values["thresholds"]["late_landings"] = 0
    steps = sources.build()["panels"][1]["fieldConfig"]["defaults"]["thresholds"]["steps"]
    assert 0 < steps[1]["value"] < 1e-6


def test_a_table_has_its_columns_in_order_under_their_titles(sources) -> None:
    table = sources.build()["panels"][2]
    merge, convert, organize = table["transformations"]
    assert merge["id"] == "merge"
    assert convert["options"]["conversions"] == [
        {"targetField": "layer", "destinationType": "number"}
    ]
    assert organize["options"]["indexByName"] == {"layer": 0, "Value #A": 1, "Value #B": 2}
    assert organize["options"]["renameByName"]["Value #B"] == "Now"
    assert all(target["instant"] for target in table["targets"])


def cell(dashboard: dict, title: str) -> dict:
    """The settings of a column of the first table, by their name."""
    (table,) = (panel for panel in dashboard["panels"] if panel["type"] == "table")
    (column,) = (
        each for each in table["fieldConfig"]["overrides"] if each["matcher"]["options"] == title
    )
    return {each["id"]: each["value"] for each in column["properties"]}


@pytest.mark.parametrize(("number", "unit"), [(True, "none"), (False, "string")])
def test_a_label_that_looks_like_a_number_does_not_get_the_tables_unit(
    sources, number, unit
) -> None:
    columns = [{**COLUMNS[0], "number": number}, *COLUMNS[1:]]
    sources.panels = [SERIES, {"table": {**TABLE["table"], "columns": columns}}]
    assert cell(sources.build(), "Layer")["unit"] == unit


def test_a_bar_is_held_against_the_numbers_of_its_own_column(sources) -> None:
    columns = [*COLUMNS[:2], {**COLUMNS[2], "bar": True}]
    sources.panels = [SERIES, {"table": {**TABLE["table"], "columns": columns}}]
    assert cell(sources.build(), "Now")["fieldMinMax"] is True


def test_a_threshold_that_is_drawn_is_within_the_scale(sources) -> None:
    thresholds = {"base": "green", "orange": 0.1, "red": 0.4}
    series = {**SERIES["time-series"], "draw_thresholds": True, "thresholds": thresholds}
    sources.panels = [{"time-series": series}, TABLE]
    (panel,) = (each for each in sources.build()["panels"] if each["type"] == "timeseries")
    assert panel["fieldConfig"]["defaults"]["custom"]["axisSoftMax"] == 0.5


def test_what_the_sdk_writes_too_much_is_taken_away(sources) -> None:
    made = sources.build()
    assert not {"auto", "auto_min", "auto_count"} & set(made["templating"]["list"][1])
    assert "footer" not in made["panels"][2]["options"]


def test_a_variable_asks_within_what_was_chosen_before(sources) -> None:
    asked = sources.build()["templating"]["list"][1]["query"]["query"]
    assert asked == 'label_values(m{job=~"$job"}, instance)'


@pytest.mark.parametrize(
    ("panel", "told"),
    [
        ({"time-serie": COMMON}, "with name 'time-serie' found"),
        ({"time-series": {**COMMON}}, "panel 'P': no queries"),
        ({"time-series": {**COMMON, "queries": ["waits"], "fil": 1}}, "panel 'P': fil is none of"),
        ({"time-series": {**COMMON, "queries": ["wait"]}}, "no query is called wait"),
        ({"stat": {**COMMON, "queries": ["now"], "unit": "sekunden"}}, "no unit 'sekunden'"),
        (
            {"stat": {**COMMON, "queries": ["now"], "thresholds": {"base": "green", "red": "x"}}},
            "no threshold is called x",
        ),
        (
            {"stat": {**COMMON, "queries": ["now"], "thresholds": {"red": 1}}},
            "thresholds begin with the colour of their base",
        ),
        (
            {"stat": {**COMMON, "queries": ["now"], "thresholds": {"base": "g", "o": 2, "r": 1}}},
            "thresholds rise",
        ),
        (
            {"stat": {**COMMON, "queries": ["now"], "links": ["flet"]}},
            "flet is none of our dashboards",
        ),
        ({"table": {**COMMON, "columns": COLUMNS, "sort": "None"}}, "'P' has no column None"),
        (
            {"table": {**COMMON, "columns": [{"titel": "x"}], "sort": "x"}},
            "a column of 'P': titel is none of",
        ),
        (
            {"stat": {**COMMON, "queries": ["now"], "title": "{x}"}},
            r"braces belong into queries.yaml",
        ),
        ({"stat": "now"}, "panel 'now' is a mapping"),
    ],
)
def test_what_is_wrong_with_a_panel_ends_the_build(sources, panel, told) -> None:
    sources.panels.append(panel)
    with pytest.raises(DashboardsError, match=told):
        sources.build()


@pytest.mark.parametrize(
    ("component", "told"),
    [
        ({"name": "x", "dashbord": {}}, "x: there is no component of type dashbord"),
        ({"dashboard": {}}, r"a component has a name and a type, not \['dashboard'\]"),
        ({"name": "d", "dashboard": {}}, "Key 'd' is already defined"),
    ],
)
def test_what_the_builder_would_skip_ends_the_build(sources, component, told) -> None:
    sources.more.append(component)
    with pytest.raises(DashboardsError, match=told):
        sources.build()


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("titel", "x", "dashboard d: titel is none of"),
        ("annotations", [{"annotation": {"name": "A"}}], "annotation: no query and no colour"),
        ("annotations", [{"annotations": []}], "with name 'annotations' found"),
        ("templates", [{"place-variable": {"name": "books"}}], r"no links.books"),
        ("templates", ["variables"], "with name 'variables' found"),
    ],
)
def test_what_is_wrong_with_a_dashboard_ends_the_build(sources, key, value, told) -> None:
    sources.dashboard[key] = value
    with pytest.raises(DashboardsError, match=told):
        sources.build()


def test_a_query_that_nobody_asks_ends_the_build(sources) -> None:
    sources.queries["left"] = {"expr": "x"}
    with pytest.raises(DashboardsError, match="queries that no panel asks: left"):
        sources.build()


def test_a_plugin_that_does_not_load_ends_the_build(tmp_path) -> None:
    """The builder's own command says so in one line and goes on without the plugin."""
    broken = tmp_path / "grafana_foundation_sdk"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise RuntimeError('broken')")
    done = subprocess.run(
        [sys.executable, "-c", MAIN, "dashboards", "build", "--out", tmp_path / "out"],
        cwd=ROOT,
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "broken" in done.stderr
    assert not (tmp_path / "out").exists()


def test_without_the_builder_the_build_says_how_to_get_it(sources, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "grafana_dashboards.components.projects", None)
    with pytest.raises(DashboardsError, match="pip install --no-deps grafana-dashboard-builder"):
        sources.build()


def test_a_project_without_dashboards_is_told(tmp_path) -> None:
    shutil.copytree(ROOT / "alerts", tmp_path / "alerts")
    folder = Folder(tmp_path, AlertsFolder(tmp_path / "alerts"))
    with pytest.raises(DashboardsError, match="has no project that names dashboards"):
        build(folder, folder.alerts.values())


def test_dashboards_on_disk_that_are_not_what_was_built_are_named() -> None:
    committed = {"same.json": {"a": 1}, "old.json": {"a": 1}, "left.json": {}}
    built = {"same.json": {"a": 1}, "old.json": {"a": 2}, "new.json": {}}
    assert list(differences(committed, built)) == [
        "left.json: no source makes it",
        "new.json: not built yet: moriio-observed dashboards build",
        "old.json: differs from its source: moriio-observed dashboards build",
    ]
