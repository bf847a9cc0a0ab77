import contextlib
import itertools
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from moriio_observed.demo import ports
from moriio_observed.demo.ports import HOST, LOWEST, RANKS, free_ports

ROOM = 3
"""For so many servers there are ports."""


@pytest.fixture(autouse=True)
def little_room(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setattr(ports, "HIGHEST", LOWEST + ROOM * RANKS)
    monkeypatch.setattr(ports, "_kept", lambda: tmp_path / "kept")


@pytest.fixture
def free() -> Iterator[Callable[[], Iterator[int]]]:
    """Get iterators that are closed when the test ends."""
    with contextlib.ExitStack() as ends:
        yield lambda: ends.enter_context(contextlib.closing(free_ports()))


def test_ports_leave_room_for_the_further_ranks_of_a_server(free):
    assert sorted(free()) == [LOWEST, LOWEST + RANKS, LOWEST + 2 * RANKS]


def test_a_port_on_which_somebody_listens_is_not_free(free):
    with socket.socket() as server:
        server.bind((HOST, LOWEST + RANKS + 1))
        assert sorted(free()) == [LOWEST, LOWEST + 2 * RANKS]


def test_who_asks_meanwhile_gets_others(free):
    mine, theirs = free(), free()
    kept = [next(mine), next(theirs), next(mine)]
    assert len(set(kept)) == ROOM
    assert list(free()) == []


def test_ports_are_given_back_when_an_iterator_is_closed(free):
    mine = free_ports()
    kept = list(itertools.islice(mine, ROOM))
    mine.close()
    assert sorted(free()) == sorted(kept)


def test_another_process_keeps_its_ports_until_it_ends(free, tmp_path):
    script = (
        "import sys; from pathlib import Path; from moriio_observed.demo import ports\n"
        f"ports.HIGHEST = {ports.HIGHEST}; ports._kept = lambda: Path({str(tmp_path / 'kept')!r})\n"
        "free = ports.free_ports(); print(next(free), flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        theirs = int(other.stdout.readline())
        assert theirs not in list(free_ports())
        other.communicate()
    assert theirs in list(free())
