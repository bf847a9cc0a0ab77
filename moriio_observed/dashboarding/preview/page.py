"""The page that draws: built once from its source, and again when that has changed."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from moriio_observed.dashboarding.errors import DashboardsError

STAMP = "stamp"
"""Holds the digest of the source that the build was made from; written last."""

_LOG = "build.log"
_TAIL_LINES = 15
# No scripts of packages: nothing that the page is made of needs one.
_INSTALL = ("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
_BUILD = ("npm", "run", "build")


@dataclass(frozen=True, slots=True)
class Page:
    """A built page.

    Attributes:
        path: Where it was built.
    """

    path: Path

    @property
    def served(self) -> Path:
        """The folder that a browser is served."""
        return self.path / "dist"

    @property
    def photograph(self) -> Path:
        """The script for node that takes the pictures."""
        return self.path / "photograph.mjs"


def built(source: Path, build: Path, say: Callable[[str], None]) -> Page:
    """Return the page, built now if there is none of this source yet.

    Args:
        source: The folder with its `package.json`.
        build: Where to build it, a folder of its own.
        say: Gets a line where it takes long.

    Raises:
        DashboardsError: There is no source, node or npm is missing, or the build fails.
    """
    digest = digest_of(source)
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            raise DashboardsError(
                f"{program} is not installed: the preview is drawn with Node.js 20"
            )
    build.mkdir(parents=True, exist_ok=True)
    with (build / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _is(build, digest):
            say(f"building the page that draws in {build}, once: this takes some minutes")
            _build(source, build)
            (build / STAMP).write_text(digest, encoding="utf-8")
    return Page(build)


def digest_of(source: Path) -> str:
    """Return a digest of all files of a page's source, their names included.

    Raises:
        DashboardsError: There are none.
    """
    paths = sorted(path for path in source.rglob("*") if path.is_file())
    if source / "package.json" not in paths:
        raise DashboardsError(
            f"{source} is not the page that draws: it has no package.json; name it with --page"
        )
    digest = hashlib.sha256()
    for path in paths:
        content = path.read_bytes()
        digest.update(f"{path.relative_to(source)} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def _is(build: Path, digest: str) -> bool:
    stamp = build / STAMP
    return stamp.exists() and stamp.read_text(encoding="utf-8") == digest


def _build(source: Path, build: Path) -> None:
    (build / STAMP).unlink(missing_ok=True)
    shutil.rmtree(build / "src", ignore_errors=True)
    shutil.copytree(source, build, dirs_exist_ok=True)
    log = build / _LOG
    with log.open("w", encoding="utf-8") as output:
        for command in (_INSTALL, _BUILD):
            done = subprocess.run(  # noqa: S603 - our own command
                command,
                cwd=build,
                env={**os.environ, "CI": "1"},
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            )
            if done.returncode:
                lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
                end = "\n".join(f"  | {line}" for line in lines[-_TAIL_LINES:])
                raise DashboardsError(f"{' '.join(command)} failed; the end of {log}:\n{end}")
