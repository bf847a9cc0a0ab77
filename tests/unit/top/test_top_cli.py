"""The command as people run it: on a terminal, in a pipe, with arguments that cannot be used."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
from pathlib import Path

import pytest

from moriio_observed.cli import main
from tests.unit.top.pages import healthy, info, line, recorded
from tests.unit.top.servers import Engine, serving
from tests.unit.top.terminals import COMMAND, CONTROL, ENTER, HIDE, LEAVE, SHOW, Terminal, terminal

SOON = ("--interval", "0.2")


def piped(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "utf-8", **env},
    )


def left_as_it_was(its: Terminal) -> None:
    assert its.modes == its.before
    assert its.output.count(ENTER) == its.output.count(LEAVE) > 0
    assert its.output.rindex(ENTER) < its.output.rindex(LEAVE)
    assert its.output.rindex(HIDE) < its.output.rindex(SHOW)


# On a terminal


@pytest.mark.parametrize(
    ("key", "status"),
    [(b"q", 0), (b"\x03", 0)],
    ids=["q", "Ctrl-C"],
)
def test_a_key_ends_it_and_the_terminal_is_as_it_was(key: bytes, status: int) -> None:
    with serving(healthy) as engine, terminal(engine.url, *SOON) as its:
        its.see(engine.name)
        assert its.modes != its.before
        its.type(key)
        assert its.end() == status
        left_as_it_was(its)
        assert "Traceback" not in its.output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_and_the_terminal_is_as_it_was(number: signal.Signals) -> None:
    with serving(healthy) as engine, terminal(engine.url, *SOON) as its:
        its.see(engine.name)
        its.process.send_signal(number)
        assert its.end() == 128 + number
        left_as_it_was(its)


def test_pictures_follow_each_other_and_fit_the_terminal() -> None:
    with serving(lambda n: recorded("decode", n - 4)) as engine, terminal(engine.url, *SOON) as its:
        its.see("since the start")
        its.see("EXPOSED/s", since=len(its.output))
        its.type(b"q")
        its.end()
    for frame in its.frames():
        assert len(frame) <= 24
        assert max(map(len, frame)) <= 80


def test_a_terminal_that_changes_its_size_gets_a_picture_of_it() -> None:
    name = "decode" * 6
    with (
        serving(healthy() + info(engine=name)) as engine,
        terminal(engine.url, "--interval", "600", size=(24, 80)) as its,
    ):
        its.see("EXPOSED/s")
        before = len(its.output)
        its.resize(24, 160)
        its.see(name, since=before)


def test_a_server_that_is_started_again_is_followed_there_and_back() -> None:
    engine = Engine(lambda n: healthy(50 + n))
    with terminal(engine.url, *SOON) as its:
        its.see("1 ok")
        engine.stop()
        its.see("1 silent")
        its.see("does not answer")
        again = Engine(healthy, engine.port)
        its.see("restarted")
        its.type(b"q")
        assert its.end() == 0
        again.stop()


def test_ctrl_z_gives_the_terminal_back_and_fg_takes_it_again() -> None:
    with serving(healthy) as engine:
        script = f"set -m; {shlex.join([*COMMAND, engine.url, *SOON])}; echo stopped $?; read; fg"
        with terminal(command=["bash", "-c", script]) as its:
            its.see(engine.name)
            its.type(b"\x1a")
            its.see("stopped 148")
            left_as_it_was(its)
            since = len(its.output)
            its.type(b"\n")
            its.see("EXPOSED/s", since=since)
            its.type(b"q")
            assert its.end() == 0
            left_as_it_was(its)


def test_ctrl_z_without_a_shell_does_not_hang_it() -> None:
    with serving(healthy) as engine, terminal(engine.url, *SOON) as its:
        its.see(engine.name)
        its.type(b"\x1a")
        its.see(LEAVE)
        its.see(engine.name, since=its.output.rindex(LEAVE))
        its.type(b"q")
        assert its.end() == 0
        left_as_it_was(its)


def test_without_colours_there_are_none_and_the_signs_still_tell() -> None:
    with serving(lambda n: recorded("decode", n - 4)) as engine, terminal(engine.url, *SOON) as its:
        its.see("since the start: requests were answered")
        its.type(b"q")
        its.end()
    assert "\x1b[31m" not in its.output
    assert "\x1b[1;31m" not in its.output


def test_a_terminal_without_unicode_gets_ascii() -> None:
    with (
        serving(recorded("decode", -1)) as engine,
        terminal(engine.url, "--once", *SOON, PYTHONIOENCODING="ascii") as its,
    ):
        assert its.end() == 0
    assert its.output.isascii()
    assert "X 127.0.0.1" in CONTROL.sub("", its.output)


def test_a_dumb_terminal_gets_one_picture() -> None:
    with serving(healthy()) as engine, terminal(engine.url, *SOON, TERM="dumb") as its:
        assert its.end() == 0
    assert "\x1b" not in its.output
    assert engine.name in its.output


# In a pipe


def test_a_pipe_gets_one_plain_picture_with_rates() -> None:
    with serving(lambda n: healthy() + line("requests_total", 5 * n)) as engine:
        for options in ([], ["--once"]):
            done = piped(engine.url, *SOON, *options, FORCE_COLOR="" if options else "1")
            assert done.returncode == 0
            assert engine.name in done.stdout
            assert ENTER not in done.stdout
            assert done.stderr == ""


def test_in_a_pipe_nothing_is_cut() -> None:
    name = "e" * 50
    with serving(info(engine=name) + info(engine="1")) as engine:
        assert f"{engine.name} {name}"[:60] in piped(engine.url, *SOON).stdout


def test_json_is_one_object() -> None:
    with serving(lambda n: healthy() + line("requests_total", 5 * n)) as engine:
        done = piped(engine.url, engine.url, *SOON, "--json")
    [row] = json.loads(done.stdout)["rows"]
    assert row["engine"]["requests"]["gained"] == 5


def test_a_server_that_is_down_or_not_ours_is_a_row_and_exit_status_1() -> None:
    with serving(healthy()) as fine, serving("up 1\n") as foreign:
        assert piped(fine.url, *SOON).returncode == 0
        done = piped(fine.url, foreign.url, "http://127.0.0.1:1", *SOON)
    assert done.returncode == 1
    assert "the server has no moriio_ series" in done.stdout
    assert "does not answer" in done.stdout
    assert done.stderr == ""


def test_a_prometheus_that_is_down_is_a_line() -> None:
    with serving(healthy()) as engine:
        done = piped(engine.url, *SOON, "--prometheus", "http://127.0.0.1:1")
    assert done.returncode == 0
    assert "alerts: http://127.0.0.1:1/api/v1/alerts does not answer" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["decode:8000"], "URL = 'decode:8000': must be an address such as http://"),
        (["http://d:8000", "--prometheus", "x"], "--prometheus = 'x': must be an address"),
        (["http://d", "--interval", "0"], "--interval: '0': must be a number of seconds from 0.2"),
        (["http://d", "--interval", "nan"], "'nan': must be a number of seconds from 0.2 to 3600"),
        (["http://d", "--timeout", "soon"], "--timeout: 'soon': must be a number of seconds"),
        ([], "the following arguments are required: URL"),
    ],
)
def test_an_argument_that_cannot_be_used_is_one_clear_error(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = main(["top", *arguments])
    except SystemExit as end:
        status = int(end.code or 0)
    assert status == 2
    assert told in capsys.readouterr().err


def test_the_document_has_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["top", "--help"])
    options = set(re.findall(r"--[a-z]+", capsys.readouterr().out))
    document = (Path(__file__).parents[3] / "docs/top.md").read_text()
    assert {each for each in options - {"--help"} if f"`{each}" not in document} == set()
