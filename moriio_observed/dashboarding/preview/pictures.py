"""Pictures of dashboards, and what is to be said of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moriio_observed.dashboarding.folder import Dashboard
from moriio_observed.dashboarding.preview import browser, frames
from moriio_observed.dashboarding.preview.contents import WIDTH, Asker
from moriio_observed.dashboarding.preview.page import Page


@dataclass(frozen=True, slots=True)
class Picture:
    """One dashboard, drawn.

    Attributes:
        path: The file.
        panels: What each panel came to.
        empty: The titles of panels for which Prometheus has no number.
    """

    path: Path
    panels: tuple[browser.DrawnPanel, ...]
    empty: tuple[str, ...]

    def errors(self) -> Iterator[str]:
        """Yield why panels could not be drawn, a line each."""
        for panel in self.panels:
            if panel.error:
                yield f"{self.path.name}: panel {panel.title!r}: {panel.error}"


def take(
    dashboards: Mapping[str, tuple[Dashboard, Asker]],
    page: Page,
    chromium: str,
    out: Path,
    theme: str,
) -> list[Picture]:
    """Draw dashboards and write a picture of each.

    Args:
        dashboards: What to draw and whom to ask, by the name that its file shall have.
        page: What draws.
        chromium: The browser.
        out: The folder for the pictures.
        theme: `dark` or `light`.

    Raises:
        DashboardsError: Prometheus does not answer, or the browser does not draw.
    """
    contents = {
        out / f"{name}.png": {**asker.contents(dashboard), "theme": theme}
        for name, (dashboard, asker) in dashboards.items()
    }
    out.mkdir(parents=True, exist_ok=True)
    drawn = browser.photograph(page, chromium, contents, WIDTH)
    return [
        Picture(path, tuple(panels), tuple(_empty(shown)))
        for (path, shown), panels in zip(contents.items(), drawn, strict=True)
    ]


def _empty(contents: Mapping[str, Any]) -> Iterator[str]:
    for panel in contents["dashboard"]["panels"]:
        found = contents["panels"].get(str(panel["id"]))
        if found is not None and "refused" not in found and not frames.has_data(found["frames"]):
            yield str(panel["title"])
