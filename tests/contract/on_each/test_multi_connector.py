"""Ours beside other connectors under this version's MultiConnector, all the way to /metrics.

Two TP ranks' workers, vLLM's aggregation over them, the scheduler's own share, the wire, and the
API server's log line and Prometheus page.
"""

from __future__ import annotations

import importlib
import pickle
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import REGISTRY, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
)
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorLogging,
    KVConnectorProm,
    KVConnectorPromMetrics,
    KVConnectorStats,
)
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import (
    MultiConnector,
    MultiKVConnectorMetadata,
)
from vllm.v1.metrics.stats import SchedulerStats
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

import moriio_observed
from moriio_observed import loopback, plugin

loopback.activate({"MORIIO_OBSERVED_LOOPBACK": "auto"})

from vllm.distributed.kv_transfer.kv_connector.v1.moriio import moriio_connector  # noqa: E402

from moriio_observed.connector import ObservedMoRIIOConnector  # noqa: E402
from moriio_observed.demo.faults import FaultFile  # noqa: E402
from moriio_observed.upstream.moriio import moriio_common  # noqa: E402
from tests.contract.on_each.decode import Decode  # noqa: E402
from tests.unit import scripted  # noqa: E402
from tests.unit.fakes import FakeStatus  # noqa: E402

BY_MODULE = {
    "kv_connector": "ObservedMoRIIOConnector",
    "kv_connector_module_path": "moriio_observed.connector",
}
BY_NAME = {"kv_connector": "MoRIIOConnector"}
KV_CACHE = SimpleNamespace(kv_cache_groups=[], transfer_groups=[])
ENGINES: dict[int, list[object]] = {0: ["m", "0"], 1: ["m", "1"]}


class Silent(KVConnectorBase_V1):
    """A connector that moves nothing and has no statistics."""

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Nothing to load."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing to wait for."""

    def save_kv_layer(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to save."""

    def wait_for_save(self) -> None:
        """Nothing to wait for."""

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Any:
        return 0, False

    def update_state_after_alloc(self, *args: Any) -> None:
        """Nothing was allocated."""

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        return KVConnectorMetadata()


@dataclass
class CountingStats(KVConnectorStats):
    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        return CountingStats({"steps": self.data["steps"] + other.data["steps"]})

    def reduce(self) -> dict[str, int | float]:
        return {"Steps": self.data["steps"]}

    def is_empty(self) -> bool:
        return not self.data


class CountingProm(KVConnectorPromMetrics):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.steps: Any = self._counter_cls(
            name="vllm:other_steps", documentation="Steps.", labelnames=self._labelnames
        )

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        labels = self.per_engine_labelvalues[engine_idx]
        self.steps.labels(*labels).inc(transfer_stats_data["steps"])


class Counting(Silent):
    """A connector with statistics of its own."""

    def get_kv_connector_stats(self) -> KVConnectorStats:
        return CountingStats({"steps": 1})

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KVConnectorStats:
        return CountingStats(data or {})

    @classmethod
    def build_prom_metrics(cls, *args: Any) -> KVConnectorPromMetrics:
        return CountingProm(*args)


@pytest.fixture(autouse=True)
def _own_registries(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    registry = {**KVConnectorFactory._registry, "Silent": lambda: Silent}
    monkeypatch.setattr(KVConnectorFactory, "_registry", registry | {"Counting": lambda: Counting})
    before = set(REGISTRY._collector_to_names)
    yield
    for collector in set(REGISTRY._collector_to_names) - before:
        REGISTRY.unregister(collector)


@pytest.fixture(params=[BY_MODULE, BY_NAME], ids=["by module path", "by name"])
def ours(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """How ours stands among the children."""
    if request.param is BY_NAME:
        monkeypatch.setenv("MORIIO_OBSERVED", "1")
        plugin.register()
    return dict(request.param)


class Multi(scripted.Decode):
    """A decode worker whose connector is MultiConnector: ours first, then the others.

    Args:
        monkeypatch: Replaces what needs a device.
        ours: How ours stands among the children.
        others: The other children, by name.
        rank: Its tensor parallel rank.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        ours: dict[str, str],
        *others: str,
        rank: int = 0,
    ) -> None:
        class Worker(scripted.ScriptedWorker):
            def __init__(self, *args: Any) -> None:
                super().__init__(*args)
                self.tp_rank = self._rank = rank
                self.world_size = 2

        def build(config: Any, role: KVConnectorRole, kv_cache: Any) -> MultiConnector:
            child = config.kv_transfer_config
            settings = {
                "kv_role": child.kv_role,
                "kv_load_failure_policy": child.kv_load_failure_policy,
                "kv_connector_extra_config": child.kv_connector_extra_config,
            }
            children = [{**ours, **settings}]
            children += [{"kv_connector": name, "kv_role": "kv_both"} for name in others]
            config.kv_transfer_config = KVTransferConfig(
                kv_connector="MultiConnector",
                kv_role=child.kv_role,
                kv_connector_extra_config={"connectors": children},
            )
            config.scheduler_config = SimpleNamespace(disable_hybrid_kv_cache_manager=True)
            config.parallel_config.tensor_parallel_size = 2
            multi: Any = MultiConnector(config, role, kv_cache)
            [multi.connector_worker, *_] = [
                each.connector_worker
                for each in multi._connectors
                if isinstance(each, ObservedMoRIIOConnector)
            ]
            return multi

        self.others = others
        with monkeypatch.context() as patch:
            patch.setattr(scripted, "ScriptedWorker", Worker)
            # A function that builds one stands for the class, which is only ever called.
            super().__init__(monkeypatch, connector=build)  # type: ignore[arg-type]
        self.worker.session = Landed()

    def metadata(self, *args: Any, **kwargs: Any) -> Any:
        own = super().metadata(*args, **kwargs)
        return MultiKVConnectorMetadata((own, *(KVConnectorMetadata() for _ in self.others)))


class Landed(scripted.Session):
    """Every read has landed as soon as it is posted."""

    def batch_read(self, *_: Any) -> FakeStatus:
        status = super().batch_read()
        status.land()
        return status


def schedulers_share(monkeypatch: pytest.MonkeyPatch, config: Any) -> KVConnectorStats:
    """What a scheduler's MultiConnector counts when a plain request claims external tokens."""

    class Scheduler(moriio_connector.MoRIIOConnectorScheduler):
        def __init__(self, vllm_config: Any, *_: Any) -> None:
            self.mode = moriio_common.get_moriio_mode(vllm_config.kv_transfer_config)
            self.is_producer = False
            self._reqs_need_recv: dict[str, Any] = {}
            self._req_kv_params: dict[str, Any] = {}
            self._deferred_send_deadlines: dict[str, Any] = {}

        def update_state_after_alloc(self, *_: Any) -> None:
            """No read will fill them."""

    monkeypatch.setattr(moriio_connector, "MoRIIOConnectorScheduler", Scheduler)
    scheduler = MultiConnector(config, KVConnectorRole.SCHEDULER, KV_CACHE)
    plain = SimpleNamespace(request_id="plain", num_preemptions=0)
    scheduler._connectors[0].update_state_after_alloc(plain, None, 16)
    stats: KVConnectorStats = scheduler.get_kv_connector_stats()
    return stats


def over_the_ranks(ranks: list[Multi]) -> KVConnectorStats:
    """One step of every rank, put together as the executor does."""
    outputs: list[Any] = []
    for rank in ranks:
        stats = rank.step("r", reading=["r"]).stats
        # From its process to the engine's.
        stats = pickle.loads(pickle.dumps(stats))  # noqa: S301
        output = KVConnectorOutput(kv_connector_stats=stats)
        outputs.append(SimpleNamespace(kv_connector_output=output))
    together: Any = KVOutputAggregator(len(ranks)).aggregate(outputs)
    stats = together.kv_connector_output.kv_connector_stats
    assert isinstance(stats, KVConnectorStats)
    return stats


def over_the_wire(stats: KVConnectorStats) -> Any:
    """To the API server: up to 0.29 vLLM sends `data`, from 0.30 what `to_dict` returns."""
    payload = stats.to_dict() if hasattr(KVConnectorStats, "to_dict") else stats.data
    sent = MsgpackEncoder().encode(SchedulerStats(kv_connector_stats=payload))
    return MsgpackDecoder(SchedulerStats).decode(sent).kv_connector_stats


@dataclass
class ApiServer:
    """What an API server shows of the statistics it gets."""

    config: Any

    def __post_init__(self) -> None:
        self.prometheus = KVConnectorProm(self.config, ["model_name", "engine"], ENGINES)
        self.log = KVConnectorLogging(self.config.kv_transfer_config)

    def observe(self, payload: Any, engine: int) -> None:
        self.log.observe(payload)
        self.prometheus.observe(payload, engine)

    def line(self) -> str:
        lines: list[str] = []
        self.log.log(log_fn=lambda text, *args: lines.append(text % args))
        return "".join(lines)

    def value(self, name: str, engine: str, **labels: str) -> float | None:
        wanted = {"model_name": "m", "engine": engine, **labels}
        for family in text_string_to_metric_families(generate_latest().decode()):
            for sample in family.samples:
                if sample.name == name and sample.labels == wanted:
                    return sample.value
        return None


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch, ours: dict[str, str]) -> ApiServer:
    """Engine 1 with two ranks has run one step, with a scheduler that saw a phantom hit."""
    ranks = [Multi(monkeypatch, ours, "Counting", "Silent", rank=rank) for rank in (0, 1)]
    stats = over_the_ranks(ranks).aggregate(schedulers_share(monkeypatch, ranks[0].config))
    server = ApiServer(ranks[0].config)
    server.observe(over_the_wire(stats), engine=1)
    return server


def test_counters_of_two_ranks_add_up_under_their_engines_label(served: ApiServer) -> None:
    assert served.value("moriio_reads_landed_total", "1") == 2 * len(scripted.LAYERS)
    assert served.value("moriio_requests_total", "1") == 2
    assert served.value("moriio_reads_landed_total", "0") == 0


def test_the_schedulers_own_share_arrives_too(served: ApiServer) -> None:
    phantoms = {"cause": "no_params", "action": "reported"}
    assert served.value("moriio_phantom_hits_total", "1", **phantoms) == 1


def test_each_rank_has_its_own_gauges(served: ApiServer) -> None:
    for rank in ("0", "1"):
        assert served.value("moriio_reads_in_flight", "1", tp_rank=rank) == 0


def test_a_hook_is_in_force_where_it_is_on_every_rank(served: ApiServer) -> None:
    assert served.value("moriio_hook_installed", "1", hook="read_blocks") == 1


def test_the_configuration_shown_is_our_childs(served: ApiServer) -> None:
    assert 'barrier="auto",cudagraph_mode="NONE"' in generate_latest().decode()
    assert served.value("moriio_transfer_timeout_seconds", "0") == scripted.TRANSFER_TIMEOUT_S


def test_a_neighbour_with_statistics_keeps_them(served: ApiServer) -> None:
    # Two workers and the scheduler say one each.
    assert served.value("vllm:other_steps_total", "1") == 3


def test_the_log_line_tells_the_children_apart(served: ApiServer) -> None:
    line = served.line()
    assert "Counting={'Steps': 3}" in line
    assert "ObservedMoRIIOConnector={'Requests read': 2, 'Reads landed': 8" in line


def test_beside_a_neighbour_without_statistics_ours_are_all_there_is(
    monkeypatch: pytest.MonkeyPatch, ours: dict[str, str]
) -> None:
    rank = Multi(monkeypatch, ours, "Silent")
    server = ApiServer(rank.config)
    server.observe(over_the_wire(over_the_ranks([rank])), engine=0)
    assert server.value("moriio_requests_total", "0") == 1
    assert server.line().startswith("KV Transfer metrics: ObservedMoRIIOConnector={")


def test_engines_are_told_apart(monkeypatch: pytest.MonkeyPatch, ours: dict[str, str]) -> None:
    rank = Multi(monkeypatch, ours, "Silent")
    server = ApiServer(rank.config)
    for engine in (0, 1, 1):
        server.observe(over_the_wire(over_the_ranks([rank])), engine)
    assert server.value("moriio_requests_total", "0") == 1
    assert server.value("moriio_requests_total", "1") == 2


def test_loading_ours_by_module_path_makes_it_known_by_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """MultiConnector looks the class of statistics up by it."""
    name = ObservedMoRIIOConnector.__name__
    monkeypatch.setattr(KVConnectorFactory, "_registry", {})
    # As where no plugin of ours has been loaded before.
    monkeypatch.setattr(moriio_observed, "connector", sys.modules["moriio_observed.connector"])
    monkeypatch.delitem(sys.modules, "moriio_observed.connector")
    module = importlib.import_module("moriio_observed.connector")
    assert KVConnectorFactory.get_connector_class_by_name(name) is getattr(module, name)


def test_a_child_that_is_misconfigured_refuses_to_start_by_name(
    monkeypatch: pytest.MonkeyPatch, ours: dict[str, str]
) -> None:
    extra = {"read_mode": True, "observed": {"barier": "step"}}
    children = [{**ours, "kv_role": "kv_consumer", "kv_connector_extra_config": extra}]
    with pytest.raises(ValueError, match="did you mean barrier"):
        MultiConnector.requires_piecewise_for_cudagraph({"connectors": children})


@pytest.mark.parametrize("guard", ["recompute", "fail"])
def test_the_guard_holds_beside_others(
    decode: Callable[..., Decode], faults: FaultFile, guard: str
) -> None:
    d = decode(guard=guard, deadline_s=2, beside=["Counting", "Silent"])
    failed = {"requests": [0], "layers": [0], "fail": True}
    hung = {"requests": [1], "layers": [2], "hang": True}
    faults.set({"reset_ordinals": True, "rules": [failed, hung, {"latency_s": 0.2}]})
    harmed, well = (
        [d.ask(range(start, start + 40)) for start in some] for some in ((10, 20), (30, 40))
    )
    d.serve()
    assert all(d.is_right(*well))
    assert d.is_right(*harmed) == [guard == "recompute"] * 2
    ids = [each.request_id for each in harmed]
    assert d.errors() == ([] if guard == "recompute" else ids)
    assert (d.exposed("failed"), d.exposed("timeout")) == ({ids[0]}, {ids[1]})
    assert d.salad == set()
    assert d.gauge("quarantined_blocks") == 3
    d.land_what_hangs()
    d.flush_until(d.settled)
    assert d.released()
