"""Write what of deploy/ is made of the rules and dashboards, or with --check say what is stale.

With --values and --out: the same for you, with your selectors, thresholds and links.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moriio_observed.alerting.errors import AlertsError
from moriio_observed.alerting.folder import Folder as AlertsFolder
from moriio_observed.alerting.formats import plain, prometheus_rule
from moriio_observed.alerting.rules import render_groups
from moriio_observed.alerting.values import Values
from moriio_observed.alerting.yaml_text import to_yaml
from moriio_observed.dashboarding.errors import DashboardsError
from moriio_observed.dashboarding.folder import Dashboard, Folder
from moriio_observed.dashboarding.push import with_runbooks
from moriio_observed.shipped import shipped

DEPLOY = Path(__file__).parents[1] / "deploy"
HEAD = "# Written by scripts/deploy.py from alerts/ and dashboards/: change it there.\n"


def files(values_file: Path | None = None) -> Mapping[str, str]:
    """Return the text of every file by its path below deploy/.

    Args:
        values_file: Somebody's own values, None for ours.

    Raises:
        AlertsError: The values cannot be used.
    """
    folder = Folder(shipped("dashboards"), AlertsFolder(shipped("alerts")))
    values = folder.alerts.values(values_file)
    groups = render_groups(folder.alerts.sources(), values)
    documents = {
        "kubernetes/rules.yaml": prometheus_rule(groups, values),
        "prometheus/moriio.rules.yaml": plain(groups, values),
    }
    for name, dashboard in folder.built().items():
        config_map = _config_map(name, dashboard, values)
        documents[f"kubernetes/dashboards/{Path(name).stem}.yaml"] = config_map
    return {path: HEAD + to_yaml(document) for path, document in documents.items()}


def _config_map(name: str, dashboard: Dashboard, values: Values) -> Mapping[str, Any]:
    """A dashboard as the sidecar of Grafana's Helm chart finds it."""
    content = with_runbooks(dashboard, str(values["links"]["runbooks"]))
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": dashboard["uid"],
            "labels": {"grafana_dashboard": "1"},
            "annotations": {"grafana_folder": "MoRIIO"},
        },
        # In one line: a reader has dashboards/json.
        "data": {name: json.dumps(content, sort_keys=True, ensure_ascii=False)},
    }


def main() -> int:
    """Write the files, or check them; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, say what is stale")
    parser.add_argument("--values", type=Path, metavar="FILE", help="your values (default: ours)")
    parser.add_argument(
        "--out", type=Path, default=DEPLOY, metavar="DIR", help="where to (default: deploy)"
    )
    arguments = parser.parse_args()
    try:
        texts = files(arguments.values)
    except (AlertsError, DashboardsError) as error:
        parser.exit(1, f"{error}\n")
    if arguments.check:
        return _stale(texts, arguments.out)
    for path, text in texts.items():
        (arguments.out / path).parent.mkdir(parents=True, exist_ok=True)
        (arguments.out / path).write_text(text, encoding="utf-8")
    return 0


def _stale(texts: Mapping[str, str], out: Path) -> int:
    """Say which files are not what they would be written as, and which nobody would write."""
    written = {str(path.relative_to(out)) for path in out.glob("kubernetes/dashboards/*")}
    problems = [f"{out / path} is not written any more" for path in sorted(written - texts.keys())]
    for path, text in texts.items():
        file = out / path
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            problems.append(f"{file} is stale: run python scripts/deploy.py")
    for problem in problems:
        print(problem, file=sys.stderr)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
