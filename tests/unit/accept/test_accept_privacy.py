"""What is taken out of texts before they leave the house."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moriio_observed.accept.privacy import Privacy, model_name

NAMES = {
    "http://p1.corp.example:8000": "prefill",
    "10.0.0.7": "prefill",
    "http://d1.corp.example:8000": "decode",
    "fe80::1": "decode",
}


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (
            "http://p1.corp.example:8000/metrics does not answer",
            "<prefill>/metrics does not answer",
        ),
        ("10.0.0.7:6301 hangs up", "<prefill>:6301 hangs up"),
        ("no route to d1.corp.example", "no route to <decode>"),
        ("d1.corp.example:8000 hangs up", "<decode> hangs up"),
        ("host:fe80::1,handshake:1", "host:<decode>,handshake:1"),
        ("redirected to http://other.example/x", "redirected to <address>"),
        ("from 192.168.1.4:9000", "from <address>"),
        ("mori 1.2.4, vLLM 0.32.0.dev3", "mori 1.2.4, vLLM 0.32.0.dev3"),
        ("bearer sesame refused", "bearer <key> refused"),
        ("p answers HTTP 500: prompt 'acid anchor'", "p answers HTTP 500"),
        ("P1.Corp.Example refused", "<prefill> refused"),
        ("p does not answer a query: acid", "p does not answer a query"),
        ("p does not serve the model '/of/mine': {'error': 'acid'}", "p does not serve the model"),
        (
            "d does not answer: illegal status line: b'acid'",
            "d does not answer: illegal status line",
        ),
        ("d is not in Prometheus' text format: 'acid'", "d is not in Prometheus' text format"),
    ],
)
def test_a_text_without_what_is_private(text: str, left: str) -> None:
    assert Privacy(NAMES, hosts=False, key="sesame").clean(text) == left


def test_addresses_may_stay_and_a_key_may_not() -> None:
    text = "http://p1.corp.example:8000 answers HTTP 401: sesame"
    clean = Privacy(NAMES, hosts=True, key="sesame").clean
    assert clean(text) == "http://p1.corp.example:8000 answers HTTP 401"
    assert clean("sesame at 10.0.0.7") == "<key> at 10.0.0.7"


def test_a_host_that_is_called_by_its_role_is_left() -> None:
    clean = Privacy({"http://decode:8000": "decode"}, hosts=False).clean
    assert clean("the decode engine at http://decode:8000") == "the decode engine at <decode>"


@given(st.lists(st.sampled_from([*NAMES, "d1.corp.example", " ", "x", "/", ","])))
def test_no_address_that_was_given_is_left_wherever_it_stands(parts: list[str]) -> None:
    cleaned = Privacy(NAMES, hosts=False).clean(" ".join(parts))
    assert "10.0.0.7" not in cleaned
    assert "corp" not in cleaned


@pytest.mark.parametrize(
    ("model", "left"),
    [
        ("meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-8B"),
        ("/data/of-mine/llama/", "llama"),
        ("./llama", "llama"),
        ("~me/llama", "llama"),
        ("m", "m"),
    ],
)
def test_a_model_keeps_its_name_and_loses_its_folders(model: str, left: str) -> None:
    assert model_name(model) == left
