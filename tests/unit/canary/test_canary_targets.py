"""What a canary sends, and what it makes of what a server does with it."""

from __future__ import annotations

import json
import math
import re
import threading

import pytest

from moriio_observed.canary.choices import Choice, check_fit, check_mode
from moriio_observed.canary.errors import BusyError, CanaryError, NoAnswerError, WrongModelError
from moriio_observed.canary.http import Http
from moriio_observed.canary.load import WAITING, waiting
from moriio_observed.canary.metrics import Mode, Route
from moriio_observed.canary.targets import ID_PREFIX, Pair, Question, Target, new_probe
from moriio_observed.doctor.errors import InputError
from tests.unit.canary.known import answer, golden
from tests.unit.canary.model_server import MODEL, PREFILLED, ModelServer, right, serving

QUESTION = Question(MODEL, "a prompt", 4)
PROBE = "0123456789abcdef" * 2


def single(http: Http, server: ModelServer) -> Target:
    return Choice(url=server.url).target(http)


def test_an_answer_comes_with_its_tokens_and_logprob(http: Http, server: ModelServer) -> None:
    expected = answer(right("a prompt")[:4], first_logprob=-0.5)
    assert single(http, server).ask(QUESTION, PROBE) == expected


def test_it_asks_greedily_for_so_many_tokens_and_their_ids(http: Http, server: ModelServer) -> None:
    single(http, server).ask(QUESTION, PROBE)
    [body] = server.asked
    assert body["temperature"] == 0
    assert body["max_tokens"] == 4
    assert body["ignore_eos"] is True
    assert body["return_token_ids"] is True
    assert body["prompt"] == "a prompt"


def test_no_two_probes_share_a_place_in_prefix_caches(http: Http, server: ModelServer) -> None:
    for _ in range(2):
        single(http, server).ask(QUESTION, new_probe())
    one, other = (body["cache_salt"] for body in server.asked)
    assert one != other
    # What vLLM takes for a salt.
    assert re.fullmatch(r"[^@/\\\0]{1,128}", one)


def test_a_request_says_that_it_is_a_canarys(http: Http, server: ModelServer) -> None:
    single(http, server).ask(QUESTION, PROBE)
    assert server.ids == [ID_PREFIX + PROBE]
    assert server.asked[0]["user"] == "moriio-canary"
    assert server.headers["User-Agent"].startswith("moriio-observed-canary/")


def test_an_api_key_is_sent_as_a_bearer_token(server: ModelServer) -> None:
    with Http(20, "a key") as http:
        single(http, server).ask(QUESTION, PROBE)
    assert server.headers["Authorization"] == "Bearer a key"


def test_a_proxy_of_the_environment_is_not_used(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with Http(20) as http:
        assert single(http, server).ask(QUESTION, PROBE)


@pytest.mark.parametrize("status", [429, 503])
def test_a_server_with_enough_to_do_is_busy(http: Http, server: ModelServer, status: int) -> None:
    server.status = status
    with pytest.raises(BusyError, match=f"is busy: HTTP {status}.*not now"):
        single(http, server).ask(QUESTION, PROBE)


def test_another_error_is_told_with_what_the_server_says(http: Http, server: ModelServer) -> None:
    server.status = 500
    with pytest.raises(NoAnswerError, match=r"/v1/completions answers HTTP 500: .*not now"):
        single(http, server).ask(QUESTION, PROBE)


def test_a_model_that_is_not_served_is_named(http: Http, server: ModelServer) -> None:
    with pytest.raises(WrongModelError, match="does not serve the model 'other'"):
        single(http, server).ask(Question("other", "a prompt", 4), PROBE)


def test_a_request_that_cannot_be_sent_is_told(http: Http, server: ModelServer) -> None:
    # As the command line of a terminal that is not UTF-8 has it.
    with pytest.raises(NoAnswerError, match="cannot be sent the request"):
        single(http, server).ask(Question("m\udcff", "a prompt", 4), PROBE)
    assert server.asked == []


@pytest.mark.parametrize("value", [math.nan, "\ud800"])
def test_what_a_prefill_engine_returns_and_cannot_be_sent_on_is_told(
    http: Http, server: ModelServer, value: object
) -> None:
    returned = {"choices": [], "kv_transfer_params": {"remote_engine_id": value}}
    said = f"{server.url} cannot be sent the request"
    with serving(page=json.dumps(returned)) as prefill, pytest.raises(NoAnswerError, match=said):
        pair(http, prefill, server).ask(QUESTION, PROBE)
    assert server.asked == []


@pytest.mark.parametrize("page", ["<html>", "[]", "[" * 100_000, '{"choices": 1}'])
def test_a_page_that_is_no_completion_is_told(http: Http, server: ModelServer, page: str) -> None:
    server.page = page
    with pytest.raises(NoAnswerError, match=r"no JSON object|no choices\[0\]\.text"):
        single(http, server).ask(QUESTION, PROBE)


def test_a_server_that_is_not_there_is_told(http: Http) -> None:
    with serving() as gone:
        pass
    with pytest.raises(NoAnswerError, match=rf"{gone.url} does not answer: "):
        single(http, gone).ask(QUESTION, PROBE)


def pair(http: Http, prefill: ModelServer, decode: ModelServer) -> Target:
    return Choice(prefill=prefill.url, decode=decode.url).target(http)


def test_a_pair_is_asked_for_the_prompts_kv_and_then_for_the_answer(
    http: Http, server: ModelServer
) -> None:
    with serving() as prefill:
        expected = answer(right("a prompt")[:4], first_logprob=-0.5)
        assert pair(http, prefill, server).ask(QUESTION, PROBE) == expected
    [first], [second] = prefill.asked, server.asked
    assert first["max_tokens"] == 1
    assert first["kv_transfer_params"]["do_remote_decode"] is True
    assert second["max_tokens"] == 4
    assert second["kv_transfer_params"] == PREFILLED
    assert first["cache_salt"] == second["cache_salt"]


def test_both_legs_carry_one_request_id_that_begins_clearly(
    http: Http, server: ModelServer
) -> None:
    with serving() as prefill:
        pair(http, prefill, server).ask(QUESTION, PROBE)
    assert prefill.ids == server.ids
    assert server.ids[0].startswith(ID_PREFIX)


def test_the_id_carries_the_addresses_that_were_given(http: Http, server: ModelServer) -> None:
    Choice(
        prefill=server.url,
        decode=server.url,
        prefill_address="host:10.0.0.7,handshake:6301,notify:61005",
        decode_address="host:10.0.0.8,handshake:6401,notify:61105",
    ).target(http).ask(QUESTION, PROBE)
    assert server.ids[0] == (
        f"{ID_PREFIX}___prefill_addr_host:10.0.0.7,handshake:6301,notify:61005"
        f"___decode_addr_host:10.0.0.8,handshake:6401,notify:61105_{PROBE}"
    )


def test_moriios_default_ports_are_taken_on_the_hosts_of_the_urls(
    http: Http, server: ModelServer
) -> None:
    pair(http, server, server).ask(QUESTION, PROBE)
    address = "host:127.0.0.1,handshake:6301,notify:61005"
    expected = f"___prefill_addr_{address}___decode_addr_{address}_{PROBE}"
    assert server.ids[0] == ID_PREFIX + expected


def test_a_prefill_engine_that_is_none_is_told(http: Http, server: ModelServer) -> None:
    server.prefills = False
    with pytest.raises(NoAnswerError, match="returns no kv_transfer_params"):
        pair(http, server, server).ask(QUESTION, PROBE)


def test_the_prefill_engine_alone_is_the_reference_of_a_pair(
    http: Http, server: ModelServer
) -> None:
    alone = Choice(prefill=server.url, decode="http://decode.example").alone(http)
    assert alone is not None
    assert alone.ask(QUESTION, PROBE) == answer(right("a prompt")[:4], first_logprob=-0.5)
    assert "kv_transfer_params" not in server.asked[-1]


def test_a_router_has_no_reference_unless_one_is_given(http: Http, server: ModelServer) -> None:
    assert Choice(url="http://router.example").alone(http) is None
    alone = Choice(url="http://router.example", reference=server.url).alone(http)
    assert alone is not None
    assert alone.ask(QUESTION, PROBE)


def test_how_requests_get_there_is_known(http: Http) -> None:
    router = Choice(url="http://router.example:8000/").target(http)
    both = Choice(prefill="http://p.example", decode="http://d.example:81").target(http)
    assert (router.route, router.name) == (Route.ROUTER, "router.example:8000")
    assert (both.route, both.name) == (Route.PAIR, "d.example:81")


@pytest.mark.parametrize(
    "choice",
    [
        Choice(),
        Choice(prefill="http://p.example"),
        Choice(decode="http://d.example"),
        Choice(url="http://r.example", decode="http://d.example"),
        Choice(url="http://r.example", prefill="http://p.example", decode="http://d.example"),
    ],
)
def test_whom_to_ask_is_told_once_and_as_a_whole(http: Http, choice: Choice) -> None:
    with pytest.raises(CanaryError, match="give either --url, or both --prefill and --decode"):
        choice.target(http)


@pytest.mark.parametrize(
    ("choice", "option"),
    [
        (Choice(url="router.example"), "--url"),
        (Choice(prefill="ftp://p.example", decode="http://d.example"), "--prefill"),
        (Choice(prefill="http://p.example", decode="http://"), "--decode"),
        (Choice(url="http://r.example", engines=["x"]), "--engine"),
    ],
)
def test_an_address_that_is_none_is_named(http: Http, choice: Choice, option: str) -> None:
    with pytest.raises(InputError, match=rf"{option} = .* must be an address"):
        choice.target(http)


@pytest.mark.parametrize("address", ["10.0.0.8:6301", "host:münchen,handshake:1,notify:2"])
def test_an_address_of_moriio_that_is_none_is_named(http: Http, address: str) -> None:
    choice = Choice(prefill="http://p.example", decode="http://d.example", decode_address=address)
    with pytest.raises(CanaryError, match=rf"--decode-address = '{address}': must be host:"):
        choice.target(http)


def test_an_address_of_moriio_can_be_ipv6(http: Http) -> None:
    target = Choice(prefill="http://p.example", decode="http://[fd00::8]:8000").target(http)
    assert isinstance(target, Pair)
    assert target.decode.address == "host:fd00::8,handshake:6301,notify:61005"


def test_answers_that_vary_are_not_held_exactly() -> None:
    varying = golden(mode=Mode.DEGENERATION)
    check_mode(varying, Mode.DEGENERATION)
    check_mode(golden(), Mode.DEGENERATION)
    with pytest.raises(CanaryError, match="recorded with --mode degeneration, and --mode exact"):
        check_mode(varying, Mode.EXACT)


def test_golden_answers_of_another_model_do_not_fit() -> None:
    with pytest.raises(CanaryError, match="golden answers are those of 'm', and 'other' is asked"):
        check_fit(golden(), (1,), "other")


def test_no_more_different_prompts_at_once_than_there_are() -> None:
    check_fit(golden(4), (1, 4), MODEL)
    with pytest.raises(CanaryError, match=r"5 different prompts at once, .* answers to 4"):
        check_fit(golden(4), (1, 5), MODEL)


def test_the_longest_queue_of_all_engines_counts(http: Http, server: ModelServer) -> None:
    server.waiting = 3
    with serving(waiting=5) as other:
        pages = [f"{server.url}/metrics", f"{other.url}/metrics"]
        assert waiting(http, pages) == 5


def test_engines_are_asked_for_their_queues_at_the_same_time() -> None:
    """Those that are dead would hold the canary up for as long as all of them take together."""
    together = threading.Barrier(2)

    class Pages(Http):
        def page(self, url: str) -> str:
            together.wait(timeout=30)
            return f"{WAITING} {url}\n"

    with Pages(timeout_s=20) as http:
        assert waiting(http, ["3", "5"]) == 5


def test_an_engine_that_does_not_tell_has_no_queue(http: Http) -> None:
    with serving() as gone:
        pass
    assert waiting(http, [f"{gone.url}/metrics"]) == 0
    assert waiting(http, []) == 0
