"""The dashboards that we ship."""

import re
from pathlib import Path

import pytest
import yaml

from moriio_observed.alerting.folder import Folder as AlertsFolder
from moriio_observed.alerting.rules import DASHBOARDS, VARIABLES
from moriio_observed.canary.metrics import Result, RoundResult
from moriio_observed.config import Settings
from moriio_observed.dashboarding import check
from moriio_observed.dashboarding.build import INSTALL
from moriio_observed.dashboarding.folder import Folder
from moriio_observed.dashboarding.rules.parts import panels

ROOT = Path(__file__).parents[3]
FOLDER = Folder(ROOT / "dashboards", AlertsFolder(ROOT / "alerts"))
VALUES = FOLDER.alerts.values()
BUILT = {name.removesuffix(".json"): dashboard for name, dashboard in FOLDER.built().items()}
EVERY = pytest.mark.parametrize("name", sorted(BUILT))


def test_they_are_what_the_alerts_link_to() -> None:
    assert {dashboard["uid"] for dashboard in BUILT.values()} == {
        f"moriio-{name}" for name in DASHBOARDS
    }


def test_they_keep_every_rule() -> None:
    assert list(check.problems(FOLDER, VALUES)) == []


def test_they_are_what_their_sources_say() -> None:
    assert list(check.drift(FOLDER, VALUES)) == []


@EVERY
def test_engines_can_be_chosen_as_alerts_tell_them_apart_and_ranks_too(name) -> None:
    variables = [variable["name"] for variable in BUILT[name]["templating"]["list"]]
    canary = ["target"] if name == "salad-watch" else []
    assert variables == ["datasource", *VARIABLES.values(), "rank", "runbooks", *canary]


@EVERY
def test_alerts_and_changes_of_configuration_are_drawn_over_every_panel(name) -> None:
    asked = [each["target"]["expr"] for each in BUILT[name]["annotations"]["list"]]
    assert ["ALERTS" in asked[0], "moriio_config_info" in asked[1]] == [True, True]


@EVERY
def test_they_lead_to_the_other_dashboards_and_to_runbooks(name) -> None:
    addresses = " ".join(
        link["url"] for panel in panels(BUILT[name]) for link in panel.get("links", ())
    )
    assert set(re.findall(r"/d/moriio-([\w-]+)", addresses)) - {name}
    assert "${runbooks}/" in addresses


@EVERY
def test_the_first_row_is_of_large_numbers_in_the_colour_of_their_threshold(name) -> None:
    first = [panel for panel in panels(BUILT[name]) if panel["gridPos"]["y"] == 1]
    assert {panel["type"] for panel in first} == {"stat"}
    assert sum(panel["gridPos"]["w"] for panel in first) == 24


@EVERY
def test_rows_of_panels_are_filled_to_the_right(name) -> None:
    widths: dict[int, int] = {}
    for panel in BUILT[name]["panels"]:
        at = panel["gridPos"]
        widths[at["y"]] = widths.get(at["y"], 0) + at["w"]
    assert set(widths.values()) == {24}


@EVERY
def test_what_is_certain_is_red_and_what_is_possible_orange(name) -> None:
    for panel in panels(BUILT[name]):
        for override in panel["fieldConfig"].get("overrides", ()):
            colour = next((p["value"] for p in override["properties"] if p["id"] == "color"), None)
            wanted = {"/^certain/": "red", "/^possible/": "orange"}.get(
                override["matcher"]["options"]
            )
            assert wanted is None or colour["fixedColor"] == wanted, panel["title"]


@pytest.mark.parametrize(
    ("title", "kind"),
    [
        ("Barrier waits", "heatmap"),
        ("Barrier in force", "state-timeline"),
        ("FULL graphs protected", "state-timeline"),
        ("Waits by layer", "table"),
        ("Ranks against each other", "table"),
        ("Remotes", "table"),
        ("Engines, worst first", "table"),
    ],
)
def test_what_a_line_shows_badly_is_shown_otherwise(title, kind) -> None:
    shown = {panel["title"]: panel["type"] for each in BUILT.values() for panel in panels(each)}
    assert shown[title] == kind


@pytest.mark.parametrize("setting", ["barrier", "guard"])
def test_every_barrier_and_guard_has_a_state(setting) -> None:
    allowed = Settings.__dataclass_fields__[setting].metadata["rule"].allowed
    expr = FOLDER.queries(VALUES)[f"{setting}_in_force"].expr
    shown = re.findall(rf'{setting}="(\w+)"', expr)
    assert set(shown) == set(allowed.removeprefix("one of ").split(", "))
    states = {
        panel["title"]: panel["fieldConfig"]["defaults"]["mappings"][0]["options"]
        for dashboard in BUILT.values()
        for panel in panels(dashboard)
        if panel["type"] == "state-timeline" and "mappings" in panel["fieldConfig"]["defaults"]
    }[f"{setting.capitalize()} in force"]
    assert [states[str(number)]["text"] for number, _ in enumerate(shown, start=1)] == shown


def test_every_result_of_a_canarys_round_has_a_state_and_the_worse_wins() -> None:
    [panel] = [one for one in panels(BUILT["salad-watch"]) if one["title"] == "Canary's verdict"]
    [mapped] = panel["fieldConfig"]["defaults"]["mappings"]
    states = {number: each["text"] for number, each in mapped["options"].items()}
    asked = FOLDER.queries(VALUES)["canary_verdict"].expr
    numbers = dict(re.findall(r'result="(\w+)"[^*]*?bool 0\)(?: \* (\d))?', asked))
    assert {number or "1": result for result, number in numbers.items()} == states
    assert [states[number] for number in sorted(states, reverse=True)] == list(RoundResult)


def test_every_result_of_a_probe_has_a_colour() -> None:
    shown = {panel["title"]: panel for panel in panels(BUILT["salad-watch"])}
    coloured = shown["Probes by what came back"]["fieldConfig"]["overrides"]
    assert {each["matcher"]["options"] for each in coloured} == {
        f"/^{result}/" for result in Result
    }


@EVERY
def test_histograms_carry_exemplars(name) -> None:
    targets = [
        target
        for panel in panels(BUILT[name])
        if panel["type"] in ("heatmap", "timeseries")
        for target in panel["targets"]
        if "_bucket{" in target["expr"]
    ]
    assert all(target["exemplar"] for target in targets)


def test_the_provisioned_datasource_knows_where_traces_are() -> None:
    path = ROOT / "dashboards/provisioning/datasources/moriio.yaml"
    prometheus, traces = yaml.safe_load(path.read_text())["datasources"]
    (destination,) = prometheus["jsonData"]["exemplarTraceIdDestinations"]
    assert destination == {"name": "trace_id", "datasourceUid": traces["uid"]}


def test_provisioned_dashboards_cannot_be_changed_in_the_browser() -> None:
    path = ROOT / "dashboards/provisioning/dashboards/moriio.yaml"
    (provider,) = yaml.safe_load(path.read_text())["providers"]
    assert (provider["type"], provider["allowUiUpdates"]) == ("file", False)


def test_whoever_is_told_to_install_the_builder_is_told_the_same() -> None:
    builder, sdk = re.findall(r"grafana-\S+==\S+", INSTALL)
    assert INSTALL in (ROOT / "dashboards/README.md").read_text()
    assert f"--no-deps {builder} " in (ROOT / "scripts/setup.sh").read_text()
    assert f'"{sdk}"' in (ROOT / "pyproject.toml").read_text()


def test_the_readme_names_every_dashboard() -> None:
    text = (ROOT / "dashboards/README.md").read_text()
    for name, dashboard in BUILT.items():
        assert f"(json/{name}.json) | `{dashboard['uid']}`" in text
