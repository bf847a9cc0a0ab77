"""A real prefill/decode pair on the installed vLLM: every report ends in the right answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

from moriio_observed.demo import web
from moriio_observed.demo.client import Answer, body, post
from moriio_observed.demo.errors import DemoError
from moriio_observed.demo.exposures import PHANTOM_HIT, LogFollower
from moriio_observed.demo.measure import Observation, measure
from moriio_observed.demo.metrics import Scrape, parse, scrape
from moriio_observed.demo.pair import Pair
from moriio_observed.demo.phases import HUNG_READ, SLOW_READS
from moriio_observed.demo.server import ServerSettings, transfer_config
from moriio_observed.demo.workload import prompts
from moriio_observed.telemetry.catalog import CATALOG, PREFIX, Kind, label_sets

CASES = Path(__file__).parents[1] / "cases"

GetPair = Callable[..., Pair]

ONE_FAILS = {
    "seed": 3,
    "reset_ordinals": True,
    "rules": [
        {"requests": [4, 9], "layers": [0], "fail": True},
        {"latency_s": 0.05, "jitter_s": 0.25},
    ],
}
SEND_QUEUE_FULL = {"seed": 5, "rules": [{"sq_full": True, "probability": 0.5}]}


def consumer(**settings: Any) -> ServerSettings:
    flags = settings.pop("flags", ())
    env = settings.pop("env", {})
    return ServerSettings(transfer_config("kv_consumer", **settings), env=env, flags=flags)


def serve(pair: Pair, faults: Mapping[str, Any], seed: int, phase: str = "phase") -> Any:
    asked = prompts(seed)
    return measure(phase, pair, faults, asked, pair.client.reference(asked))


def right(answers: Sequence[Answer], references: Sequence[Answer]) -> list[bool]:
    return [
        answer.error is None and answer.tokens == reference.tokens
        for answer, reference in zip(answers, references, strict=True)
    ]


def exposition(pair: Pair) -> str:
    return web.get(f"{pair.decode.ports.url}/metrics")


# The default settings: one pair serves all of these.


def test_healthy_reads_answer_like_a_single_engine_and_expose_nobody(pair: GetPair) -> None:
    row = serve(pair(), {}, 11)
    assert (row.right, row.exposed, row.unprotected_steps, row.timeouts) == (16, 0, 0, 0)


def test_slow_reads_are_waited_for(pair: GetPair) -> None:
    row = serve(pair(), SLOW_READS, 12)
    assert (row.right, row.exposed, row.unprotected_steps) == (16, 0, 0)
    assert row.wait_p99_s is not None
    assert row.wait_p99_s > 0.025


def test_a_hung_read_is_told_by_its_request_and_every_wrong_answer_is_exposed(
    pair: GetPair,
) -> None:
    row = serve(pair(), HUNG_READ, 13)
    assert row.exposed == 1
    assert row.wrong_not_exposed == 0
    assert row.wrong + row.error <= 1
    assert row.timeouts >= 1


def test_one_barrier_call_that_gave_up_is_one_timeout_and_the_abort_is_counted(
    pair: GetPair,
) -> None:
    running = pair()
    before = scrape(running.decode.ports.url)
    observation = Observation(running.decode)
    running.faults.set(HUNG_READ)
    ages = []
    with ThreadPoolExecutor(1) as thread:
        asking = thread.submit(running.client.ask, prompts(14))
        while not asking.done():
            have = scrape(running.decode.ports.url)
            ages.append(have.total("moriio_oldest_read_age_seconds"))
            wait([asking], timeout=0.2)
    running.faults.clear()
    running.client.ask(prompts(15, 1))
    observation.settled(17)
    assert max(ages) > 0
    change = scrape(running.decode.ports.url).since(before)
    steps = change.total("moriio_unprotected_steps_total", cause="timeout", certainty="certain")
    assert change.total("moriio_barrier_timeouts_total") == steps
    assert change.total("moriio_reads_aborted_total") == 1
    after = scrape(running.decode.ports.url)
    assert after.total("moriio_reads_in_flight") == 0
    assert after.total("moriio_oldest_read_age_seconds") == 0


def test_failed_reads_are_recomputed_and_all_answers_are_right(pair: GetPair) -> None:
    row = serve(pair(), ONE_FAILS, 16)
    assert (row.right, row.wrong_not_exposed, row.failed, row.exposed) == (16, 0, 2, 2)


def test_exposures_of_failed_reads_say_what_became_of_them(pair: GetPair) -> None:
    running = pair()
    observation = Observation(running.decode)
    running.faults.set(ONE_FAILS)
    running.client.ask(prompts(17))
    change, events = observation.settled(16)
    assert {(e["cause"], e["certainty"], e["action"]) for e in events} == {
        ("failed", "certain", "recomputed")
    }
    assert all(e["layers"] == [0] for e in events)
    assert change.total("moriio_exposed_requests_total", action="recomputed") == 2
    assert change.total("moriio_load_error_blocks_total") > 0


def test_a_full_send_queue_is_backpressure_and_no_failure(pair: GetPair) -> None:
    running = pair()
    before = scrape(running.decode.ports.url)
    row = serve(running, SEND_QUEUE_FULL, 18)
    change = scrape(running.decode.ports.url).since(before)
    assert (row.right, row.failed, row.exposed) == (16, 0, 0)
    assert change.total("moriio_send_queue_full_total") > 0


def test_a_plain_request_to_the_decode_engine_is_a_phantom_hit(pair: GetPair) -> None:
    running = pair()
    before = scrape(running.decode.ports.url)
    log = LogFollower(running.decode.log)
    [answer] = running.client.ask_decode(prompts(19, 1), max_tokens=4)
    running.client.ask(prompts(20, 1))
    change = scrape(running.decode.ports.url).since(before)
    assert change.total("moriio_phantom_hits_total", cause="no_params", action="reported") == 1
    [event] = log.events(PHANTOM_HIT)
    assert answer.is_known_as(event["request_id"])
    assert change.total("moriio_requests_total") == 1


@pytest.mark.parametrize(
    "hostile",
    ['quoted"and\\backslash', "x" * 4096, "{label=1} # HELP", "___prefill_addr_nonsense"],
    ids=["quotes", "4 KiB", "exposition", "router"],
)
def test_a_hostile_request_id_is_never_a_label_and_breaks_nothing(
    pair: GetPair, hostile: str
) -> None:
    running = pair()
    client = running.client
    # The addresses travel in the parameters instead of the id, as a side-car router sends them.
    [prompt] = prompts(21, 1)
    params = post(
        running.prefill.ports.url,
        body(prompt, 1)
        | {
            "kv_transfer_params": {
                "do_remote_decode": True,
                "do_remote_prefill": False,
                "remote_engine_id": None,
                "remote_block_ids": None,
                "transfer_id": f"tx-{client.new_request_id()[-32:]}",
            }
        },
        hostile,
    )["kv_transfer_params"]
    answer = post(
        running.decode.ports.url, body(prompt, 4) | {"kv_transfer_params": params}, hostile
    )
    assert len(answer["choices"][0]["token_ids"]) == 4
    text = exposition(running)
    assert hostile not in text
    parse(text)


def test_every_series_of_the_catalogue_is_there_with_its_help(pair: GetPair) -> None:
    running = pair()
    running.client.ask(prompts(22, 1))
    text = exposition(running)
    have = parse(text)
    names = {name for name, _ in have.samples}
    assert have.total("moriio_hook_installed", hook="read_blocks") == 1
    for instrument in CATALOG.values():
        name = PREFIX + instrument.name
        assert f"# HELP {name.removesuffix('_total')} " in text or f"# HELP {name} " in text
        assert f"{instrument.help}\n" in text
        if instrument.kind is Kind.COUNTER:
            for values in label_sets(instrument, layers=4, tp_ranks=1):
                labels = dict(zip(instrument.labels, values, strict=True))
                assert any(
                    sample == name and labels.items() <= dict(has).items()
                    for sample, has in have.samples
                ), (name, labels)
    assert not any(name.startswith(PREFIX) and name.endswith("_created") for name in names)


def test_the_configuration_is_on_the_metrics_page(pair: GetPair) -> None:
    have = scrape(pair().decode.ports.url)
    assert have.total("moriio_config_info", mode="read", role="kv_consumer", barrier="auto") == 1
    assert have.total("moriio_transfer_timeout_seconds") == 2
    assert have.total("moriio_recv_abort_timeout_seconds") == 6


def test_releases_are_counted_on_the_prefill_engine(pair: GetPair) -> None:
    running = pair()
    before = scrape(running.prefill.ports.url)
    running.client.ask(prompts(23, 2))
    # Releases travel with the prefill engine's next step.
    running.client.ask(prompts(24, 1))
    running.client.reference(prompts(25, 1))
    change: Scrape = scrape(running.prefill.ports.url).since(before)
    assert change.total("moriio_releases_total") >= 2


# Other settings: each needs a decode server of its own.


def test_without_a_barrier_slow_reads_give_wrong_answers_and_each_is_exposed(
    pair: GetPair,
) -> None:
    row = serve(pair(consumer(observed={"barrier": "off", "allow_unsafe": True})), SLOW_READS, 31)
    assert row.wrong > 0
    assert row.wrong_not_exposed == 0
    assert row.exposed == 16


@pytest.mark.parametrize(("barrier", "hidden"), [("layer", "waits,peers"), ("step", "")])
def test_every_barrier_of_ours_protects_slow_reads_on_new_and_old_mori(
    pair: GetPair, barrier: str, hidden: str
) -> None:
    # The barrier is given by the environment here: it must work alike.
    env = {"MORIIO_OBSERVED_BARRIER": barrier}
    if hidden:
        env["MORIIO_OBSERVED_LOOPBACK_HIDE"] = hidden
    row = serve(pair(consumer(env=env)), SLOW_READS, 32)
    assert (row.right, row.exposed, row.unprotected_steps) == (16, 0, 0)


def test_with_policy_fail_exactly_the_requests_with_a_failed_read_error(pair: GetPair) -> None:
    running = pair(consumer(load_failure_policy="fail"))
    row = serve(running, ONE_FAILS, 33)
    assert (row.right, row.error, row.wrong) == (14, 2, 0)


def test_upstreams_own_barrier_gives_up_on_healthy_requests_and_each_is_told(
    pair: GetPair,
) -> None:
    running = pair(consumer(observed={"barrier": "upstream"}))
    observation = Observation(running.decode)
    asked = prompts(34)
    references = running.client.reference(asked)
    running.faults.set(ONE_FAILS)
    answers = running.client.ask(asked)
    _, events = observation.settled(16)
    assert {event["cause"] for event in events} == {"failed", "gave_up"}
    assert not all(right(answers, references))
    for answer, ok in zip(answers, right(answers, references), strict=True):
        if not ok and answer.error is None:
            assert any(answer.is_known_as(event["request_id"]) for event in events)


def test_resumed_requests_are_phantom_hits(pair: GetPair) -> None:
    running = pair(
        consumer(flags=("--num-gpu-blocks-override=80", "--max-num-batched-tokens=2048"))
    )
    before = scrape(running.decode.ports.url)
    log = LogFollower(running.decode.log)
    running.client.ask(prompts(35), max_tokens=120)
    running.client.ask(prompts(36, 1))
    change = scrape(running.decode.ports.url).since(before)
    events = [e for e in log.events(PHANTOM_HIT) if e["cause"] == "preempted"]
    assert events
    assert change.total("moriio_phantom_hits_total", cause="preempted") == len(events)


def test_several_connectors_in_one_keep_the_api_server_up(pair: GetPair) -> None:
    config = json.loads((CASES / "nested-multi.json").read_text())
    children = config["kv_connector_extra_config"]["connectors"]
    children[1]["kv_connector_extra_config"]["shared_storage_path"] = "build/e2e/kv"
    running = pair(ServerSettings(config))
    answers = running.client.ask(prompts(37, 2))
    assert [answer.error for answer in answers] == [None, None]
    running.client.ask(prompts(38, 1))
    assert scrape(running.decode.ports.url).total("moriio_requests_total") >= 2


def test_a_string_read_mode_means_write_as_upstream_reads_it(pair: GetPair) -> None:
    config = json.loads((CASES / "string-booleans.json").read_text())
    extra = config["kv_connector_extra_config"]
    # No router runs here to be pinged.
    del extra["proxy_ip"], extra["proxy_ping_port"]
    running = pair(ServerSettings(config))
    have = scrape(running.decode.ports.url)
    assert have.total("moriio_config_info", mode="write") == 1
    assert have.total("moriio_barrier_wait_seconds_count") == 0
    assert "FULL graph replay" not in running.decode.log.read_text()


def test_before_the_first_request_every_counter_and_histogram_is_there_and_zero(
    pair: GetPair,
) -> None:
    # The settings differ from every other test's, so that this server is a fresh one.
    have = scrape(pair(consumer(observed={"max_remotes": 7})).decode.ports.url)
    values: dict[str, list[float]] = {}
    for (sample, _), value in have.samples.items():
        values.setdefault(sample, []).append(value)
    for instrument in CATALOG.values():
        name = PREFIX + instrument.name
        if instrument.kind is Kind.HISTOGRAM:
            assert set(values[f"{name}_count"]) == {0.0}
        elif instrument.kind is Kind.COUNTER and not instrument.is_open:
            expected = len(list(label_sets(instrument, layers=4, tp_ranks=1)))
            assert values[name] == [0.0] * expected


def test_misspelt_settings_refuse_to_start_in_one_error(pair: GetPair) -> None:
    config = json.loads((CASES / "misspelt.json").read_text())
    with pytest.raises(DemoError) as refused:
        pair(ServerSettings(config))
    text = str(refused.value)
    assert "kv_connector_extra_config.observed.barier" in text
    assert "kv_connector_extra_config.observed.otlp.sample_ratio" in text
    assert "1.5" in text
    assert "barrier" in text
