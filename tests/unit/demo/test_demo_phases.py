"""What the demo refuses before it starts anything."""

from __future__ import annotations

import fcntl
import importlib.util
from pathlib import Path

import pytest

from moriio_observed.demo import phases
from moriio_observed.demo.errors import DemoError


def silent(_: str) -> None:
    """Say nothing."""


def test_without_vllm_it_says_what_to_do_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(DemoError, match="vLLM is not installed here"):
        phases.run(phases.Options(tmp_path / "out"), silent)
    assert not (tmp_path / "out").exists()


def test_a_tree_without_a_vllm_package_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DemoError, match="has no folder vllm in it"):
        phases.run(phases.Options(tmp_path / "out", vllm_tree=tmp_path), silent)


def test_a_second_demo_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "demo.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(DemoError, match="another demo runs in"):
            phases.run(phases.Options(tmp_path), silent)
