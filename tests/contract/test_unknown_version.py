"""The next vLLM, of which we know nothing: it runs as upstream wrote it, and says so.

Real releases are changed in one place each, at least one release per barrier era.
"""

from __future__ import annotations

import inspect
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moriio_observed import loopback
from tests.contract.doctored import Change, doctor, facts_of
from tests.trees import source_tree

loopback.activate({"MORIIO_OBSERVED_LOOPBACK": "auto"})

from vllm.config import CUDAGraphMode, KVTransferConfig  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.base import (  # noqa: E402
    KVConnectorBase_V1,
    KVConnectorRole,
)

from moriio_observed import upstream  # noqa: E402
from moriio_observed.config import SettingsError  # noqa: E402
from moriio_observed.connector import ObservedMoRIIOConnector, _say_unknown  # noqa: E402
from moriio_observed.scheduler_side import SchedulerSide  # noqa: E402
from moriio_observed.upstream import mixins, moriio, seams  # noqa: E402
from moriio_observed.upstream.shapes import Shape  # noqa: E402
from moriio_observed.worker_side import WorkerSide  # noqa: E402
from tests.unit import scripted  # noqa: E402

pytestmark = pytest.mark.contract

ROOT = Path(__file__).parents[2]

STEP_WAIT = "    def _await_reads_issued_this_step(self) -> None:\n        pass\n\n"
LAYER_WAIT = "    def wait_for_layer_load(self, layer_name: str) -> None:\n        pass\n\n"
CLEAN_UP = r"    def _pop_done_transfers\("

ANOTHER_PLACE = """\
    def _read_blocks_fast(self, **what):
        return self._read_blocks_really(**what)

    def _read_blocks(self, request_id, dst_engine_id):
        self._read_blocks

    def _read_blocks_really("""

UNKNOWN = {
    Change(
        "a hook is renamed", "0.30.0", ((r"\b_read_blocks\b", "_pull_blocks"),)
    ): "read_blocks: not there",
    Change(
        "a parameter is renamed", "0.30.0", ((r"\btransfer_size_byte\b", "sizes"),)
    ): "read_remote_data: no parameter transfer_size_byte",
    Change(
        "the layer wait is renamed",
        "0.30.0",
        (
            (r"(?<=connector_worker\.)wait_for_layer_load\b", "await_layer"),
            (
                r"def wait_for_layer_load(?=\(.*\n\s+\"\"\"Block until all in-flight READs)",
                "def await_layer",
            ),
        ),
    ): "barrier: worker has wait_for_layer_load: False",
    Change(
        "a step wait appears that nothing calls",
        "0.30.0",
        ((f"(?={CLEAN_UP})", STEP_WAIT),),
    ): "barrier: worker has wait_for_layer_load: True, connector calls it: True; "
    "worker has _await_reads_issued_this_step: True, start_load_kv calls it: False",
    Change(
        "a hook is left behind that nothing calls",
        "0.32.0",
        (
            (r"\b_read_blocks\b", "_pull_blocks"),
            (
                f"(?={CLEAN_UP})",
                "    def _read_blocks(self, request_id, dst_engine_id):\n        pass\n\n",
            ),
        ),
    ): "read_blocks: nothing calls it",
    Change(
        "the connector's layer hook does nothing",
        "0.32.0",
        ((r"self\.connector_worker\.wait_for_layer_load\(layer_name\)", "pass"),),
    ): "barrier: worker has wait_for_layer_load: True, connector calls it: False",
    Change(
        "the step's reads are kept elsewhere",
        "0.32.0",
        ((r"\b_reads_issued_this_step\b(?!\()", "_posted_now"),),
        renamed=(("_reads_issued_this_step", "_posted_now"),),
    ): "barrier: Worker._await_reads_issued_this_step does more than wait (_posted_now)",
    Change(
        "sends are held elsewhere",
        "0.30.0",
        ((r"\b_deferred_send_deadlines\b", "_held_until"),),
    ): "_deferred_send_deadlines: not there",
    Change(
        "the layer wait does more",
        "0.32.0",
        (
            (
                r"self\.connector_worker\.wait_for_layer_load\(layer_name\)",
                r"\g<0>; logging.getLogger()",
            ),
        ),
    ): "barrier: MoRIIOConnector.wait_for_layer_load does more than wait (getLogger, logging)",
    Change(
        "the connector has statistics of its own",
        "0.33.0",
        (
            (
                r"(?=    def wait_for_layer_load\(self, layer_name: str)",
                "    def get_kv_connector_stats(self):\n        return None\n\n",
            ),
        ),
    ): "MoRIIOConnector.get_kv_connector_stats: MoRIIO has one of its own",
    Change(
        "the reads are kept elsewhere",
        "0.32.0",
        ((r"\b_recving_transfers\b", "_pulls"),),
        renamed=(("_recving_transfers", "_pulls"),),
    ): "_recving_transfers: not there",
    Change(
        "the lock is renamed", "0.32.0", ((r"\.lock\b", ".mutex"),)
    ): "moriio_wrapper.lock: not there",
    Change(
        "a method of the connector takes more",
        "0.32.0",
        (
            (
                r"(def wait_for_layer_load\(self, layer_name: str)(?=\) -> None:\n\s+assert)",
                r"\1, stream: object = None",
            ),
        ),
    ): "MoRIIOConnector.wait_for_layer_load: new parameter stream",
    Change(
        "the step wait is renamed",
        "0.33.0",
        ((r"\b_await_reads_issued_this_step\b", "_await_reads"),),
    ): "barrier: worker has wait_for_layer_load: False, connector calls it: False; "
    "worker has _await_reads_issued_this_step: False",
    Change(
        "a layer wait appears that nothing calls",
        "0.33.0",
        ((f"(?={CLEAN_UP})", LAYER_WAIT),),
    ): "barrier: worker has wait_for_layer_load: True, connector calls it: False",
}

MOVED = Change(
    "a module is renamed",
    "0.32.0",
    ((r"\bmoriio_common\b", "moriio_shared"),),
    files=(("moriio_common.py", "moriio_shared.py"),),
)
KNOWN = [
    Change(
        "a new optional parameter goes through ours",
        "0.30.0",
        ((r"(transfer_statuses: list\[Any\] \| None = None)", r"\1, fail_fast: bool = True"),),
    ),
    Change(
        "methods without parameters have an optional one",
        "0.33.0",
        (
            (r"(def _pop_done_transfers\(self)", r"\1, now: float | None = None"),
            (r"(def _await_reads_issued_this_step\(self)", r"\1, now: float | None = None"),
        ),
    ),
    Change("nothing changed", "0.33.0"),
]
UNSEEN = [
    Change(
        "a layer's reads are kept as a tuple",
        "0.33.0",
        (
            (
                r"(_recving_transfers\[request_id\]\[layer_name\] = )(\w+)",
                r"\1tuple(\2)",
            ),
        ),
    ),
    Change(
        "reads are posted in another place",
        "0.30.0",
        (
            (r"self\._read_blocks\(", "self._read_blocks_fast("),
            (
                r"    def _read_blocks\(",
                ANOTHER_PLACE,
            ),
        ),
    ),
]
"""What no look at the classes can tell: it shows when the first read is posted."""
CHANGES = [*UNKNOWN, MOVED, *UNSEEN, *KNOWN]


def named(change: Change) -> str:
    return f"{change.version}, {change.name}"


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Change], dict[str, Any]]:
    """What becomes of our connector on a changed release; one process tries a version's changes."""
    folders: dict[Change, Path] = {}

    def of(change: Change) -> dict[str, Any]:
        if change not in folders:
            same = [each for each in CHANGES if each.version == change.version]
            tree = source_tree(change.version)
            for each in same:
                folders[each] = doctor(each, tree, tmp_path_factory.mktemp("doctored"))
            run = subprocess.run(
                [
                    *(sys.executable, "-m", "tests.contract.doctored"),
                    *(str(folders[each]) for each in same),
                ],
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(tree), "VLLM_TARGET_DEVICE": "cpu"},
                capture_output=True,
                text=True,
                check=False,
            )
            print(run.stderr[-8000:])
            assert run.returncode == 0
        return facts_of(folders[change])

    return of


def installed(facts: dict[str, Any]) -> dict[str, float]:
    """`moriio_hook_installed` by hook, from /metrics."""
    found = {}
    for line in facts["metrics"]:
        if match := re.fullmatch(r'moriio_hook_installed\{.*hook="(\w+)".*\} (\S+)', line):
            found[match[1]] = float(match[2])
    return found


@pytest.mark.parametrize("change", UNKNOWN, ids=named)
def test_by_default_it_runs_exactly_as_upstream_wrote_it(facts: Any, change: Change) -> None:
    found = facts(change)
    assert found["trace"] == found["upstream's trace"]
    assert found["hooked"] == [False, False]
    assert found["upstream's methods"] == [True, True]


@pytest.mark.parametrize(
    "change",
    [change for change in UNKNOWN if "does nothing" not in change.name],
    ids=named,
)
def test_upstreams_own_wait_happens(facts: Any, change: Change) -> None:
    during_forward = facts(change)["trace"][0]
    assert [state for state, _ in during_forward] == ["landed"] * 4


@pytest.mark.parametrize(("change", "reason"), UNKNOWN.items(), ids=map(named, UNKNOWN))
def test_one_line_of_the_log_says_what_is_not_as_we_know_it(
    facts: Any, change: Change, reason: str
) -> None:
    [(level, line)] = facts(change)["lines"]
    assert level == "ERROR"
    assert reason in line
    assert "runs as upstream wrote it and its reads are not observed" in line


@pytest.mark.parametrize("change", UNKNOWN, ids=named)
def test_metrics_say_that_no_hook_is_in_force_and_what_is_configured(
    facts: Any, change: Change
) -> None:
    found = facts(change)
    assert set(installed(found).values()) == {0}
    assert {"read_blocks", "send_notify", "barrier"} < set(installed(found))
    [info] = [line for line in found["metrics"] if line.startswith("moriio_config_info{")]
    assert 'mode="read"' in info
    assert 'barrier="auto"' in info


@pytest.mark.parametrize(("change", "reason"), UNKNOWN.items(), ids=map(named, UNKNOWN))
def test_a_barrier_that_was_asked_for_refuses_to_start(
    facts: Any, change: Change, reason: str
) -> None:
    refusal = facts(change)["refusal"]
    assert "kv_connector_extra_config.observed.barrier" in refusal
    assert "'step' cannot be honoured on this vLLM" in refusal
    assert reason in refusal
    assert "remove it or use 'upstream'" in refusal


def test_a_module_that_has_moved_is_one_clear_error(facts: Any) -> None:
    refused = facts(MOVED)["refused"]
    assert refused.startswith("moriio_observed cannot use this vLLM's MoRIIO connector: ")
    assert "moriio_common" in refused
    assert "go back to kv_connector MoRIIOConnector" in refused


@pytest.mark.parametrize("change", KNOWN, ids=named)
def test_what_changes_nothing_for_us_is_known(facts: Any, change: Change) -> None:
    found = facts(change)
    assert set(installed(found).values()) == {1}
    assert 'moriio_reads_posted_total{engine="0",model_name="m"} 4.0' in found["metrics"]
    assert [level for level, _ in found["lines"]] == ["INFO"] * len(found["lines"])
    assert found["refusal"] is None


@pytest.mark.parametrize("change", UNSEEN, ids=named)
def test_reads_that_we_do_not_see_are_left_to_upstreams_wait(facts: Any, change: Change) -> None:
    found = facts(change)
    during_forward = found["trace"][0]
    assert [state for state, _ in during_forward] == ["landed"] * 4
    assert (
        found["trace"][1:] == found["upstream's trace"][1:]
        or found["trace"][2:] == (found["upstream's trace"][2:])
    )
    assert set(installed(found).values()) == {0}
    [error] = [line for level, line in found["lines"] if level == "ERROR"]
    assert "upstream's own READ barrier is in force" in error


def test_an_edit_that_matches_nothing_is_an_error(tmp_path: Path) -> None:
    change = Change("nothing", "0.32.0", ((r"no_such_name", ""),))
    with pytest.raises(ValueError, match=r"nothing in 0\.32\.0 matches 'no_such_name'"):
        doctor(change, source_tree("0.32.0"), tmp_path)


# --- what only the built objects can tell, and what the checks are made of --------------------


@pytest.fixture
def unbuilt(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker whose class still speaks of its reads, but which is built without them."""

    class Worker(scripted.ScriptedWorker):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            del self._recving_transfers

    monkeypatch.setattr(scripted, "ScriptedWorker", Worker)


@pytest.fixture(autouse=True)
def _nothing_was_said_before() -> None:
    _say_unknown.cache_clear()


def test_a_method_that_has_gone_is_no_reason_not_to_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for owner in (upstream.MoRIIOConnector, KVConnectorBase_V1):
        monkeypatch.delattr(owner, "get_block_ids_with_load_errors")
    with caplog.at_level(logging.ERROR, logger="vllm.moriio_observed"):
        d = scripted.Decode(monkeypatch)
    assert not hasattr(d.worker, "_moriio_observed")
    assert "MoRIIOConnector.get_block_ids_with_load_errors: not there" in caplog.text


def test_a_worker_that_is_a_subclass_of_upstreams_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Worker(moriio.moriio_connector.MoRIIOConnectorWorker):
        def start_load_kv(self, *args: Any, **kwargs: Any) -> Any:
            return super().start_load_kv(*args, **kwargs)

    monkeypatch.setattr(moriio.moriio_connector, "MoRIIOConnectorWorker", Worker)
    assert upstream.Seams.detect().missing == ()


def test_a_parameter_that_is_taken_by_keyword_only_is_another_shape() -> None:
    class Connector:
        def get_finished(self, *, finished_req_ids: set[str]) -> None: ...

    fault = Shape(("finished_req_ids",)).fault(Connector, "get_finished")
    assert fault == "its parameters are taken by keyword only"


def test_a_check_by_name_that_cannot_be_run_is_no_reason_not_to_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = SimpleNamespace(
        kv_transfer_config=SimpleNamespace(kv_connector="Ours"),
        _verify_aux_output_compatibility=lambda more: None,
    )
    with caplog.at_level(logging.WARNING, logger="vllm.moriio_observed"):
        upstream.by_name.check(config)
    assert "cannot be run" in caplog.text
    assert config.kv_transfer_config.kv_connector == "Ours"


def test_a_hook_bound_on_the_built_object_would_never_be_reached(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Worker(scripted.ScriptedWorker):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            wrapper = self.moriio_wrapper
            wrapper.read_remote_data = wrapper.read_remote_data

    monkeypatch.setattr(scripted, "ScriptedWorker", Worker)
    with caplog.at_level(logging.ERROR, logger="vllm.moriio_observed"):
        scripted.Decode(monkeypatch)
    assert "read_remote_data: bound on the object itself" in caplog.text


def test_what_was_built_is_looked_at_and_not_what_the_module_has(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    built = upstream.MoRIIOConnector.__init__

    class Worker(scripted.ScriptedWorker):
        def wait_for_layer_load(self, layer_name: str) -> None:
            """Waits in a way of its own."""

    def of_its_own(self: Any, config: Any, *args: Any) -> None:
        built(self, config, *args)
        self.connector_worker = Worker(config)

    monkeypatch.setattr(upstream.MoRIIOConnector, "__init__", of_its_own)
    with caplog.at_level(logging.ERROR, logger="vllm.moriio_observed"):
        d = scripted.Decode(monkeypatch)
    assert not hasattr(d.worker, "_moriio_observed")
    assert "Worker.wait_for_layer_load is not vLLM's" in caplog.text


def test_upstreams_name_with_our_module_path_is_ours() -> None:
    config = KVTransferConfig(
        kv_connector="MoRIIOConnector",
        kv_connector_module_path="moriio_observed.connector",
        kv_role="kv_consumer",
    )
    assert KVConnectorFactory.get_connector_class(config) is ObservedMoRIIOConnector


@pytest.mark.usefixtures("unbuilt")
def test_a_worker_built_without_what_we_read_claims_no_protection_of_full_graphs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    d = scripted.Decode(monkeypatch, graphs=CUDAGraphMode.FULL)
    gauges = d.connector._aggregate.cumulative()["gauges"]
    assert gauges["full_graph_protected"]["rank 0"][1] == 0


@pytest.mark.usefixtures("unbuilt")
def test_a_worker_built_without_what_we_read_is_not_hooked(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, logger="vllm.moriio_observed"):
        d = scripted.Decode(monkeypatch)
    assert not hasattr(d.worker, "_moriio_observed")
    assert "(_recving_transfers: not there)" in caplog.text


@pytest.mark.usefixtures("unbuilt")
def test_a_worker_built_without_what_we_read_refuses_a_barrier_that_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(SettingsError, match="_recving_transfers: not there"):
        scripted.Decode(monkeypatch, {"barrier": "step"})


@pytest.mark.usefixtures("unbuilt")
def test_upstreams_own_barrier_can_be_asked_for_whatever_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    d = scripted.Decode(monkeypatch, {"barrier": "upstream"})
    assert not hasattr(d.worker, "_moriio_observed")


def test_a_connector_that_keeps_its_worker_elsewhere_still_has_statistics(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    built = upstream.MoRIIOConnector.__init__

    def elsewhere(self: Any, *args: Any) -> None:
        built(self, *args)
        self.worker_side = vars(self).pop("connector_worker")
        del self.connector_scheduler

    config = scripted.Decode(monkeypatch).config
    monkeypatch.setattr(upstream.MoRIIOConnector, "__init__", elsewhere)
    monkeypatch.setattr("moriio_observed.connector.LOOK_S", 0)
    monkeypatch.setattr("moriio_observed.connector.FLUSH_S", 0)
    with caplog.at_level(logging.ERROR, logger="vllm.moriio_observed"):
        connector = ObservedMoRIIOConnector(
            config,
            KVConnectorRole.WORKER,
            SimpleNamespace(kv_cache_groups=[], transfer_groups=[]),
        )
        stats = connector.get_kv_connector_stats()
    assert stats is not None
    assert stats.data["gauges"]["hook_installed|read_blocks"]["rank 0"][1] == 0
    [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "connector_worker and connector_scheduler: neither is there" in record.getMessage()


def test_a_method_whose_parameters_nobody_can_read_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scripted.ScriptedWorker, "_read_blocks", type, raising=False)
    monkeypatch.setattr(moriio.moriio_connector, "MoRIIOConnectorWorker", scripted.ScriptedWorker)
    assert "read_blocks: its parameters cannot be read" in upstream.Seams.detect().missing


def shape(method: Callable[..., Any]) -> tuple[list[str], bool]:
    """The parameters a method names after `self`, and whether it passes others on."""
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = list(inspect.signature(method).parameters.values())[1:]
    named = [each.name for each in parameters if each.kind not in variable]
    return named, len(named) < len(parameters)


@pytest.mark.parametrize(
    ("ours", "shapes"),
    [
        (ObservedMoRIIOConnector, seams.CONNECTOR_SEAMS),
        (
            mixins.ObservedWorker,
            seams.WORKER_SEAMS | {seams.STEP_WAIT: seams.STEP_WAIT_SHAPE},
        ),
        (mixins.ObservedWrapper, seams.WRAPPER_SEAMS),
    ],
)
def test_the_shapes_that_are_checked_are_those_of_our_own_methods(ours: type, shapes: Any) -> None:
    for name, expected in shapes.items():
        assert shape(getattr(ours, name)) == (list(expected.takes), expected.passes_on), name


def test_every_method_of_upstreams_that_ours_stands_in_front_of_is_checked() -> None:
    ours = {
        name
        for owner in (ObservedMoRIIOConnector, SchedulerSide, WorkerSide)
        for name, method in vars(owner).items()
        if inspect.isfunction(method) and hasattr(upstream.MoRIIOConnector, name)
    }
    assert ours - {"__init__", "get_kv_connector_stats"} == set(upstream.OVERRIDDEN)


def test_a_mode_that_nobody_can_read_is_said_to_be_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(moriio.moriio_common, "get_moriio_mode")
    assert upstream.mode_name(None) == "unknown"
