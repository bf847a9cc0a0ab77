"""Dashboards sent to a Grafana: what would change, and then the change."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from grafana_client import GrafanaApi
from grafana_client.client import GrafanaClientError, GrafanaException

from moriio_observed import __version__
from moriio_observed.dashboarding.errors import DashboardsError
from moriio_observed.dashboarding.folder import TAG, Dashboard
from moriio_observed.dashboarding.links import RUNBOOKS

_GRAFANAS_OWN = ("id", "version")


class Step(StrEnum):
    """What becomes of one dashboard."""

    CREATE = "create"
    CHANGE = "change"
    KEEP = "same"
    REFUSE = "refused"


@dataclass(frozen=True, slots=True)
class Planned:
    """What becomes of one dashboard, and why.

    Attributes:
        dashboard: What is sent.
        step: What becomes of it.
        why: What differs, or why it is refused.
        version: The version in Grafana that the plan is about, None where there is none.
        folder_uid: Where it is, or shall be.
    """

    dashboard: Dashboard
    step: Step
    why: str
    version: int | None
    folder_uid: str

    def __str__(self) -> str:
        """The line that the user reads."""
        why = f": {self.why}" if self.why else ""
        return f"{self.step:8}{self.dashboard['uid']} ({self.dashboard['title']}){why}"


@dataclass(frozen=True, slots=True)
class Target:
    """One folder of one Grafana.

    Attributes:
        url: Grafana's address.
        token: Of a service account that may write dashboards.
        folder_uid: The folder's uid; it is made if it is not there.
        folder_title: What it is then called.
    """

    url: str
    token: str
    folder_uid: str
    folder_title: str

    def plan(self, dashboards: Mapping[str, Dashboard], *, overwrite: bool) -> list[Planned]:
        """Return what pushing would do; nothing is changed.

        Args:
            dashboards: By the names of their files.
            overwrite: Whether a dashboard with our uid may be replaced that is not one of ours.

        Raises:
            DashboardsError: Grafana cannot be asked, or a dashboard has no uid or no title.
        """
        for name, dashboard in dashboards.items():
            if missing := [key for key in ("uid", "title") if not dashboard.get(key)]:
                raise DashboardsError(f"{name} has no {' and no '.join(missing)}")
        api = self._api()
        with _grafana_said(self.url):
            return [
                self._planned(
                    dashboard, _found(api.dashboard.get_dashboard, dashboard["uid"]), overwrite
                )
                for dashboard in dashboards.values()
            ]

    def has_folder(self) -> bool:
        """Whether the folder is there.

        Raises:
            DashboardsError: Grafana cannot be asked.
        """
        with _grafana_said(self.url):
            return _found(self._api().folder.get_folder, self.folder_uid) is not None

    def apply(self, plan: list[Planned]) -> None:
        """Do what a plan says, dashboards that are the same or refused excepted.

        Raises:
            DashboardsError: Grafana refuses, or somebody changed a dashboard since it was planned.
        """
        api = self._api()
        with _grafana_said(self.url):
            if not self.has_folder():
                api.folder.create_folder(self.folder_title, self.folder_uid)
            for planned in plan:
                if planned.step in (Step.CREATE, Step.CHANGE):
                    _write(api, planned)

    def _planned(
        self, dashboard: Dashboard, found: Mapping[str, Any] | None, overwrite: bool
    ) -> Planned:
        if found is None:
            return Planned(dashboard, Step.CREATE, "", None, self.folder_uid)
        theirs, meta = found["dashboard"], found.get("meta", {})
        step, why = _step(dashboard, theirs, meta, overwrite=overwrite)
        # A dashboard stays in the folder to which somebody has moved it.
        folder = str(meta.get("folderUid") or self.folder_uid)
        return Planned(dashboard, step, why, theirs.get("version"), folder)

    def _api(self) -> GrafanaApi:
        if urlsplit(self.url).scheme not in ("http", "https") or not urlsplit(self.url).hostname:
            raise DashboardsError(
                f"{self.url} is no address of a Grafana: one is like https://grafana.example"
            )
        # The client puts `api` right behind what it is given.
        return GrafanaApi.from_url(f"{self.url.rstrip('/')}/", self.token)


def with_runbooks(dashboard: Dashboard, url: str) -> Dashboard:
    """Return a dashboard whose links to runbooks go to another place.

    Args:
        dashboard: A built one.
        url: The folder of the runbooks.
    """
    changed: Dashboard = json.loads(json.dumps(dashboard))
    for variable in changed.get("templating", {}).get("list", ()):
        if variable["name"] == RUNBOOKS:
            variable["query"] = url.rstrip("/")
    return changed


def _step(
    ours: Dashboard, theirs: Dashboard, meta: Mapping[str, Any], *, overwrite: bool
) -> tuple[Step, str]:
    if meta.get("provisioned"):
        return Step.REFUSE, "it is provisioned from a file: change it there"
    if TAG not in theirs.get("tags", ()) and not overwrite:
        return Step.REFUSE, f"it has our uid and not our tag {TAG}: --overwrite replaces it"
    if _content(ours) == _content(theirs):
        return Step.KEEP, ""
    return Step.CHANGE, _difference(ours, theirs)


def _content(dashboard: Dashboard) -> Dashboard:
    return {key: value for key, value in dashboard.items() if key not in _GRAFANAS_OWN}


def _difference(ours: Dashboard, theirs: Dashboard) -> str:
    """What a push changes, as far as one line can say it."""
    new, old = _panels(ours), _panels(theirs)
    said = [
        *(f"+ {title}" for title in new if title not in old),
        *(f"- {title}" for title in old if title not in new),
        *(f"~ {title}" for title in new if title in old and new[title] != old[title]),
    ]
    keys = sorted(
        key
        for key in {*_content(ours), *_content(theirs)} - {"panels"}
        if ours.get(key) != theirs.get(key)
    )
    return ", ".join([*said, *(f"~ {key} of the dashboard" for key in keys)])


def _panels(dashboard: Dashboard) -> Mapping[str, Any]:
    return {str(panel.get("title")): panel for panel in dashboard.get("panels", ())}


def _write(api: GrafanaApi, planned: Planned) -> None:
    dashboard = {**planned.dashboard, "id": None}
    if planned.version is not None:
        # Grafana refuses if it has been changed since.
        dashboard["version"] = planned.version
    api.dashboard.update_dashboard(
        {
            "dashboard": dashboard,
            "folderUid": planned.folder_uid,
            "overwrite": False,
            "message": f"moriio-observed {__version__}",
        }
    )


def _found(ask: Any, uid: str) -> Mapping[str, Any] | None:
    try:
        answer: Mapping[str, Any] = ask(uid)
    except GrafanaClientError as error:
        if error.status_code == HTTPStatus.NOT_FOUND:
            return None
        raise
    return answer


@contextmanager
def _grafana_said(url: str) -> Iterator[None]:
    try:
        yield
    except GrafanaException as error:
        if error.status_code == HTTPStatus.PRECONDITION_FAILED:
            raise DashboardsError(
                f"somebody changed a dashboard in {url} meanwhile: plan again ({error.message})"
            ) from error
        raise DashboardsError(f"{url} refused: {error.message}") from error
    except OSError as error:
        raise DashboardsError(f"{url} cannot be reached: {error}") from error
