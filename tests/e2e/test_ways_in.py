"""The two ways in, on a real pair of the installed vLLM.

A module path in the configuration is what nearly all of `test_pair.py` uses; here it must also do
without our plugin. The other way is the variable `MORIIO_OBSERVED`, with a configuration that is
upstream's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from moriio_observed.demo.exposures import judge
from moriio_observed.demo.measure import Observation
from moriio_observed.demo.metrics import scrape
from moriio_observed.demo.pair import Pair
from moriio_observed.demo.phases import HUNG_READ, SLOW_READS
from moriio_observed.demo.server import BARE, ServerSettings, transfer_config
from moriio_observed.demo.workload import prompts
from tests.e2e.test_pair import serve

GetPair = Callable[..., Pair]
CountReleases = Callable[[Pair, Sequence[str]], float]

BY_VARIABLE = {"MORIIO_OBSERVED": "1"}
PREFILL = ServerSettings(transfer_config("kv_producer", connector=BARE), env=BY_VARIABLE)
DECODE = ServerSettings(transfer_config("kv_consumer", connector=BARE), env=BY_VARIABLE)
NO_PLUGINS = {"VLLM_PLUGINS": ""}
"""vLLM loads no plugin but those named here: nobody registers our connector for it."""
UNPLUGGED = ("ObservedMoRIIOConnector", "tests.e2e.unplugged")
SIBLING = ("CountingConnector", "tests.e2e.counting_child")


@pytest.fixture
def by_variable(pair: GetPair) -> Pair:
    return pair(DECODE, PREFILL)


def test_the_variable_puts_ours_in_the_place_of_upstreams_connector(by_variable: Pair) -> None:
    row = serve(by_variable, SLOW_READS, 61)
    have = scrape(by_variable.decode.ports.url)
    assert (row.right, row.exposed, row.unprotected_steps) == (16, 0, 0)
    assert have.total("moriio_requests_total") >= 16
    assert have.total("moriio_hook_installed", hook="read_blocks") == 1
    assert have.total("moriio_config_info", role="kv_consumer", barrier="auto") == 1


def test_the_variable_tells_of_exposed_requests_by_their_id(by_variable: Pair) -> None:
    observation = Observation(by_variable.decode)
    asked = prompts(62)
    references = by_variable.client.reference(asked)
    by_variable.faults.set(HUNG_READ)
    answers = by_variable.client.ask(asked)
    _, events = observation.settled(16)
    [event] = events
    assert event["cause"] == "timeout"
    assert any(answer.is_known_as(event["request_id"]) for answer in answers)
    assert judge(answers, references, [event["request_id"]]).wrong_not_exposed == ()


def test_the_variable_counts_releases_on_the_prefill_engine(
    by_variable: Pair, released: CountReleases
) -> None:
    assert released(by_variable, prompts(63, 2)) >= 2


def test_without_plugins_the_module_path_registers_the_name_that_a_multi_connector_looks_up(
    pair: GetPair,
) -> None:
    ours = transfer_config("kv_consumer", connector=UNPLUGGED)
    sibling = transfer_config("kv_consumer", connector=SIBLING) | {"kv_role": "kv_both"}
    sibling["kv_connector_extra_config"] = {"shared_storage_path": "build/e2e/kv-of-sibling"}
    config = {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_consumer",
        "kv_connector_extra_config": {"connectors": [ours, sibling]},
    }
    running = pair(ServerSettings(config, env=NO_PLUGINS), PREFILL)
    row = serve(running, SLOW_READS, 64)
    have = scrape(running.decode.ports.url)
    assert (row.right, row.exposed, row.unprotected_steps) == (16, 0, 0)
    assert have.total("moriio_requests_total") >= 16
    assert have.total("sibling_steps_total") > 0
