"""Built dashboards are what Grafana publishes as the types of a dashboard."""

import copy
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tools import needs

ROOT = Path(__file__).parents[2]
TYPES = Path(__file__).with_name("grafana_schema")
BUILD = ROOT / "build" / "grafana_schema"
OURS = {
    path.stem: json.loads(path.read_text()) for path in (ROOT / "dashboards/json").glob("*.json")
}

pytestmark = [pytest.mark.contract, needs("node", "npm")]


@pytest.fixture(scope="module")
def refused() -> Callable[[dict[str, Any]], dict[str, str]]:
    """What TypeScript says against each of some dashboards."""
    shutil.copytree(TYPES, BUILD, dirs_exist_ok=True)
    # No lock file: it would name the registry that it was made with. All there is, is pinned.
    install = ["npm", "install", "--no-package-lock", "--no-audit", "--no-fund"]
    subprocess.run(install, cwd=BUILD, check=True, capture_output=True)

    def compile_all(dashboards: dict[str, Any]) -> dict[str, str]:
        written = [BUILD / f"{name}.ts" for name in dashboards]
        for path, dashboard in zip(written, dashboards.values(), strict=True):
            text = json.dumps(dashboard, indent=1)
            path.write_text(
                f"import type {{ Ours }} from './dashboard';\nexport const it: Ours = {text};\n"
            )
        try:
            done = subprocess.run(
                ["node", "node_modules/typescript/bin/tsc", "--pretty", "false", "-p", "."],
                cwd=BUILD,
                capture_output=True,
                text=True,
                check=False,
            )
        finally:
            for path in written:
                path.unlink()
        said: dict[str, list[str]] = {name: [] for name in dashboards}
        for line in done.stdout.splitlines():
            file, _, complaint = line.partition(".ts(")
            said.setdefault(file, []).append(complaint)
        return {name: "\n".join(lines) for name, lines in said.items() if lines}

    return compile_all


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
