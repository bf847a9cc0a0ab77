"""What kubectl makes of a kustomization, and what else the tests of deploy/ read."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"

Resource = dict[str, Any]


def kustomized(folder: Path) -> list[Resource]:
    """Every resource of a kustomization, as kubectl would apply it."""
    done = subprocess.run(
        ["kubectl", "kustomize", folder], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    # It warns of what will not work for long.
    assert not done.stderr
    return list(yaml.safe_load_all(done.stdout))


def kustomized_example(folder: Path) -> list[Resource]:
    """What the kustomization of deploy/README.md makes of ours.

    Args:
        folder: An empty one.
    """
    [example] = [each for each in examples(DEPLOY / "README.md") if "resources" in each]
    (folder / "moriio-observed").symlink_to(ROOT)
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(example))
    return kustomized(folder)


def only(resources: list[Resource], kind: str, name: str) -> Resource:
    """The one resource of this kind and name."""
    [found] = [
        each for each in resources if (each["kind"], each["metadata"]["name"]) == (kind, name)
    ]
    return found


def examples(page: Path) -> Iterator[Any]:
    """Every block of YAML in a page."""
    for block in re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
        yield yaml.safe_load(block)
