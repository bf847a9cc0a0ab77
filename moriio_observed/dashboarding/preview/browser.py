"""A browser without a window: it is served the page with something to draw, and photographed."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from moriio_observed.dashboarding.errors import DashboardsError
from moriio_observed.dashboarding.preview.page import Page
from moriio_observed.demo.ports import HOST

CHROMIUMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
"""What the browser may be called."""

_OF_ONE_PICTURE_S = 120.0


@dataclass(frozen=True, slots=True)
class DrawnPanel:
    """What a panel came to on the page.

    Attributes:
        title: Its title.
        text: All text on it, what a chart says of itself too.
        error: Why it could not be drawn, empty where it was.
    """

    title: str
    text: str
    error: str


def find_chromium() -> str:
    """Return where the browser is installed.

    Raises:
        DashboardsError: It is not.
    """
    found = next(filter(None, map(shutil.which, CHROMIUMS)), None)
    if found is None:
        raise DashboardsError("chromium is not installed: apt-get install chromium")
    return found


def photograph(
    page: Page, chromium: str, contents: Mapping[Path, Mapping[str, Any]], width: int
) -> list[list[DrawnPanel]]:
    """Draw things to draw, and write a picture of each.

    Args:
        page: What draws.
        chromium: The browser.
        contents: What to draw, by the file that gets its picture.
        width: Of the pictures, in pixels.

    Returns:
        What each came to, in their order.

    Raises:
        DashboardsError: The browser does not draw.
    """
    with (
        _serving(page.served, list(contents.values())) as url,
        # The browser's profile: when it is killed it leaves that behind.
        tempfile.TemporaryDirectory(
            prefix="moriio-preview-", ignore_cleanup_errors=True
        ) as profile,
    ):
        pictures = [
            {"url": f"{url}/?number={number}", "path": str(path.absolute())}
            for number, path in enumerate(contents)
        ]
        orders = {
            "executable": chromium,
            "width": width,
            "timeout": _OF_ONE_PICTURE_S * 1000,
            "pictures": pictures,
        }
        try:
            done = subprocess.run(  # noqa: S603 - our own script
                ["node", str(page.photograph)],  # noqa: S607 - wherever the user has it
                env={**os.environ, "TMPDIR": profile},
                input=json.dumps(orders),
                capture_output=True,
                text=True,
                timeout=_OF_ONE_PICTURE_S * (1 + len(pictures)),
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise DashboardsError(f"{chromium} does not end in {error.timeout:.0f} s") from None
    if done.returncode:
        raise DashboardsError(f"{chromium} does not draw:\n{done.stderr.strip()}")
    return [
        [DrawnPanel(**panel) for panel in json.loads(line)] for line in done.stdout.splitlines()
    ]


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Serves the page's files, and what to draw by its number."""

    def __init__(self, *args: Any, contents: list[bytes], **kwargs: Any) -> None:
        self._contents = contents
        super().__init__(*args, **kwargs)

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        if address.path != "/contents":
            super().do_GET()
            return
        body = self._contents[int(parse_qs(address.query)["number"][0])]
        self.send_response(http.HTTPStatus.OK)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Keep quiet: the terminal is the user's."""


@contextmanager
def _serving(folder: Path, contents: list[Mapping[str, Any]]) -> Iterator[str]:
    bodies = [json.dumps(each, allow_nan=False).encode() for each in contents]
    handler = partial(_Handler, directory=str(folder), contents=bodies)
    with http.server.ThreadingHTTPServer((HOST, 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, name="preview")
        thread.start()
        try:
            yield f"http://{HOST}:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
