"""What the recorder makes of what it saw, and what it says of the machine it saw it on."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from moriio_observed.demo.client import Answer as Completion
from tests.incident import quiet
from tests.incident.judged import answers, first_late
from tests.incident.quiet import SCRAPE_LATE, UNANSWERED, Machine, Quiet
from tests.incident.recording import CERTAIN, ERROR, RIGHT, WRONG
from tests.incident.traffic import Given
from tests.incident.watch import Exposed, Log, Watch

POSSIBLE = "possible"


def given(name: str, *, at: float, right: bool = True, error: str | None = None) -> Given:
    return Given(at - 1, at, Completion(name, error=error), right)


def exposed(name: str, seen: float, certainty: str) -> Exposed:
    return Exposed(seen, f"{name}-12345678", certainty)


def test_an_answer_is_joined_to_its_exposure_by_its_request() -> None:
    got = answers(
        [
            given("a", at=101),
            given("b", at=102, right=False),
            given("c", at=103, right=False, error="HTTP 500"),
        ],
        [exposed("b", 101.5, CERTAIN), exposed("b", 101.6, POSSIBLE)],
        began=100.0,
    )
    assert [(one.asked_s, one.given_s) for one in got] == [(0, 1), (1, 2), (2, 3)]
    assert [one.outcome for one in got] == [RIGHT, WRONG, ERROR]
    assert [one.exposed for one in got] == ["", CERTAIN, ""]


def test_a_read_in_flight_when_its_step_ended_is_late() -> None:
    lines = [exposed("a", 101.0, POSSIBLE), exposed("b", 102.0, CERTAIN)]
    assert first_late([given("a", at=103), given("b", at=104)], lines, began=100.0) == 2.0


def test_so_is_one_that_had_landed_by_then_if_its_answer_is_wrong() -> None:
    lines = [exposed("a", 101.0, POSSIBLE), exposed("b", 102.0, CERTAIN)]
    wrong = given("a", at=103, right=False)
    assert first_late([wrong, given("b", at=104)], lines, began=100.0) == 1.0


def test_one_that_was_possibly_late_and_did_no_harm_is_not() -> None:
    assert first_late([given("a", at=103)], [exposed("a", 101.0, POSSIBLE)], began=100.0) is None


def test_a_quiet_recording_says_how_quiet_it_was() -> None:
    calm = Quiet()
    for value in (0.01, 0.04, 0.02):
        calm.saw(SCRAPE_LATE, value, at_s=value * 1000)
    assert calm.about() == {
        "at worst": "a scrape began late by 0.04 s (at 40 s)",
        "disturbed": "no",
    }


def test_a_disturbed_one_says_by_what_and_when() -> None:
    stood = Quiet()
    stood.saw(SCRAPE_LATE, 0.1, at_s=5)
    stood.saw(UNANSWERED, 14.4, at_s=262)
    assert stood.about()["disturbed"] == "nobody was answered for 14.4 s (at 262 s)"


def test_time_is_put_down_to_who_had_it(monkeypatch) -> None:
    spent = iter([(100.0, 50.0, 40.0, 0.0), (110.0, 58.0, 46.0, 1.0), (120.0, 60.0, 49.0, 1.0)])
    monkeypatch.setattr(quiet, "_spent", lambda: next(spent))
    machine = Machine()
    assert machine.beat() == pytest.approx((0.2, 0.1))
    assert machine.beat() == (0.0, 0.0)


class Flaky(BaseHTTPRequestHandler):
    """Answers every other time."""

    asked = 0

    def do_GET(self) -> None:
        type(self).asked += 1
        self.send_response(200 if self.asked % 2 else 500)
        self.end_headers()
        self.wfile.write(b"moriio_requests_total 1\n")

    def log_message(self, *_: object) -> None:
        """Not on the screen."""


def test_a_scrape_that_failed_is_an_empty_page_and_the_log_is_followed_to_its_end(tmp_path) -> None:
    path = tmp_path / "decode.log"
    path.touch()
    log = Log(path)
    enough = threading.Event()
    with HTTPServer(("127.0.0.1", 0), Flaky) as server:
        threading.Thread(target=server.serve_forever).start()
        url = f"http://127.0.0.1:{server.server_port}"
        with Watch({"decode": url}, log, 0.05, Quiet()) as watch:
            while len(watch.pages["decode"]) < 4:
                enough.wait(0.01)
            path.write_text('moriio_exposure {"request_id": "a-1", "certainty": "certain"}\n')
        server.shutdown()
    assert watch.pages["decode"][:4] == ["moriio_requests_total 1\n", ""] * 2
    assert [(one.request_id, one.certainty) for one in log.exposed] == [("a-1", CERTAIN)]
