"""Built dashboards are what Grafana publishes as the types of a dashboard."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.contract.typescript import Types
from tests.tools import needs

ROOT = Path(__file__).parents[2]
OURS = {
    path.stem: json.loads(path.read_text()) for path in (ROOT / "dashboards/json").glob("*.json")
}

pytestmark = [pytest.mark.contract, needs("node", "npm")]


@pytest.fixture(scope="module")
def refused() -> Callable[[dict[str, Any]], dict[str, str]]:
    """What TypeScript says against each of some dashboards."""
    return Types(Path(__file__).with_name("grafana_schema"), "dashboard").refused


def broken(name: str, path: str, value: object) -> dict[str, Any]:
    dashboard = copy.deepcopy(OURS[name])
    *parents, last = [int(key) if key.isdigit() else key for key in path.split("/")]
    place: Any = dashboard
    for parent in parents:
        place = place[parent]
    place[last] = value
    return dashboard


def test_grafanas_types_take_our_dashboards(refused) -> None:
    assert len(OURS) == 4
    assert refused(OURS) == {}


def test_grafanas_types_refuse_what_is_wrong_in_a_dashboard(refused) -> None:
    wrong = {
        "an_unknown_key": broken("fleet", "schemaVersions", 1),
        "a_value_that_is_none": broken("fleet", "graphTooltip", 7),
        "an_unknown_panel": broken("fleet", "panels/1/type", "singlestat"),
        "an_unknown_option": broken("fleet", "panels/1/options/colourMode", "value"),
        "an_option_of_another_value": broken("fleet", "panels/1/options/colorMode", "bg"),
        "an_unknown_field_option": broken(
            "salad-watch", "panels/8/fieldConfig/defaults/custom/fillOpacty", 1
        ),
        "a_place_that_is_a_text": broken("fleet", "panels/1/gridPos/x", "0"),
        "a_variable_of_no_kind": broken("fleet", "templating/list/0/type", "prometheus"),
    }
    assert set(refused(wrong)) == set(wrong)
