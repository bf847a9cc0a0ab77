"""`moriio-observed alerts`: rules and alerts with your selectors and thresholds."""

from __future__ import annotations

import argparse
from pathlib import Path

from moriio_observed.alerting.formats import FORMATS
from moriio_observed.cli.extras import extra
from moriio_observed.shipped import shipped

NAME = "alerts"
SUMMARY = "Check, test and render the Prometheus rules with your selectors and thresholds."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the alerts."""
    parser.add_argument(
        "action",
        choices=("check", "test", "render", "folder"),
        help="check: metrics, labels, conventions and promtool's lint; test: promtool's tests, with"
        " our selectors and your thresholds; render: write the rules; folder: say where they are,"
        " with the runbooks and the example for Alertmanager",
    )
    parser.add_argument(
        "--dir",
        type=Path,
        default=shipped("alerts"),
        metavar="DIR",
        help="the folder with values.yaml, rules, alerts and tests (default: ours)",
    )
    parser.add_argument(
        "--values",
        type=Path,
        metavar="FILE",
        help="your values: what of values.yaml shall be different",
    )
    parser.add_argument(
        "--format",
        choices=tuple(FORMATS),
        default="plain",
        help="a rule file, a PrometheusRule resource, or for mimirtool (default: plain)",
    )
    parser.add_argument(
        "--no-keep-firing-for",
        action="store_true",
        help="for engines that do not know keep_firing_for: Prometheus before 2.42, old vmalerts",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="where to write (default: standard output)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Check, test or render the rules, or say where they are.

    Raises:
        AlertsError: The rules or values cannot be used, or promtool is needed and missing.
        MissingExtraError: A library of the extra `alerts` is not installed.
    """
    if arguments.action == "folder":
        print(arguments.dir.resolve())
        return 0
    with extra("alerts"):
        from moriio_observed.alerting import actions
        from moriio_observed.alerting.folder import Folder
    copy = actions.Copy(
        Folder(arguments.dir), arguments.values, keep_firing_for=not arguments.no_keep_firing_for
    )
    match arguments.action:
        case "check":
            return actions.check(copy)
        case "test":
            return actions.test(copy)
        case _:
            return actions.render(copy, arguments.format, arguments.out)
