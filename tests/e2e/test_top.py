"""`moriio-observed top` on a real pair."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from moriio_observed.cli import main
from moriio_observed.demo.measure import Observation
from moriio_observed.demo.pair import Pair
from moriio_observed.demo.workload import prompts

GetPair = Callable[..., Pair]


def test_both_engines_of_a_real_pair_tell_what_they_are_and_what_they_did(
    pair: GetPair,
    observe: Callable[[Pair], Observation],
    capsys: pytest.CaptureFixture[str],
) -> None:
    running = pair()
    observation = observe(running)
    running.client.ask(prompts(71, 4))
    observation.settled(4)
    capsys.readouterr()  # what starting the pair has said
    urls = [running.decode.ports.url, running.prefill.ports.url]
    assert main(["top", *urls, "--json", "--interval", "1"]) == 0
    rows = {row["url"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    decode, prefill = (rows[url]["engine"] for url in urls)
    assert [rows[url]["state"] for url in urls] == ["ok", "ok"]
    assert (decode["info"]["role"], prefill["info"]["role"]) == ("kv_consumer", "kv_producer")
    assert decode["requests"]["total"] >= 4
    assert decode["reads"]["posted"]["total"] >= decode["reads"]["landed"]["total"] > 0
    assert decode["deadline_s"] > 0
    assert decode["running"] == 0
    assert decode["requests"]["gained"] == 0
