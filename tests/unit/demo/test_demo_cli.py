from pathlib import Path

import pytest

from moriio_observed.cli import main
from moriio_observed.demo import phases
from moriio_observed.demo.client import Answer
from moriio_observed.demo.errors import DemoError


def fail_with(monkeypatch, error):
    def run(options, say):
        raise error

    monkeypatch.setattr(phases, "run", run)


def test_options_reach_the_demo(monkeypatch):
    seen = []
    monkeypatch.setattr(phases, "run", lambda options, say: seen.append(options))
    assert main(["demo", "--keep", "--out", "elsewhere", "--vllm-tree", "trees/0.30.0"]) == 0
    assert seen == [phases.Options(Path("elsewhere"), True, Path("trees/0.30.0"))]


def test_everything_goes_to_build_unless_said_otherwise(monkeypatch):
    seen = []
    monkeypatch.setattr(phases, "run", lambda options, say: seen.append(options))
    main(["demo"])
    assert seen == [phases.Options(Path("build"))]


def test_a_failed_demo_ends_non_zero_with_the_reason_in_the_last_line(monkeypatch, capsys):
    fail_with(monkeypatch, DemoError("decode ended; its log:\n  | ...\ndecode: ValueError: no"))
    assert main(["demo"]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "decode: ValueError: no"


def test_an_interrupted_demo_says_so(monkeypatch, capsys):
    fail_with(monkeypatch, KeyboardInterrupt())
    assert main(["demo"]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "moriio-observed demo: interrupted"


def test_an_unknown_command_is_refused(capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["dem"])
    assert exit_.value.code == 2
    assert "demo" in capsys.readouterr().err


def test_a_request_without_a_kept_pair_says_how_to_get_one(tmp_path, capsys):
    assert main(["demo", "--out", str(tmp_path), "--request"]) == 1
    assert "--keep" in capsys.readouterr().err.splitlines()[-1]


def test_a_request_prints_its_id_and_its_answer(monkeypatch, capsys):
    monkeypatch.setattr(phases, "request", lambda out, prompt: Answer("cmpl-x-0", text=prompt))
    assert main(["demo", "--request", "w1 w2"]) == 0
    assert capsys.readouterr().out == "request id: cmpl-x-0\nanswer: w1 w2\n"


def test_a_failed_request_ends_non_zero(monkeypatch, capsys):
    monkeypatch.setattr(phases, "request", lambda *_: Answer("cmpl-x-0", error="HTTP 500"))
    assert main(["demo", "--request"]) == 1
    assert "HTTP 500" in capsys.readouterr().out
