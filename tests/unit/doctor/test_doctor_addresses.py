"""Addresses with a user and a password: taken, sent to that server alone, and never shown."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from moriio_observed.cli import main
from moriio_observed.doctor.errors import InputError
from moriio_observed.doctor.read import Address, Unreachable, address_of, page, web_address
from tests.unit.doctor.patients import Quiet, answering

METRICS = "moriio_steps_total 1\nvllm:x 1\n"


@contextmanager
def behind_a_login(sends_to: str = "") -> Iterator[tuple[str, list[str | None]]]:
    """A server that lets in who says anything, or sends them on; also what they said."""
    said: list[str | None] = []

    class Handler(Quiet):
        def do_GET(self) -> None:  # noqa: N802  (its name in http.server)
            said.append(self.headers.get("Authorization"))
            self.send_response(302 if sends_to else 200 if said[-1] else 401)
            self.send_header("Location", sends_to)
            self.end_headers()
            self.wfile.write(METRICS.encode())

    with answering(Handler) as url:
        yield url.removeprefix("http://"), said


def basic(user: str) -> str:
    return f"Basic {base64.b64encode(user.encode()).decode()}"


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("http://d:8000", Address("http://d:8000")),
        ("http://d:8000/metrics", Address("http://d:8000")),
        ("https://me:secret@p/prometheus/", Address("https://p/prometheus", basic("me:secret"))),
        ("http://me%40x:a%3Ab%2Fc@p", Address("http://p", basic("me@x:a:b/c"))),
        ("http://me@p", Address("http://p", basic("me:"))),
        ("http://me:a@b@[::1]:9090", Address("http://[::1]:9090", basic("me:a@b"))),
    ],
)
def test_an_address_is_taken_apart(text: str, address: Address) -> None:
    assert address_of(text, "--url") == address


@pytest.mark.parametrize(
    "text",
    ["ftp://me:secret@p", "http://me:secret@", "http://me:secret/x@p", "http://me:secret@p:port"],
)
def test_what_is_no_address_is_refused_without_its_password(text: str) -> None:
    with pytest.raises(InputError, match="must be an address") as refused:
        address_of(text, "--url")
    assert "secret" not in str(refused.value)


def test_who_takes_no_user_says_so_without_the_password() -> None:
    with pytest.raises(InputError, match="a user in front of http://p is not supported"):
        web_address("http://me:secret@p", "--url")


def test_a_password_is_not_in_what_an_address_shows() -> None:
    assert "Basic" not in repr(address_of("http://me:secret@p", "--url"))


def test_the_user_is_sent() -> None:
    with behind_a_login() as (at, said):
        assert page(address_of(f"http://me:secret@{at}", "--url"), "/metrics", 5.0) == METRICS
        with pytest.raises(Unreachable, match="answers HTTP 401"):
            page(Address(f"http://{at}"), "/metrics", 5.0)
    assert said == [basic("me:secret"), None]


def test_another_server_that_it_sends_us_to_does_not_get_the_password() -> None:
    with (
        behind_a_login() as (other, heard),
        behind_a_login(f"http://{other}/") as (at, said),
        pytest.raises(Unreachable, match="answers HTTP 401"),
    ):
        page(address_of(f"http://me:secret@{at}", "--url"), "/metrics", 5.0)
    assert (said, heard) == ([basic("me:secret")], [None])


@pytest.mark.parametrize("command", [["doctor", "--url"], ["top", "--interval", "0.2"]])
@pytest.mark.parametrize("form", [[], ["--json"]], ids=["text", "json"])
def test_a_command_gets_in_and_never_shows_the_password(
    command: list[str], form: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with behind_a_login() as (at, said):
        main([*command, f"http://me:secret@{at}", "--prometheus", f"http://me:secret@{at}", *form])
    assert set(said) == {basic("me:secret")}
    shown = "".join(capsys.readouterr())
    assert at in shown
    assert "secret" not in shown
    assert basic("me:secret").split()[1] not in shown
