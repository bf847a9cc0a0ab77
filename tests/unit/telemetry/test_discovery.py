"""The files that tell Prometheus where to scrape."""

import errno
import fcntl
import json
import os
import socket
import stat
import tempfile
from pathlib import Path
from typing import Any

import pytest

from moriio_observed.telemetry import discovery
from moriio_observed.telemetry.discovery import DiscoveryFile, default_folder, target

TARGET = "127.0.0.1:9400"


def leftover(folder: Path, name: str = "moriio-1-x.json") -> Path:
    """What a process leaves behind that had no time to remove it: nobody holds it."""
    path = folder / name
    path.write_text("[]")
    return path


def test_a_file_is_one_target_with_its_labels(tmp_path: Path) -> None:
    path = DiscoveryFile(str(tmp_path)).write(TARGET, {"moriio_role": "kv_consumer"})
    assert json.loads(path.read_text()) == [
        {"targets": [TARGET], "labels": {"moriio_role": "kv_consumer"}}
    ]


def test_each_endpoint_has_a_file_of_its_own_that_the_pattern_finds(tmp_path: Path) -> None:
    files = [DiscoveryFile(str(tmp_path)) for _ in range(2)]
    paths = {file.write(TARGET, {}) for file in files}
    assert len(paths) == 2
    assert set(tmp_path.iterdir()) == paths == set(tmp_path.glob(files[0].pattern.name))


def test_the_folder_is_made_when_it_is_missing(tmp_path: Path) -> None:
    assert DiscoveryFile(str(tmp_path / "a/b")).write(TARGET, {}).parent == tmp_path / "a/b"


def test_another_user_such_as_prometheus_may_read_it(tmp_path: Path) -> None:
    path = DiscoveryFile(str(tmp_path)).write(TARGET, {})
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_remove_takes_it_away_and_does_nothing_the_second_time(tmp_path: Path) -> None:
    file = DiscoveryFile(str(tmp_path))
    file.write(TARGET, {})
    file.remove()
    file.remove()
    assert list(tmp_path.iterdir()) == []


def test_it_can_be_written_again_once_it_was_removed(tmp_path: Path) -> None:
    file = DiscoveryFile(str(tmp_path))
    file.write(TARGET, {})
    file.remove()
    path = file.write(TARGET, {})
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_somebody_has_removed_already_is_no_error(tmp_path: Path) -> None:
    file = DiscoveryFile(str(tmp_path))
    file.write(TARGET, {}).unlink()
    file.remove()


def test_files_of_processes_that_died_are_removed_by_the_next_start(tmp_path: Path) -> None:
    stale = leftover(tmp_path)
    DiscoveryFile(str(tmp_path)).write(TARGET, {})
    assert not stale.exists()


def test_files_of_living_processes_and_of_others_stay(tmp_path: Path) -> None:
    living = DiscoveryFile(str(tmp_path))
    kept = [living.write(TARGET, {}), leftover(tmp_path, "node.json")]
    DiscoveryFile(str(tmp_path)).write(TARGET, {})
    assert all(path.exists() for path in kept)


def test_a_file_let_go_stays_until_the_next_start(tmp_path: Path) -> None:
    file = DiscoveryFile(str(tmp_path))
    path = file.write(TARGET, {})
    file.let_go()
    file.remove()
    assert path.exists()
    DiscoveryFile(str(tmp_path)).write(TARGET, {})
    assert not path.exists()


def test_on_a_file_system_without_locks_nobody_is_taken_for_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: Any) -> None:
        raise OSError(errno.ENOTSUP, "no locks")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    files = [DiscoveryFile(str(tmp_path)) for _ in range(2)]
    paths = [file.write(TARGET, {}) for file in files]
    assert all(path.exists() for path in paths)


def test_what_cannot_be_written_whole_is_not_there_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(json, "dump", full)
    with pytest.raises(OSError, match="no space"):
        DiscoveryFile(str(tmp_path)).write(TARGET, {})
    assert list(tmp_path.iterdir()) == []


def test_the_default_folder_is_among_the_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = DiscoveryFile(None).write(TARGET, {})
    assert path.parent == default_folder() == tmp_path / "moriio_observed"


def test_a_default_folder_of_somebody_else_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "moriio_observed").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(PermissionError, match="somebody else"):
        DiscoveryFile(None).write(TARGET, {})


# --- the address -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("127.0.0.1", "127.0.0.1:9400"),
        ("::1", "[::1]:9400"),
        ("fe80::1%eth0", "[fe80::1%eth0]:9400"),
    ],
)
def test_an_address_is_shown_as_it_is_scraped(address: str, shown: str) -> None:
    assert target(address, 9400) == shown


@pytest.mark.parametrize(
    ("address", "known", "shown"),
    [
        ("0.0.0.0", {socket.AF_INET: "10.0.0.7"}, "10.0.0.7:9400"),  # noqa: S104
        ("0.0.0.0", {}, "127.0.0.1:9400"),  # noqa: S104
        ("::", {socket.AF_INET: "10.0.0.7", socket.AF_INET6: "fd00::7"}, "[fd00::7]:9400"),
        ("::", {socket.AF_INET: "10.0.0.7"}, "10.0.0.7:9400"),
        ("::", {}, "[::1]:9400"),
    ],
)
def test_all_addresses_of_a_host_are_shown_as_the_one_by_which_it_reaches_others(
    address: str,
    known: dict[socket.AddressFamily, str],
    shown: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(discovery, "_own_address", known.get)
    assert target(address, 9400) == shown
