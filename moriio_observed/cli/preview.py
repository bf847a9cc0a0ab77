"""`moriio-observed dashboards preview`: pictures of the dashboards, drawn without a Grafana."""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from moriio_observed.cli.extras import extra
from moriio_observed.dashboarding.errors import DashboardsError
from moriio_observed.shipped import shipped

if TYPE_CHECKING:
    from moriio_observed.dashboarding.folder import Dashboard
    from moriio_observed.dashboarding.preview.window import Window

BUILD = Path("build/preview")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what to draw, and from whose numbers."""
    parser.epilog = f"The page that draws is built in {BUILD}; that needs Node.js and npm, once."
    parser.add_argument(
        "--prometheus", required=True, metavar="URL", help="whom to ask: http://HOST:9090"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("build/dashboards"),
        metavar="DIR",
        help="where the pictures go (default: build/dashboards)",
    )
    parser.add_argument(
        "--dashboard",
        action="append",
        metavar="UID",
        help="draw this one only; can be said several times (default: all)",
    )
    parser.add_argument("--from", dest="start", metavar="TIME", help="where the time shown begins")
    parser.add_argument(
        "--to",
        dest="end",
        metavar="TIME",
        help="where it ends: 2026-11-30T09:00 (UTC) or seconds since 1970 (default: now)",
    )
    parser.add_argument(
        "--range",
        metavar="DURATION",
        help="instead of --from: how long it is, such as 30m (default: the dashboard's own)",
    )
    parser.add_argument(
        "--var",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="choose, as above the panels: engine=0; several times for several values",
    )
    parser.add_argument(
        "--scrape-interval",
        default="15s",
        metavar="DURATION",
        help="how often that Prometheus scrapes (default: 15s)",
    )
    parser.add_argument(
        "--theme", choices=("dark", "light"), default="dark", help="the colours (default: dark)"
    )
    parser.add_argument("--strict", action="store_true", help="fail if a panel has no data, too")
    parser.add_argument(
        "--page",
        type=Path,
        default=shipped("dashboards") / "preview",
        metavar="DIR",
        help="the source of the page that draws (default: ours, in a checkout)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Draw dashboards.

    Returns:
        0 if every panel could be drawn; with `--strict` if every panel has data, too.

    Raises:
        DashboardsError: Something is missing, does not answer, or cannot be understood.
        MissingExtraError: The extra `dashboards` is not installed.
    """
    with extra("dashboards"):
        from moriio_observed.alerting.folder import Folder as AlertsFolder
        from moriio_observed.dashboarding.folder import Folder
        from moriio_observed.dashboarding.preview import browser, page, pictures
        from moriio_observed.dashboarding.preview.contents import Asker
        from moriio_observed.dashboarding.preview.prometheus import Prometheus

    folder = Folder(arguments.dir, AlertsFolder(arguments.alerts))
    prometheus = Prometheus(arguments.prometheus)
    choices = _choices(arguments.var)
    wanted = {
        name: (dashboard, Asker(prometheus, _window(arguments, dashboard), choices))
        for name, dashboard in _chosen(folder.built(), arguments.dashboard).items()
    }
    prometheus.now("vector(1)", time.time())
    chromium = browser.find_chromium()
    built = page.built(arguments.page, BUILD, print)
    taken = pictures.take(wanted, built, chromium, arguments.out, arguments.theme)
    errors = [error for picture in taken for error in picture.errors()]
    for picture in taken:
        print(picture.path)
        for title in picture.empty:
            print(f"{picture.path.name}: no data: {title}")
    for error in errors:
        print(error, file=sys.stderr)
    empty = sum(len(picture.empty) for picture in taken)
    if arguments.strict and empty:
        print(f"{empty} panels have no data", file=sys.stderr)
    return int(bool(errors or (arguments.strict and empty)))


def _chosen(built: Mapping[str, Dashboard], uids: list[str] | None) -> dict[str, Dashboard]:
    by_uid = {dashboard["uid"]: name for name, dashboard in built.items()}
    if unknown := [uid for uid in uids or () if uid not in by_uid]:
        raise DashboardsError(
            f"no dashboard has the uid {unknown[0]}: there are {', '.join(sorted(by_uid))}"
        )
    names = sorted(by_uid[uid] for uid in set(uids or by_uid))
    return {Path(name).stem: built[name] for name in names}


def _choices(said: list[str]) -> dict[str, list[str]]:
    choices: dict[str, list[str]] = defaultdict(list)
    for word in said:
        name, equals, value = word.partition("=")
        if not (name and equals and value):
            raise DashboardsError(f"--var {word}: write it like engine=0")
        choices[name].append(value)
    return dict(choices)


def _window(arguments: argparse.Namespace, dashboard: Dashboard) -> Window:
    from moriio_observed.dashboarding.preview.window import (
        Window,
        at,
        in_seconds,
        shown_by_itself,
    )

    end = time.time() if arguments.end is None else at(arguments.end)
    if arguments.start is None:
        length = arguments.range and in_seconds(arguments.range)
        start = end - (length or shown_by_itself(dashboard["time"]["from"]))
    elif arguments.range is None:
        start = at(arguments.start)
    else:
        raise DashboardsError("--from and --range both say where the time shown begins: name one")
    return Window(start, end, in_seconds(arguments.scrape_interval))
