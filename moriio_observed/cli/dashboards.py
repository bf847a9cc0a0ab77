"""`moriio-observed dashboards`: build, check, send and draw the Grafana dashboards."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from moriio_observed.cli import preview
from moriio_observed.cli.extras import extra
from moriio_observed.dashboarding.errors import DashboardsError
from moriio_observed.shipped import shipped

NAME = "dashboards"
SUMMARY = "Build, check and draw the Grafana dashboards, and send them to a Grafana."

URL = "GRAFANA_URL"
TOKEN = "GRAFANA_TOKEN"  # noqa: S105 - the variable's name


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions of the dashboards, each with its options."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="action")
    for name, about, add in (
        ("build", "Build the dashboards from their sources (needs the builder).", _add_build),
        ("check", "Check every rule that our dashboards keep, also on your own.", _add_check),
        ("push", "Say what would change in a Grafana, and change it with --apply.", _add_push),
        ("preview", "Draw the dashboards without a Grafana, as pictures.", preview.add_arguments),
        ("folder", "Say where the dashboards are, with the provisioning.", _add_nothing),
    ):
        action = actions.add_parser(name, help=about, description=about)
        _add_places(action)
        add(action)


def run(arguments: argparse.Namespace) -> int:
    """Build, check, push or preview the dashboards, or say where they are.

    Raises:
        AlertsError: The rules or values cannot be used.
        DashboardsError: The dashboards cannot be used, or Grafana refuses.
        MissingExtraError: The extra `dashboards` is not installed.
    """
    actions = {
        "build": _build,
        "check": _check,
        "push": _push,
        "preview": preview.run,
        "folder": _folder,
    }
    return actions[arguments.action](arguments)


def _add_places(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dir",
        type=Path,
        default=shipped("dashboards"),
        metavar="DIR",
        help="the folder with sources and json, or with dashboards alone (default: ours)",
    )
    parser.add_argument(
        "--alerts",
        type=Path,
        default=shipped("alerts"),
        metavar="DIR",
        help="the folder with the rules, queries.yaml and values.yaml (default: ours)",
    )
    parser.add_argument(
        "--values", type=Path, metavar="FILE", help="your values, as for the alerts"
    )


def _add_build(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="where to write (default: where the folder has its dashboards)",
    )


def _add_check(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--no-drift",
        action="store_true",
        help="do not compare with the sources, for which the builder is needed",
    )


def _add_push(parser: argparse.ArgumentParser) -> None:
    parser.epilog = f"The token of a service account is read from the environment: {TOKEN}."
    parser.add_argument(
        "--url", default=os.environ.get(URL), help=f"Grafana's address (default: {URL})"
    )
    parser.add_argument(
        "--folder-uid", default="moriio", metavar="UID", help="the folder (default: moriio)"
    )
    parser.add_argument(
        "--folder-title",
        default="MoRIIO",
        metavar="TITLE",
        help="what it is called if it has to be made (default: MoRIIO)",
    )
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="replace a dashboard that has the uid of one of ours and is not",
    )
    parser.add_argument(
        "--apply", action="store_true", help="change it; without, only say what would change"
    )


def _add_nothing(_: argparse.ArgumentParser) -> None:
    pass


def _build(arguments: argparse.Namespace) -> int:
    with extra(NAME):
        from moriio_observed.alerting.folder import Folder as AlertsFolder
        from moriio_observed.dashboarding.build import build
        from moriio_observed.dashboarding.folder import Folder, to_text

    folder = Folder(arguments.dir, AlertsFolder(arguments.alerts))
    out: Path = arguments.out or folder.built_path
    built = build(folder, folder.alerts.values(arguments.values))
    out.mkdir(parents=True, exist_ok=True)
    for name, dashboard in built.items():
        (out / name).write_text(to_text(dashboard), encoding="utf-8")
        print(out / name)
    return 0


def _check(arguments: argparse.Namespace) -> int:
    with extra(NAME):
        from moriio_observed.alerting.folder import Folder as AlertsFolder
        from moriio_observed.dashboarding.check import drift, problems
        from moriio_observed.dashboarding.folder import Folder

    folder = Folder(arguments.dir, AlertsFolder(arguments.alerts))
    values = folder.alerts.values(arguments.values)
    found = list(problems(folder, values))
    if folder.sources() and not arguments.no_drift:
        found += drift(folder, values)
    for problem in found:
        print(problem, file=sys.stderr)
    if not found:
        print(f"{len(folder.built())} dashboards keep every rule")
    return int(bool(found))


def _push(arguments: argparse.Namespace) -> int:
    with extra(NAME):
        from moriio_observed.alerting.folder import Folder as AlertsFolder
        from moriio_observed.dashboarding.folder import Folder
        from moriio_observed.dashboarding.push import Step, Target, with_runbooks

    if not arguments.url:
        raise DashboardsError(f"which Grafana? Name it with --url or {URL}")
    if not (token := os.environ.get(TOKEN)):
        raise DashboardsError(f"{TOKEN} is not set: the token of a service account that may write")
    folder = Folder(arguments.dir, AlertsFolder(arguments.alerts))
    dashboards = folder.built()
    if arguments.values is not None:
        url = str(folder.alerts.values(arguments.values)["links"]["runbooks"])
        dashboards = {name: with_runbooks(each, url) for name, each in dashboards.items()}
    target = Target(arguments.url, token, arguments.folder_uid, arguments.folder_title)
    plan = target.plan(dashboards, overwrite=arguments.overwrite)
    for planned in plan:
        print(planned)
    changes = [planned for planned in plan if planned.step in (Step.CREATE, Step.CHANGE)]
    if not arguments.apply:
        print(f"nothing was changed: --apply makes these {len(changes)} changes")
    elif changes:
        target.apply(plan)
        print(f"{len(changes)} dashboards written to the folder {arguments.folder_uid}")
    return int(any(planned.step is Step.REFUSE for planned in plan))


def _folder(arguments: argparse.Namespace) -> int:
    print(arguments.dir.resolve())
    return 0
