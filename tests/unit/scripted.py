"""A decode worker of the installed vLLM whose reads a test lands: upstream's own methods run.

Only what needs a GPU, a network or a peer is replaced: the construction of the worker, the
handshake, the sessions and the offsets. Posting, waiting and clean-up are upstream's.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.config import CUDAGraphMode, KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.moriio import moriio_connector
from vllm.distributed.kv_transfer.kv_connector.v1.moriio.moriio_common import (
    ROLE,
    MoRIIOConnectorMetadata,
    ReqMeta,
    get_moriio_mode,
    set_role,
)
from vllm.forward_context import override_forward_context

from moriio_observed import upstream
from moriio_observed.connector import ObservedMoRIIOConnector
from tests.unit.fakes import FakeStatus


def layer_names(count: int) -> list[str]:
    """Names as vLLM gives them."""
    return [f"model.layers.{index}.self_attn.attn" for index in range(count)]


LAYERS = layer_names(4)
TRANSFER_TIMEOUT_S = 0.05


class Session:
    """Posts reads whose end the test decides.

    The first `rejections` posts find the send queue full; the next `failures` fail at once.
    """

    def __init__(self) -> None:
        self.posted: list[FakeStatus] = []
        self.rejections = 0
        self.failures = 0

    def batch_read(self, *_: Any) -> FakeStatus:
        if self.rejections:
            self.rejections -= 1
            return RejectedStatus()
        status = FakeStatus()
        self.posted.append(status)
        if self.failures:
            self.failures -= 1
            status.fail()
        return status


class RejectedStatus(FakeStatus):
    def __init__(self) -> None:
        super().__init__()
        self.fail()

    def Message(self) -> str:  # noqa: N802
        return "post failed: SQ full"


class Engine:
    """No events to wait for and no peer failures, like an old mori."""

    def allocate_transfer_uid(self) -> int:
        return 1


class ScriptedWorker(moriio_connector.MoRIIOConnectorWorker):
    """Upstream's decode worker in READ mode, built without devices."""

    def __init__(self, vllm_config: Any, *_: Any) -> None:
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        self.layers = layer_names(vllm_config.model_config.hf_text_config.num_hidden_layers)
        timeouts = upstream.deadlines(extra)
        self.is_producer = vllm_config.kv_transfer_config.is_kv_producer
        set_role(ROLE.PRODUCER if self.is_producer else ROLE.CONSUMER)
        self.mode = get_moriio_mode(vllm_config.kv_transfer_config)
        self.tp_rank = self._rank = 0
        self.world_size = 1
        self.moriio_config = SimpleNamespace(
            transfer_timeout=timeouts.transfer_timeout,
            recv_abort_timeout=timeouts.recv_abort_timeout,
            backend="rdma",
        )
        self.moriio_engine = Engine()
        self.moriio_wrapper = moriio_connector.MoRIIOWrapper(
            transfer_timeout=timeouts.transfer_timeout
        )
        self.moriio_wrapper.set_moriio_engine(self.moriio_engine)
        self.moriio_wrapper.local_memory_registered = True
        self.moriio_wrapper.notify_thread = threading.current_thread()
        self.moriio_wrapper.notify_port = 1
        self.released: list[str] = []
        self.session = Session()
        self._recving_transfers: Any = defaultdict(dict)
        self._recving_transfers_start: dict[str, float] = {}
        self._recving_transfers_callback_addr: dict[str, Any] = {}
        self._recving_local_blocks: dict[str, list[int]] = {}
        self._invalid_block_ids: set[int] = set()
        self._reads_issued_this_step: list[Any] = []
        self._mamba_reads_this_step: list[Any] = []
        self._ready_requests: Any = SimpleNamespace(empty=lambda: True)
        self._reqs_to_send: dict[str, float] = {}
        self._eager_handshaked_engines = {"127.0.0.1:7301"}
        self._remote_agents: dict[str, set[str]] = {}
        self._handshake_lock = threading.RLock()
        self._has_mamba = False
        self.use_mla = False
        self.load_ready_flag: dict[str, bool] = {}
        self.layer_name_to_local_kv_cache_metadata = {name: [b""] for name in self.layers}
        self.layer_to_group = dict.fromkeys(self.layers, 0)
        self.layer_to_spec: dict[str, Any] = {}
        self.mamba_layers: set[str] = set()
        self.kv_caches = dict.fromkeys(self.layers)
        self.transfer_id_to_request_id: dict[str, str] = {}
        self._consumer_notification_counts: dict[str, int] = {}
        self._completed_consumer_notifications: set[str] = set()
        self._heartbeat = None
        self._pending_unmapped_acks: list[Any] = []

    def shutdown(self) -> None:
        """Nothing was started."""

    def make_hybrid(self) -> None:
        """Have load errors that the scheduler cannot recover, as a model with recurrent state."""
        self._has_mamba = True
        self._num_mamba_transfer_groups = 0

    def _is_mamba_layer(self, layer_name: str) -> bool:
        return layer_name in self.mamba_layers

    def _mamba_blocks_for_layer(self, layer_name: str, block_ids: Any) -> list[int]:
        return list(block_ids[0])

    def _post_mamba_reads(self, layer_name: str, *_: Any, **__: Any) -> list[Any]:
        return [self.moriio_wrapper.read_remote_data([4096], [0], [0], self.session)]

    def _mamba_tp_ratio(self, remote_tp_size: int | None) -> int:
        return 1

    def _eager_handshake_all_dp_ranks(self, metadata: Any) -> None:
        """The peer is there."""

    def _get_built_session(self, remote_engine_id: Any) -> Any:
        return [self.session] * len(self.layers), SimpleNamespace(num_blocks=8)

    def _region_session_indices(self, layer_name: str) -> list[int]:
        return [self.layers.index(layer_name)]

    def _compute_block_transfer_offsets(
        self, layer_name: str, local: Any, remote: Any, *_: Any, **__: Any
    ) -> Any:
        return [0] * len(local), [0] * len(remote), [4096] * len(local)

    def _compute_read_attention_offsets(
        self, layer_name: str, local: Any, remote: Any, *_: Any
    ) -> Any:
        return self._compute_block_transfer_offsets(layer_name, local, remote)


class Decode:
    """A decode engine's worker side, one step at a time."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        observed: Mapping[str, Any] | None = None,
        role: str = "kv_consumer",
        connector: type = ObservedMoRIIOConnector,
        layers: int = len(LAYERS),
        graphs: CUDAGraphMode = CUDAGraphMode.NONE,
        **extra: Any,
    ) -> None:
        monkeypatch.setattr(moriio_connector, "MoRIIOConnectorWorker", ScriptedWorker)
        transfer = KVTransferConfig(
            kv_connector="ObservedMoRIIOConnector",
            kv_connector_module_path="moriio_observed.connector",
            kv_role=role,
            kv_load_failure_policy="recompute",
            kv_connector_extra_config={
                "read_mode": True,
                "host_ip": "127.0.0.1",
                "http_port": 8300,
                "handshake_port": 7301,
                "notify_port": 62005,
                "transfer_timeout": TRANSFER_TIMEOUT_S,
                **({"observed": dict(observed)} if observed is not None else {}),
                **extra,
            },
        )
        self.config = SimpleNamespace(
            kv_transfer_config=transfer,
            compilation_config=SimpleNamespace(cudagraph_mode=graphs),
            use_v2_model_runner=False,
            parallel_config=SimpleNamespace(tensor_parallel_size=1, world_size=1),
            cache_config=SimpleNamespace(block_size=16),
            model_config=SimpleNamespace(hf_text_config=SimpleNamespace(num_hidden_layers=layers)),
        )
        self.connector: Any = connector(
            self.config,
            KVConnectorRole.WORKER,
            SimpleNamespace(kv_cache_groups=[], transfer_groups=[]),
        )
        self.worker: Any = self.connector.connector_worker
        self.sent: list[tuple[str, ...]] = []
        # The network's end: what upstream sends is noted instead.
        sock = SimpleNamespace(
            send=lambda message: self.sent.append((message,)), close=lambda **_: None
        )
        self.worker.moriio_wrapper.paths = defaultdict(lambda: sock)
        self.worker.moriio_wrapper.paths["tcp://127.0.0.1:62005"] = sock

    def metadata(
        self,
        reading: Iterable[str],
        scheduled: Iterable[str],
        *,
        loads_first: bool | None = True,
        finished: Iterable[str] = (),
        traceparents: Mapping[str, str] | None = None,
    ) -> MoRIIOConnectorMetadata:
        metadata = MoRIIOConnectorMetadata()
        for request_id in reading:
            metadata.reqs_to_recv[request_id] = request_meta(request_id)
        upstream.attach_notes(
            metadata,
            SimpleNamespace(
                num_scheduled_tokens=dict.fromkeys(scheduled, 1),
                has_sync_kv_loads=loads_first,
                finished_req_ids=set(finished),
                preempted_req_ids=None,
            ),
            traceparents=traceparents,
        )
        return metadata

    def step(
        self,
        *scheduled: str,
        reading: Iterable[str] = (),
        mode: str = "NONE",
        layers: Iterable[str] = LAYERS,
        finished: set[str] | None = None,
        during: Any = None,
        loads_first: bool | None = True,
        load_kwargs: Mapping[str, Any] | None = None,
        hidden: bool = False,
        traceparents: Mapping[str, str] | None = None,
    ) -> Any:
        """Run one step in the order of Model Runner V1, or V2's FULL path if `hidden`."""
        connector = self.connector
        context = SimpleNamespace(
            attn_metadata=None if hidden else {"there": True},
            cudagraph_runtime_mode=CUDAGraphMode[mode],
        )
        metadata = self.metadata(
            reading,
            scheduled,
            loads_first=loads_first,
            finished=finished or (),
            traceparents=traceparents,
        )
        with override_forward_context(None if hidden else context):
            connector.bind_connector_metadata(metadata)
        with override_forward_context(context):
            if loads_first is not False:
                connector.start_load_kv(context, **(load_kwargs or {}))
            for name in layers:
                connector.wait_for_layer_load(name)
            if during is not None:
                during()
            if loads_first is False:
                connector.start_load_kv(context, **(load_kwargs or {}))
            results = getattr(connector, "get_transfer_results", connector.get_finished)
            results(finished or set())
            invalid = connector.get_block_ids_with_load_errors()
            stats = connector.get_kv_connector_stats()
            connector.clear_connector_metadata()
        return SimpleNamespace(stats=stats, invalid=invalid)

    def counted(self, prefix: str) -> dict[str, float]:
        counters = self.connector._aggregate.cumulative()["counters"]
        return {key: value for key, value in counters.items() if key.startswith(prefix) and value}


def request_meta(request_id: str) -> ReqMeta:
    grouped = "BlockIds" in str(ReqMeta.__annotations__["local_block_ids"]) or not str(
        ReqMeta.__annotations__["local_block_ids"]
    ).startswith("list[int]")
    blocks: Any = [[1, 2]] if grouped else [1, 2]
    values: dict[str, Any] = {
        "transfer_id": f"tx-{request_id}",
        "local_block_ids": blocks,
        "remote_block_ids": blocks,
        "remote_host": "127.0.0.1",
        "remote_port": 7301,
        "remote_handshake_port": 7301,
        "remote_notify_port": 62005,
        "remote_engine_id": "127.0.0.1:7301",
        "tp_size": 1,
        "remote_dp_size": 1,
    }
    return ReqMeta(**{k: v for k, v in values.items() if k in ReqMeta.__annotations__})
