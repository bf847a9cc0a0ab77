"""`moriio-observed accept` against servers that are there, answer wrong, go away, or are none."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from moriio_observed.accept import gather
from moriio_observed.canary.prompts import WORDS
from moriio_observed.cli import main
from tests.unit.accept.engines import INFO, PREFILL, STAND_IN, healthy, one, page, text_of
from tests.unit.canary.model_server import ModelServer, right, salad, serving

PROBES = 3 * (1 + 4)
KEY = "sesame-open"


def decoding(info: Mapping[str, str] | None = INFO) -> Callable[[int], str]:
    """The page of a decode engine that reads for all that it is sent."""
    return lambda asked: text_of(page(healthy(asked), info=info))


def prefilling(asked: int) -> str:
    """The page of a prefill engine that hears of all."""
    released = {one("releases_total"): float(asked), one("defer_timeout_seconds"): 60.0}
    return text_of(page(released, info=PREFILL))


@dataclass
class Fleet:
    """A prefill and a decode engine."""

    prefill: ModelServer
    decode: ModelServer

    def run(self, *more: str) -> int:
        """Accept them, quickly."""
        pair = [f"--prefill={self.prefill.url}", f"--decode={self.decode.url}"]
        return main(["accept", "--quick", "--concurrency=1,4", *pair, *more])

    def report(self, path: Path, *more: str) -> tuple[int, dict[str, Any]]:
        """The same, with a report."""
        status = self.run(f"--report={path}", *more)
        return status, json.loads(path.read_text())


@contextmanager
def fleet(info: Mapping[str, str] | None = INFO, **decode: Any) -> Iterator[Fleet]:
    with serving(metrics=prefilling) as prefill, serving(metrics=decoding(info), **decode) as other:
        yield Fleet(prefill, other)


@pytest.fixture
def engines() -> Iterator[Fleet]:
    with fleet() as engines:
        yield engines


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "POLL_S", 0.0)
    # Servers of tests are on this machine.
    monkeypatch.setenv("no_proxy", "*")


def claims(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {claim["name"]: claim for claim in report["claims"]}


def names(report: dict[str, Any], verdict: str) -> set[str]:
    return {name for name, claim in claims(report).items() if claim["verdict"] == verdict}


def test_a_healthy_pair_is_proven_and_what_was_not_tried_is_left_open(
    engines: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, report = engines.report(tmp_path / "accept.json", "--hardware", "MI300X, CX7")
    assert (status, report["exit_status"], report["complete"]) == (0, 0, True)
    assert names(report, "refuted") == set()
    assert names(report, "not proven here") == {
        *("certain", "failures", "nodes", "throughput", "prometheus")
    }
    assert (report["model"], report["hardware"]) == ("m", "MI300X, CX7")
    assert report["load"]["probes"] == PROBES
    numbers = {number["name"]: number for number in claims(report)["reads"]["evidence"]}
    requests = numbers["moriio_requests_total"]
    assert requests["value"] - requests["before"] >= PROBES
    out, err = capsys.readouterr()
    # Before it begins it says what it will do.
    assert err.startswith("20 requests to the engine that answers alone, then 15 probes\n")
    assert "nothing more is sent after 5 minutes" in err
    assert out.index("NOT PROVEN HERE  certain") < out.index("PROVEN  visible")
    assert "0 refuted, 5 not proven here, 11 proven" in out
    assert "accept.md" in err


def test_wrong_answers_that_no_counter_tells_of_are_refuted_first_of_all(
    engines: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engines.decode.answer = salad
    status, report = engines.report(tmp_path / "accept.json")
    assert (status, report["exit_status"]) == (1, 1)
    first, second, *_ = report["claims"]
    assert (first["name"], second["name"]) == ("visible", "answers")
    assert {first["verdict"], second["verdict"]} == {"refuted"}
    wrong = second["reason"].rpartition("request ")[2]
    assert any(wrong in request_id for request_id in engines.decode.ids)
    assert capsys.readouterr().out.startswith("REFUTED  visible")


def test_over_the_loopback_nothing_is_said_of_hardware(tmp_path: Path) -> None:
    with fleet(STAND_IN, answer=salad) as engines:
        status, report = engines.report(tmp_path / "accept.json")
    needing = {name for name, claim in claims(report).items() if claim["needs_hardware"]}
    assert needing <= names(report, "not proven here")
    assert status == 1
    assert names(report, "refuted") == {"answers"}


def test_an_engine_without_our_connector_is_refuted(tmp_path: Path) -> None:
    with fleet(None) as engines:
        status, report = engines.report(tmp_path / "accept.json", "--model=m")
    assert status == 1
    assert names(report, "refuted") == {"observed"}


def test_json_is_the_report_alone(engines: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    assert engines.run("--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["format"], report["version"]) == ("moriio-observed acceptance report", 1)


def test_behind_a_router_engines_are_told_by_their_role(tmp_path: Path) -> None:
    with fleet() as engines, serving() as router:
        path = tmp_path / "accept.json"
        engines.decode.metrics = lambda _: text_of(page(healthy(len(router.asked))))
        urls = [f"--engine={one.url}" for one in (engines.prefill, *[engines.decode] * 2)]
        where = [f"--url={router.url}", *urls, f"--report={path}"]
        status = main(["accept", "--quick", "--concurrency=1,4", *where])
    report = json.loads(path.read_text())
    assert status == 0
    assert {"answers", "reads", "visible"} <= names(report, "proven")
    assert "behind a router" in claims(report)["nodes"]["reason"]
    # Known answers are those of the prefill engine.
    assert len(engines.prefill.asked) >= 20


def test_bare_moriio_is_compared_in_turns(
    engines: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving() as bare:
        where = f"--bare-decode={bare.url}"
        _, report = engines.report(tmp_path / "accept.json", where)
    evidence = {one["name"]: one["value"] for one in claims(report)["throughput"]["evidence"]}
    assert evidence["pairs of runs"] == 10
    assert evidence["ratio, 95 % interval from"] < evidence["ratio, 95 % interval to"]
    assert len(bare.asked) == 160
    assert {body["max_tokens"] for body in bare.asked} == {128}
    assert "then 10 times 16 requests at once to each" in capsys.readouterr().err


def test_an_engine_with_our_connector_is_no_bare_one(
    engines: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(metrics=decoding()) as other:
        assert engines.run(f"--bare-decode={other.url}") == 2
    assert "--bare-decode: runs our connector as well" in capsys.readouterr().err
    assert engines.prefill.asked == other.asked == []


class TestWhatLeavesTheHouse:
    def written(self, engines: Fleet, folder: Path, *more: str) -> str:
        path = folder / "accept.json"
        engines.report(path, *more)
        return path.read_text() + path.with_suffix(".md").read_text()

    def test_no_address_no_prompt_and_no_key(
        self, engines: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("MORIIO_CANARY_API_KEY", KEY)
        engines.decode.answer = salad
        text = self.written(engines, tmp_path)
        assert engines.decode.headers["Authorization"] == f"Bearer {KEY}"
        prompts = {body["prompt"] for body in engines.decode.asked}
        for secret in ("127.0.0.1", KEY, *prompts):
            assert secret not in text
        # No list of words either, however it is cut.
        assert not [pair for pair in itertools.pairwise(WORDS) if " ".join(pair) in text]

    def test_nor_what_a_server_says_of_a_request(self, engines: Fleet, tmp_path: Path) -> None:
        engines.decode.status, engines.decode.patience = 500, 5
        text = self.written(engines, tmp_path)
        assert "<decode>/v1/completions answers HTTP 500" in text
        assert "HTTP 500" in text
        assert "not now" not in text

    def test_addresses_where_they_are_wanted(self, engines: Fleet, tmp_path: Path) -> None:
        engines.decode.status, engines.decode.patience = 500, 5
        assert engines.decode.url in self.written(engines, tmp_path, "--with-hosts")

    def test_a_model_by_its_name_not_its_place(self, tmp_path: Path) -> None:
        with fleet() as engines:
            place = "--model=/home-of/somebody/llama"
            path = tmp_path / "accept.json"
            assert engines.run(f"--report={path}", place) == 2
            text = path.read_text() + path.with_suffix(".md").read_text()
        assert json.loads(path.read_text())["model"] == "llama"
        # Not where the server says that it has no such model, either.
        assert "does not serve the model" in text
        assert "home-of" not in text


class TestWhatEndsEarly:
    def test_a_decode_engine_that_dies_leaves_a_report_that_says_so(
        self, engines: Fleet, tmp_path: Path
    ) -> None:
        engines.decode.status, engines.decode.patience = 500, 7
        status, report = engines.report(tmp_path / "accept.json")
        assert (status, report["exit_status"], report["complete"]) == (2, 2, False)
        assert "round 3 of 3: <decode>/v1/completions answers HTTP 500" in report["ended"]
        assert report["load"]["answered"] == 7
        assert names(report, "refuted") == set()
        assert "HTTP 500" in claims(report)["answers"]["reason"]
        assert "**not complete**" in (tmp_path / "accept.md").read_text()

    def test_without_known_answers_no_probe_is_sent(self, engines: Fleet, tmp_path: Path) -> None:
        engines.prefill.status = 500
        status, report = engines.report(tmp_path / "accept.json")
        assert (status, report["load"]["probes"]) == (2, 0)
        assert "nothing was recorded" in report["ended"]
        assert engines.decode.asked == []
        # What needs no probe is said all the same.
        assert claims(report)["observed"]["verdict"] == "proven"

    def test_an_interrupt_leaves_what_is_known_so_far(
        self, engines: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def interrupted(prompt: str) -> list[int]:
            if len(engines.decode.asked) == 8:
                os.kill(os.getpid(), signal.SIGINT)
            return right(prompt)

        engines.decode.answer = interrupted
        status, report = engines.report(tmp_path / "accept.json")
        assert status == 130
        assert (report["complete"], report["ended"]) == (False, "interrupted")
        assert report["load"]["answered"] >= 5
        assert "what is known so far" in capsys.readouterr().err

    def test_when_the_time_is_up_nothing_more_is_sent(self, engines: Fleet, tmp_path: Path) -> None:
        status, report = engines.report(tmp_path / "accept.json", "--minutes=0.0000001")
        assert status == 2
        assert "the time is up" in report["ended"]
        assert engines.prefill.asked == engines.decode.asked == []

    def test_a_busy_engine_is_spared(self, engines: Fleet, tmp_path: Path) -> None:
        engines.decode.waiting = 9
        status, report = engines.report(tmp_path / "accept.json")
        assert status == 2
        assert "the server is busy" in report["ended"]
        assert engines.prefill.asked == engines.decode.asked == []

    def test_a_bare_engine_that_is_busy_is_spared(self, engines: Fleet, tmp_path: Path) -> None:
        with serving(waiting=9) as bare:
            where = f"--bare-decode={bare.url}"
            status, report = engines.report(tmp_path / "accept.json", where)
        assert (status, bare.asked) == (2, [])
        assert "the server is busy" in report["ended"]

    def test_the_second_of_two_runs_is_not_sent_to_engines_that_are_busy_by_then(
        self, engines: Fleet, tmp_path: Path
    ) -> None:
        def crowding(prompt: str) -> list[int]:
            engines.decode.waiting = 9
            return right(prompt)

        with serving(answer=crowding) as bare:
            where = f"--bare-decode={bare.url}"
            status, report = engines.report(tmp_path / "accept.json", where)
        assert (status, len(bare.asked)) == (2, 16)
        assert 128 not in {body["max_tokens"] for body in engines.decode.asked}
        assert "the server is busy" in report["ended"]

    def test_a_report_that_cannot_be_written_any_more_takes_no_verdict_along(
        self, engines: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        folder = tmp_path / "full"
        folder.mkdir()

        def vanishing(prompt: str) -> list[int]:
            shutil.rmtree(folder, ignore_errors=True)
            return right(prompt)

        engines.decode.answer = vanishing
        assert engines.run(f"--report={folder / 'accept.json'}") == 2
        out, err = capsys.readouterr()
        assert "PROVEN  visible" in out
        assert "cannot be written" in err.splitlines()[-1]


class TestNumbersThatComeLate:
    """They travel with an engine's steps."""

    def lagging(self, until: int) -> Callable[[int], str]:
        def told(asked: int) -> str:
            counted = healthy(asked)
            if 0 < asked < until:
                counted[one("reads_landed_total")] -= 1
            return text_of(page(counted))

        return told

    def test_a_few_more_requests_bring_them(self, engines: Fleet, tmp_path: Path) -> None:
        engines.decode.metrics = self.lagging(PROBES + 2)
        status, report = engines.report(tmp_path / "accept.json")
        assert (status, report["load"]["answered"]) == (0, PROBES + 2)
        assert claims(report)["reads"]["verdict"] == "proven"

    def test_what_never_comes_is_lost(self, engines: Fleet, tmp_path: Path) -> None:
        engines.decode.metrics = self.lagging(1000)
        status, report = engines.report(tmp_path / "accept.json")
        assert (status, report["load"]["answered"]) == (1, PROBES + gather.MOST_FLUSHES)
        assert "counted twice or not at all" in claims(report)["reads"]["reason"]

    def test_when_it_ends_before_nothing_is_held_against_it(
        self, engines: Fleet, tmp_path: Path
    ) -> None:
        engines.decode.metrics = self.lagging(1000)
        engines.decode.status, engines.decode.patience = 500, PROBES
        status, report = engines.report(tmp_path / "accept.json")
        assert (status, names(report, "refuted")) == (2, set())
        assert "were not waited for" in claims(report)["reads"]["reason"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give either --url, or both --prefill and --decode"),
        (["--prefill={0}"], "give either --url, or both --prefill and --decode"),
        (["--prefill=p", "--decode={1}"], "--prefill = 'p': must be an address"),
        (["--url={0}"], "--engine is missing"),
        (["--url={0}", "--engine={0}"], "none of them is a decode engine"),
        (["--url={0}", "--engine={1}"], "nobody answers alone"),
        (["--url={0}", "--engine={1}", "--bare-decode={1}"], "needs --prefill and --decode"),
        (["--prefill={0}", "--decode={1}", "--bare-decode={1}"], "is the same engine as --decode"),
        (["--prefill={0}", "--decode={1}", "--bare-decode={0}"], "is the same engine as --prefill"),
        (["--prefill={0}", "--decode={1}", "--bare-decode=http://127.0.0.1:9"], "does not answer"),
        (["--prefill={0}", "--decode={1}", "--bare-decode-address=x"], "needs --bare-decode"),
        (["--prefill={0}", "--decode={1}", "--decode-address=x"], "must be host:HOST"),
        (["--prefill={0}", "--decode={1}", "--engine={1}"], "--engine belongs to --url"),
        (["--prefill={0}", "--decode={1}", "--prometheus=x"], "--prometheus = 'x'"),
        (["--prefill={0}", "--decode={1}", "--report=r.md"], "must be a file for JSON"),
        (["--prefill={0}", "--decode={1}", "--report="], "must be a file for JSON"),
        (["--prefill={0}", "--decode={1}", "--report=/"], "must be a file for JSON"),
        (["--prefill={1}", "--decode={0}"], "--prefill: is a decode engine"),
        (["--prefill={0}", "--decode={1}", "--reference={1}"], "--reference: is a decode engine"),
        (["--prefill={0}", "--decode={1}", "--report=none/r.json"], "cannot be written"),
        (["--prefill={0}", "--decode={1}", "--words=none"], "--words 'none' cannot be read"),
        (["--prefill={0}", "--decode=http://127.0.0.1:9"], "does not answer"),
    ],
)
def test_bad_input_is_one_clear_error_and_nothing_is_sent(
    engines: Fleet,
    words: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    given = [word.format(engines.prefill.url, engines.decode.url) for word in words]
    assert main(["accept", *given]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("moriio-observed accept: ")
    assert said in line
    assert engines.prefill.asked == engines.decode.asked == []


def test_where_the_markdown_cannot_stand_nothing_is_sent_or_left_half_written(
    engines: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "accept.md").mkdir()
    assert engines.run(f"--report={tmp_path / 'accept.json'}") == 2
    assert "accept.md' cannot be written" in capsys.readouterr().err.splitlines()[-1]
    assert engines.prefill.asked == []
    assert {path.name for path in tmp_path.iterdir()} == {"accept.json", "accept.md"}


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--minutes=0", "minutes above 0"),
        ("--concurrency=0", "from 1 to 256"),
        ("--mode=x", "choose"),
    ],
)
def test_a_value_that_cannot_be_names_the_option(
    option: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["accept", option])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
