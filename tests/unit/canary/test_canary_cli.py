"""`moriio-observed canary`, as a user calls it."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from moriio_observed.canary.golden import read, write
from moriio_observed.canary.metrics import CATALOG, PREFIX, Mode
from moriio_observed.canary.targets import ID_PREFIX
from moriio_observed.cli import main
from moriio_observed.demo.ports import free_ports
from moriio_observed.demo.web import get
from tests.monitoring import eventually
from tests.unit.canary.known import golden
from tests.unit.canary.model_server import MODEL, ModelServer, Stale, right, salad, serving

PROGRAM = "import sys; from moriio_observed.cli import main; sys.exit(main())"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write(golden(), tmp_path / "golden.json")
    return tmp_path / "golden.json"


def record(server: ModelServer, path: Path, *more: str) -> int:
    sizes = ("--concurrency", "1,4", "--prompts", "8", "--prompt-words", "40")
    where = ("--url", server.url, "--model", MODEL, "--golden", str(path))
    return main(["canary", "record", *where, *sizes, "--repeats", "1", *more])


def once(server: ModelServer, path: Path, *more: str) -> int:
    return main(["canary", "run", "--once", "--url", server.url, "--golden", str(path), *more])


def test_what_was_recorded_is_right_when_it_is_run(
    server: ModelServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "golden.json"
    assert record(server, path) == 0
    assert len(read(path).known) == 8
    assert once(server, path) == 0
    assert "right: 5 match of 5 probes" in capsys.readouterr().out


def test_wrong_answers_exit_with_1_and_name_their_requests(
    server: ModelServer, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.answer = salad
    assert once(server, path) == 1
    out = capsys.readouterr().out
    assert "WRONG ANSWERS: 13 diverged of 13 probes" in out
    assert server.ids[0].removeprefix(ID_PREFIX) in out
    assert "and 8 more" in out


def test_the_previous_prompts_answer_exits_with_1(
    server: ModelServer, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.answer = Stale()
    assert once(server, path) == 1
    assert "swapped" in capsys.readouterr().out


def test_a_report_for_machines(
    server: ModelServer, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.answer = salad
    assert once(server, path, "--json", "--concurrency", "2") == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["result"], report["exit_status"]) == ("wrong", 1)
    [first, _] = report["probes"]
    assert first["result"] == "diverged"
    assert (first["concurrency"], first["divergence"]) == (2, 0)
    assert ID_PREFIX + first["probe_id"] in server.ids
    assert first["text"]


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [
        ({"status": 500}, "13 times: .* answers HTTP 500"),
        ({"status": 429}, "no verdict: the server is busy"),
        ({"waiting": 9}, "13 times: not sent: the server is busy"),
        ({"page": "<html>"}, "answers no JSON object"),
    ],
)
def test_no_verdict_exits_with_2_and_says_why(
    path: Path, capsys: pytest.CaptureFixture[str], behaviour: dict[str, Any], said: str
) -> None:
    with serving(**behaviour) as server:
        assert once(server, path, "--engine", server.url) == 2
    assert re.search(said, capsys.readouterr().out)


def test_a_server_that_is_not_there_exits_with_2(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving() as gone:
        pass
    assert once(gone, path) == 2
    assert f"13 times: {gone.url} does not answer" in capsys.readouterr().out


def test_a_model_that_is_not_served_exits_with_2(
    server: ModelServer, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert once(server, path, "--model", "other") == 2
    assert "does not serve the model 'other'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--golden", "none.json"], "there are no golden answers at none.json"),
        (["--url", "router"], "--url = 'router': must be an address"),
        (["--decode", "http://d.example"], "give either --url, or both --prefill and --decode"),
        (["--concurrency", "17"], "17 different prompts at once"),
    ],
)
def test_bad_input_is_one_clear_error(
    server: ModelServer,
    path: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    said: str,
) -> None:
    assert once(server, path, *options) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("moriio-observed canary: ")
    assert said in line


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--concurrency", "0"),
        ("--concurrency", "1,x"),
        ("--concurrency", "257"),
        ("--interval", "nan"),
        ("--interval", "1e300"),
        ("--timeout", "0"),
        ("--model", "\udcff"),
        ("--target", "\udcff"),
    ],
)
def test_a_value_that_is_none_is_named(
    server: ModelServer,
    path: Path,
    capsys: pytest.CaptureFixture[str],
    option: str,
    value: str,
) -> None:
    with pytest.raises(SystemExit) as ended:
        once(server, path, option, value)
    assert ended.value.code == 2
    assert option in capsys.readouterr().err


def test_recording_needs_a_model(
    server: ModelServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "golden.json")
    assert main(["canary", "record", "--url", server.url, "--golden", out]) == 2
    assert "--model is missing" in capsys.readouterr().err


def test_where_nothing_can_be_written_nobody_is_asked(
    server: ModelServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert record(server, tmp_path) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert server.asked == []


def test_recording_needs_prompts_for_neighbours_that_differ(
    server: ModelServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert record(server, tmp_path / "golden.json", "--prompts", "7") == 2
    assert (
        "--prompts = 7: must be 8 at least, twice the highest --concurrency"
        in capsys.readouterr().err
    )


def test_prompts_can_be_made_of_other_words(server: ModelServer, tmp_path: Path) -> None:
    words = tmp_path / "words"
    words.write_text(" ".join(f"w{n}" for n in range(100)))
    assert record(server, tmp_path / "golden.json", "--words", str(words)) == 0
    sent = {word for body in server.asked for word in body["prompt"].split()}
    assert sent <= set(words.read_text().split())


def test_a_recording_can_be_for_signs_of_degeneration(server: ModelServer, tmp_path: Path) -> None:
    assert record(server, tmp_path / "golden.json", "--mode", "degeneration") == 0
    assert read(tmp_path / "golden.json").mode is Mode.DEGENERATION


@contextmanager
def going_on(server: ModelServer, path: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    """A canary that sends round after round and says them as JSON; ended by SIGTERM."""
    options = ["--url", server.url, "--golden", str(path), "--interval", "0.1", *more]
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "canary", "run", "--json", *options],
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        try:
            yield running
        finally:
            running.send_signal(signal.SIGTERM)


def rounds(running: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    assert running.stdout is not None
    return map(json.loads, running.stdout)


def test_answers_recorded_anew_bring_their_concurrencies(server: ModelServer, path: Path) -> None:
    """At others nobody has seen these answers to be the same each time."""
    with going_on(server, path, "--port", "0") as running:
        told = rounds(running)
        assert len(next(told)["probes"]) == sum(golden().concurrencies)
        write(golden(concurrencies=(2,)), path)
        assert next(one for one in told if len(one["probes"]) == 2)["result"] == "right"


def test_without_once_it_goes_on_and_serves_its_metrics(server: ModelServer, path: Path) -> None:
    port = next(free_ports())
    with going_on(server, path, "--port", str(port)) as running:
        results = [one["result"] for one in itertools.islice(rounds(running), 2)]
        page = eventually(lambda: get(f"http://127.0.0.1:{port}/metrics"), "metrics")
    assert running.wait(timeout=30) == 143
    assert results == ["right", "right"]
    for name in CATALOG:
        assert f"{PREFIX}{name}" in page
    assert f'{PREFIX}info{{mode="exact",model_name="{MODEL}"' in page


def test_a_report_that_nobody_reads_is_no_verdict(server: ModelServer, path: Path) -> None:
    """Status 1 would say that answers are wrong."""
    heard, said = os.pipe()
    os.close(heard)
    options = ["--once", "--url", server.url, "--golden", str(path)]
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, "canary", "run", *options],
        stdout=said,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(said)
    assert ended.returncode == 2
    assert "Broken pipe" in ended.stderr


def test_a_library_that_is_missing_is_no_verdict(
    server: ModelServer,
    path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "moriio_observed.canary.http")
    monkeypatch.setitem(sys.modules, "httpx", None)
    assert once(server, path) == 2
    assert "comes with the extra canary" in capsys.readouterr().err


def test_answers_that_vary_are_not_held_exactly_when_it_is_run(
    server: ModelServer, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(golden(mode=Mode.DEGENERATION), path)
    assert once(server, path, "--mode", "exact") == 2
    assert "recorded with --mode degeneration, and --mode exact" in capsys.readouterr().err


def test_what_a_server_says_is_told_on_a_terminal_that_is_not_utf_8(
    server: ModelServer, path: Path
) -> None:
    server.page = "日本"
    options = ["--once", "--url", server.url, "--golden", str(path)]
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, "canary", "run", *options],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert r"answers no JSON object: '\u65e5\u672c'" in ended.stdout


@pytest.mark.parametrize(("sent", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_it_ends_while_a_server_takes_its_time(
    server: ModelServer, path: Path, sent: signal.Signals, status: int
) -> None:
    asked, later = threading.Event(), threading.Event()

    def answer(prompt: str) -> list[int]:
        asked.set()
        later.wait(60)
        return right(prompt)

    server.answer = answer
    options = ["--once", "--url", server.url, "--golden", str(path)]
    running = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "canary", "run", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert asked.wait(60)
        running.send_signal(sent)
        _, said = running.communicate(timeout=30)
    finally:
        later.set()
        running.kill()
    assert running.returncode == status
    assert "Traceback" not in said


def test_a_key_that_cannot_be_sent_is_one_clear_error(
    server: ModelServer,
    path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MORIIO_CANARY_API_KEY", "a\nb")
    assert once(server, path) == 2
    assert "the API key must be printable ASCII" in capsys.readouterr().err


def test_a_port_that_is_taken_is_one_clear_error(
    server: ModelServer, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = server.url.rpartition(":")[2]
    options = ["--url", server.url, "--golden", str(path), "--port", taken]
    assert main(["canary", "run", *options]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert f"cannot listen on --host 127.0.0.1 --port {taken}" in line
