import contextlib
import itertools
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from moriio_observed.demo import ports
from moriio_observed.demo.errors import DemoError
from moriio_observed.demo.ports import HOST, RANKS, free_ports

LOWEST = ports.HIGHEST + RANKS
"""From here on nobody else looks for ports."""
ROOM = 3
"""For so many servers there are ports."""
HIGHEST = LOWEST + ROOM * RANKS
FIRSTS = [LOWEST, LOWEST + RANKS, LOWEST + 2 * RANKS]


@pytest.fixture(autouse=True)
def little_room(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setattr(ports, "LOWEST", LOWEST)
    monkeypatch.setattr(ports, "HIGHEST", HIGHEST)
    monkeypatch.setattr(ports, "_path", lambda: tmp_path / "kept")


@pytest.fixture
def free() -> Iterator[Callable[[], Iterator[int]]]:
    """Get iterators that are closed when the test ends."""
    with contextlib.ExitStack() as ends:
        yield lambda: ends.enter_context(contextlib.closing(free_ports()))


def test_ports_leave_room_for_the_further_ranks_of_a_server(free):
    assert sorted(itertools.islice(free(), ROOM)) == FIRSTS


def test_a_port_on_which_somebody_listens_is_not_free(free):
    with socket.socket() as server:
        server.bind((HOST, LOWEST + RANKS + 1))
        assert sorted(itertools.islice(free(), 2)) == [FIRSTS[0], FIRSTS[2]]


def test_when_there_are_no_more_that_is_said(free):
    mine = free()
    list(itertools.islice(mine, ROOM))
    with pytest.raises(DemoError, match=f"between {LOWEST} and {HIGHEST}"):
        next(mine)


def test_who_asks_meanwhile_gets_others(free):
    mine, theirs = free(), free()
    assert sorted([next(mine), next(theirs), next(mine)]) == FIRSTS
    with pytest.raises(DemoError):
        next(free())


def test_ports_are_given_back_when_an_iterator_is_closed(free):
    mine = free_ports()
    list(itertools.islice(mine, ROOM))
    mine.close()
    assert sorted(itertools.islice(free(), ROOM)) == FIRSTS


def test_another_process_keeps_its_ports_until_it_ends(free, tmp_path):
    script = (
        "import sys; from pathlib import Path; from moriio_observed.demo import ports\n"
        f"ports.LOWEST, ports.HIGHEST = {LOWEST}, {HIGHEST}\n"
        f"ports._path = lambda: Path({str(tmp_path / 'kept')!r})\n"
        "free = ports.free_ports(); print(next(free), flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        theirs = int(other.stdout.readline())
        assert theirs not in itertools.islice(free(), ROOM - 1)
        other.communicate()
    with contextlib.closing(free_ports()) as again:
        assert next(again) == theirs


@pytest.mark.parametrize("what", ["a folder", "a link"])
def test_what_is_in_the_way_of_the_locks_is_named(tmp_path, what):
    if what == "a folder":
        (tmp_path / "kept").mkdir()
    else:
        (tmp_path / "kept").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DemoError, match=str(tmp_path / "kept")):
        next(free_ports())
    assert not (tmp_path / "elsewhere").exists()
