"""A pytest plugin that takes one hook away at a time, until a test of the suite notices.

Every test is made once for each hook that the version under test needs. Once a test has failed
without a hook, that hook's other tests are not run. Each of the tests that noticed runs once more
with nothing taken away: one that fails then, too, has noticed nothing.

The environment says which hooks: `MUTATE_HOOKS`, comma-separated, all if it is not set. What came
of each test is told in the report as observed: `("without", test)`, and the hook.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

NOTHING = "nothing"

HOOKS = {
    "_read_blocks": "test_healthy",
    "_pop_done_transfers": "test_slow",
    "_moriio_handshake": "test_healthy",
    "_await_reads_issued_this_step": "test_slow",
    "read_remote_data": "test_healthy",
    "waiting_for_transfer_complete": "test_slow",
    "send_notify": "test_a_release_that_cannot_be_sent",
    "_handle_release_message": "test_a_release_is_counted",
    "register_kv_caches": "test_a_layer_without_a_hook_is_waited_for_before_the_forward",
    "bind_connector_metadata": "test_slow",
    "start_load_kv": "test_healthy",
    "wait_for_layer_load": "test_layer_waits_in_every_layer",
    "get_finished": "test_requests_that_are_gone_are_known_without_the_scheduler_side",
    "get_transfer_results": "test_requests_that_are_gone_are_known_without_the_scheduler_side",
    "get_block_ids_with_load_errors": "test_blocks_that_were_not_loaded_are_counted",
    "bind_gpu_block_pool": "test_a_client_that_leaves_while_its_reads_are_in_flight",
    "on_new_request": "test_a_lease_outlives_clocks_that_disagree",
    "get_num_new_matched_tokens": "test_a_guard_needs_no_barrier",
    "update_state_after_alloc": "test_the_same_transfer_is_not_read_twice",
    "request_finished": "test_a_lease_outlives_clocks_that_disagree",
    "request_finished_all_groups": "test_a_lease_outlives_clocks_that_disagree",
    "build_connector_worker_meta": "test_a_client_that_leaves_while_its_reads_are_in_flight",
    "build_connector_meta": "test_a_step_without_a_forward_is_not_counted",
    "update_connector_output": "test_a_send_that_nobody_reads_expires",
    "get_kv_connector_stats": "test_healthy",
    "shutdown": "test_hooks_are_taken_away_at_the_end",
}
"""Every hook, and the test to try first without it, so that the others need not be run."""


@dataclass(frozen=True)
class Hook:
    """A method of ours that stands in front of one of upstream's."""

    owner: type
    name: str


def hooks() -> list[Hook]:
    """Every hook that the version under test needs."""
    from moriio_observed.barrier import Era
    from moriio_observed.connector import ObservedMoRIIOConnector
    from moriio_observed.upstream import HAS_GROUPS, HAS_TRANSFER_RESULTS, OVERRIDDEN, Seams
    from moriio_observed.upstream.mixins import ObservedProducer, ObservedWorker, ObservedWrapper
    from moriio_observed.upstream.moriio import moriio_connector

    upstreams = {
        ObservedProducer: moriio_connector.MoRIIOConnectorWorker,
        ObservedWorker: moriio_connector.MoRIIOConnectorWorker,
        ObservedWrapper: moriio_connector.MoRIIOWrapper,
    }
    mixed_in = [
        Hook(owner, name)
        for owner, upstream in upstreams.items()
        for name, method in vars(owner).items()
        if inspect.isfunction(method) and hasattr(upstream, name)
    ]
    overriding = [
        Hook(next(owner for owner in ObservedMoRIIOConnector.__mro__ if name in vars(owner)), name)
        for name in (*OVERRIDDEN, "get_kv_connector_stats")
    ]
    era = Seams.detect().era
    idle = set()
    if era is Era.LAYER:
        # Upstream waits with it in WRITE mode only.
        idle.add("waiting_for_transfer_complete")
    if HAS_TRANSFER_RESULTS:
        # That is what vLLM calls.
        idle.add("get_finished")
    if HAS_GROUPS:
        # Likewise.
        idle.add("request_finished")
    return [hook for hook in (*mixed_in, *overriding) if hook.name not in idle]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    asked = os.environ.get("MUTATE_HOOKS")
    chosen = [hook for hook in hooks() if not asked or hook.name in asked.split(",")]
    names = [hook.name for hook in chosen]
    assert HOOKS.keys() >= set(names)
    metafunc.parametrize("removed", [*chosen, None], ids=[*names, NOTHING], indirect=True)


@pytest.fixture(autouse=True)
def removed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hook that is not there in this test."""
    if request.param is not None:
        monkeypatch.delattr(request.param.owner, request.param.name)


class _Progress:
    """Which tests have noticed which hook's absence."""

    def __init__(self) -> None:
        self.noticed: dict[str, str] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Hook by hook, the test that is likely to notice first; nothing removed at the end."""

        def order(item: Any) -> tuple[int, str, bool]:
            hook = _removed(item)
            return hook == NOTHING, hook, item.originalname != HOOKS.get(hook)

        items.sort(key=order)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: Any) -> None:
        hook, test = _removed(item), _test(item)
        item.user_properties.append(("observed", json.dumps(["without", test, hook])))
        if hook in self.noticed:
            pytest.skip(f"{self.noticed[hook]} has noticed")
        if hook == NOTHING and test not in self.noticed.values():
            pytest.skip("it has noticed nothing")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: Any) -> Iterator[None]:
        report: Any = yield
        if report.failed:
            self.noticed.setdefault(_removed(item), _test(item))
        return report


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Progress())


def _removed(item: Any) -> str:
    hook = item.callspec.params["removed"]
    return NOTHING if hook is None else hook.name


def _test(item: Any) -> str:
    """The test's name as it is without this plugin."""
    given = [str(value) for name, value in item.callspec.params.items() if name != "removed"]
    return f"{item.originalname}[{'-'.join(given)}]" if given else item.originalname
