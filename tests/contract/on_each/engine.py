"""One vLLM engine without a device: this version's own scheduler, connector and runner glue.

Only the model is ours (`cache.py`): it attends layer by layer and sees whether the KV it reads is
right. Everything between is this version's: the scheduler decides, the runner's glue calls the
connector in its own order, MoRIIO posts its reads over the loopback, and they move real bytes.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from vllm.config import CUDAGraphMode, KVTransferConfig, set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.distributed.kv_transfer import kv_transfer_state
from vllm.engine.arg_utils import EngineArgs
from vllm.forward_context import set_forward_context
from vllm.model_executor.layers.attention.kv_transfer_utils import maybe_transfer_kv_layer
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import FinishReason, core
from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager
from vllm.v1.worker.gpu.kv_connector import get_kv_connector
from vllm.v1.worker.kv_connector_model_runner_mixin import KVConnectorModelRunnerMixin

from moriio_observed.demo.ports import HOST, free_ports
from moriio_observed.demo.server import Ports
from tests.contract.on_each.cache import (
    CONV_STATE,
    HEAD_SIZE,
    HEADS,
    SSM_STATE,
    Cache,
    States,
    next_token,
)

BLOCK_SIZE = 16
BLOCKS = 256
MAX_MODEL_LEN = 512
NO_TOKEN = 0
"""Where the scheduler counts on a token that nobody has sampled."""
LAYERS = tuple(f"model.layers.{index}.self_attn.attn" for index in range(4))

_free = free_ports()


def take_ports() -> Ports:
    """Ports nobody else has."""
    return Ports.take(_free)


@dataclass
class Step:
    """What one step of an engine brought.

    Attributes:
        tokens: What was served, per request.
        wrong: Requests whose attention read KV that was not right, served or not.
        finished: What the router is told of a request that has ended.
        stats: The statistics that left with the step, as the API server gets them.
        invalid: Blocks that were reported to the scheduler as not loaded.
        errors: Requests that were answered with an error.
    """

    tokens: dict[str, list[int]] = field(default_factory=dict)
    wrong: set[str] = field(default_factory=set)
    finished: dict[str, Any] = field(default_factory=dict)
    stats: Any = None
    invalid: set[int] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)


class Engine:
    """One prefill or decode engine in this process; one at a time, as vLLM has it.

    Args:
        model: The folder of the tiny model whose configuration the engine has.
        transfer: Its `--kv-transfer-config`, ports filled in.
        runner: `V1` or `V2`: whose glue calls the connector.
        graphs: The CUDA graphs that are configured.
        recurrent: Layers that keep recurrent state, as many as there are attention layers, which
            makes the model a hybrid.
        ahead: Whether a step is scheduled and run before the scheduler knows what came of the one
            before: async scheduling, vLLM's default on GPUs.
    """

    def __init__(
        self,
        model: Path,
        transfer: Mapping[str, Any],
        *,
        runner: str = "V1",
        graphs: CUDAGraphMode = CUDAGraphMode.NONE,
        recurrent: Sequence[str] = (),
        ahead: bool = False,
    ) -> None:
        self.runner = runner
        self.ahead = ahead
        self._flying: deque[_Flying] = deque()
        self.config = self._configure(model, transfer, graphs, recurrent, ahead=ahead)
        spec = FullAttentionSpec(
            block_size=BLOCK_SIZE, num_kv_heads=HEADS, head_size=HEAD_SIZE, dtype=torch.float32
        )
        specs = dict.fromkeys(LAYERS, spec) | dict.fromkeys(recurrent, _recurrent_spec(spec))
        with set_current_vllm_config(self.config):
            _join_distributed()
            memory = spec.page_size_bytes * len(LAYERS) * BLOCKS
            caches = _plan(self.config, specs, memory)
            self.config.cache_config.num_gpu_blocks = caches.num_blocks
            self.cache = Cache(LAYERS, caches.num_blocks, BLOCK_SIZE)
            # vLLM lays a hybrid's groups over the same memory: a block belongs to one of them.
            pages = map(self.cache.pages, LAYERS)
            self.states = States(dict(zip(recurrent, pages, strict=False)))
            tensors = self.cache.tensors | self.states.tensors
            kv_transfer_state.ensure_kv_transfer_initialized(self.config, caches)
            self.connector = kv_transfer_state.get_kv_transfer_group()
            if runner == "V2":
                self.glue: Any = get_kv_connector(self.config, tensors)
            else:
                self.connector.register_kv_caches(tensors)
            sizes = core.resolve_kv_cache_block_sizes(caches, self.config)
            self.scheduler = (AsyncScheduler if ahead else Scheduler)(
                vllm_config=self.config,
                kv_cache_config=caches,
                structured_output_manager=StructuredOutputManager(self.config),
                block_size=sizes[0],
                hash_block_size=sizes[1],
                log_stats=True,
            )
        init_none_hash(sha256)
        self._hasher = get_request_block_hasher(sizes[1], sha256)

    @staticmethod
    def _configure(
        model: Path,
        transfer: Mapping[str, Any],
        graphs: CUDAGraphMode,
        recurrent: Sequence[str],
        *,
        ahead: bool,
    ) -> Any:
        config = EngineArgs(
            model=str(model),
            dtype="float32",
            enforce_eager=True,
            block_size=BLOCK_SIZE,
            max_num_seqs=32,
            max_num_batched_tokens=1024,
            max_model_len=MAX_MODEL_LEN,
            async_scheduling=False,
            # Without it recurrent state needs one block for a request.
            enable_prefix_caching=not recurrent,
            kv_transfer_config=KVTransferConfig(**transfer),
        ).create_engine_config()
        config.compilation_config.cudagraph_mode = graphs
        # Not before: a device that is a CPU takes it back.
        config.scheduler_config.async_scheduling = ahead
        if getattr(config.cache_config, "kv_cache_layout", "") is None:
            # From 0.29 the engine core resolves it by what the attention backends can do.
            config.cache_config.kv_cache_layout = "LBNHC"
        for name in (*LAYERS, *recurrent):
            config.compilation_config.static_forward_context[name] = SimpleNamespace(kv_cache=None)
        return config

    def shutdown(self) -> None:
        """Take the engine down, as a worker that exits does."""
        self.scheduler.shutdown()
        kv_transfer_state.ensure_kv_transfer_shutdown()

    # What the front end does.

    def add(
        self,
        request_id: str,
        prompt: Sequence[int],
        *,
        max_tokens: int,
        params: Mapping[str, Any] | None = None,
        traceparent: str | None = None,
    ) -> None:
        """Add a request; `params` are its `kv_transfer_params`."""
        extra = {"extra_args": {"kv_transfer_params": dict(params)}} if params else {}
        sampling = SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True, **extra)
        self.scheduler.add_request(
            Request(
                request_id=request_id,
                prompt_token_ids=list(prompt),
                sampling_params=sampling,
                pooling_params=None,
                block_hasher=self._hasher,
                trace_headers={"traceparent": traceparent} if traceparent else None,
            )
        )

    def abort(self, *request_ids: str) -> None:
        """The clients of these requests have gone."""
        from vllm.v1.request import RequestStatus

        self.scheduler.finish_requests(set(request_ids), RequestStatus.FINISHED_ABORTED)

    def preempt(self) -> None:
        """Preempt all that runs, for others that use up the whole cache meanwhile."""
        self.scheduler.reset_prefix_cache(reset_running_requests=True)
        self.cache.forget()

    # What the engine core does.

    def step(self, graph: str = "NONE") -> Step:
        """Run one step, its forward as under this CUDA graph runtime mode.

        Under FULL no Python runs between the layers, so no layer hook is called. An engine that
        runs ahead brings what came of the step before.
        """
        self._flying.append(self._launch(graph))
        return Step() if len(self._flying) <= self.ahead else self._land(self._flying.popleft())

    def tokens(self, request_id: str) -> list[int]:
        """A request's tokens so far, those included that the scheduler does not know yet."""
        sampled = (token for each in self._flying for token in each.sampled(request_id))
        return [*self.scheduler.requests[request_id].all_token_ids, *sampled]

    def _launch(self, graph: str) -> _Flying:
        scheduled = self.scheduler.schedule()
        forward = _Forward(self, scheduled)
        connector_output = self._execute(scheduled, graph, forward)
        request_ids = list(scheduled.num_scheduled_tokens)
        output = ModelRunnerOutput(
            req_ids=request_ids,
            req_id_to_index={request_id: i for i, request_id in enumerate(request_ids)},
            sampled_token_ids=forward.sample(),
            kv_connector_output=connector_output,
        )
        return _Flying(scheduled, output, forward.wrong)

    def _land(self, flying: _Flying) -> Step:
        step = Step(wrong=flying.wrong)
        if (connector_output := flying.output.kv_connector_output) is not None:
            step.invalid = set(connector_output.invalid_block_ids)
        for outputs in self.scheduler.update_from_output(flying.scheduled, flying.output).values():
            for each in outputs.outputs:
                step.tokens[each.request_id] = list(each.new_token_ids)
                if each.finish_reason is not None:
                    step.finished[each.request_id] = each.kv_transfer_params
                if each.finish_reason is FinishReason.ERROR:
                    step.errors.append(each.request_id)
            if outputs.scheduler_stats is not None:
                step.stats = outputs.scheduler_stats.kv_connector_stats
        return step

    def _execute(self, scheduled: Any, graph: str, forward: _Forward) -> Any:
        if not scheduled.total_num_scheduled_tokens:
            if self.runner == "V2":
                return self.glue.no_forward(scheduled).kv_connector_output
            return KVConnectorModelRunnerMixin.kv_connector_no_forward(
                scheduled, self.config
            ).kv_connector_output
        run = self._run_v2 if self.runner == "V2" else self._run_v1
        return run(scheduled, CUDAGraphMode[graph], forward)

    def _run_v1(self, scheduled: Any, mode: CUDAGraphMode, forward: _Forward) -> Any:
        with (
            self._forward_context(mode),
            KVConnectorModelRunnerMixin.maybe_get_kv_connector_output(scheduled) as output,
        ):
            forward.run(hooked=mode is not CUDAGraphMode.FULL)
        return output

    def _run_v2(self, scheduled: Any, mode: CUDAGraphMode, forward: _Forward) -> Any:
        """Model Runner V2 replays FULL graphs outside any forward context."""
        if mode is CUDAGraphMode.FULL:
            self._pre_forward(scheduled, {"attn_metadata": dict.fromkeys(LAYERS, "there")})
            forward.run(hooked=False)
        else:
            with self._forward_context(mode):
                self._pre_forward(scheduled, {})
                forward.run(hooked=True)
        if hasattr(self.glue, "finish_forward"):
            self.glue.finish_forward()
        return self.glue.post_forward(scheduled.finished_req_ids)

    def _pre_forward(self, scheduled: Any, more: Mapping[str, Any]) -> None:
        """Call the glue as this version's `GPUModelRunner` does."""
        names = inspect.signature(self.glue.pre_forward).parameters
        request_ids = list(scheduled.num_scheduled_tokens)
        batch = {
            "req_ids": request_ids,
            "idx_mapping": torch.arange(len(request_ids)),
            "num_tokens": scheduled.total_num_scheduled_tokens,
        }
        if "input_batch" in names:
            self.glue.pre_forward(scheduled, SimpleNamespace(**batch), **more)
        elif "kwargs" in names:
            self.glue.pre_forward(
                scheduler_output=scheduled,
                request_state_indices=batch["idx_mapping"],
                request_ids=batch["req_ids"],
                num_tokens=batch["num_tokens"],
                **more,
            )
        else:
            self.glue.pre_forward(scheduled)

    def _forward_context(self, mode: CUDAGraphMode) -> Any:
        return set_forward_context(
            dict.fromkeys(LAYERS, "there"),
            self.config,
            cudagraph_runtime_mode=mode,
            slot_mapping={},
        )


@dataclass(frozen=True)
class _Flying:
    """A step that has run, and of which the scheduler does not know yet what came of it."""

    scheduled: Any
    output: ModelRunnerOutput
    wrong: set[str]

    def sampled(self, request_id: str) -> list[int]:
        """What was sampled for a request."""
        index = self.output.req_id_to_index.get(request_id)
        return [] if index is None else self.output.sampled_token_ids[index]


@dataclass(frozen=True)
class _Row:
    """What one request computes in a step."""

    request_id: str
    groups: Any
    tokens: list[int]
    start: int
    samples: bool


class _Forward:
    """The forward of one step: every layer attends to what its requests have so far.

    Attributes:
        wrong: Requests whose attention has read KV that was not right.
    """

    def __init__(self, engine: Engine, scheduled: Any) -> None:
        self.wrong: set[str] = set()
        self._cache = engine.cache
        self._states = engine.states
        computed = dict(_computed(scheduled))
        self._rows = []
        for request_id, count in scheduled.num_scheduled_tokens.items():
            tokens = engine.tokens(request_id)
            start = computed[request_id]
            end = start + count
            if end > len(tokens):
                # The scheduler counts on a token that it has thrown away.
                self.wrong.add(request_id)
                tokens += [NO_TOKEN] * (end - len(tokens))
            groups = engine.scheduler.kv_cache_manager.get_block_ids(request_id)
            row = _Row(request_id, groups, tokens[:end], start, samples=end == len(tokens))
            self._rows.append(row)

    def run(self, *, hooked: bool) -> None:
        attend = maybe_transfer_kv_layer(self._attend) if hooked else self._attend
        for layer_name in sorted([*LAYERS, *self._states.tensors]):
            # No hook of the connector stands in a layer with recurrent state.
            (self._go_on if layer_name in self._states.tensors else attend)(layer_name)

    def sample(self) -> list[list[int]]:
        """The next token of each request whose tokens have all been computed."""
        return [
            [next_token(row.tokens, right=row.request_id not in self.wrong)] if row.samples else []
            for row in self._rows
        ]

    def _go_on(self, layer_name: str) -> None:
        for row in self._rows:
            _, [block] = row.groups
            if not self._states.is_right(layer_name, block, row.tokens[: row.start]):
                self.wrong.add(row.request_id)
            self._states.write(layer_name, block, row.tokens)

    def _attend(self, layer_name: str) -> None:
        for row in self._rows:
            blocks, *_ = row.groups
            if not self._cache.is_right(layer_name, blocks, row.tokens[: row.start]):
                self.wrong.add(row.request_id)
            self._cache.write(layer_name, blocks, row.tokens, row.start)


def _computed(scheduled: Any) -> Iterable[tuple[str, int]]:
    for new in scheduled.scheduled_new_reqs:
        yield new.req_id, new.num_computed_tokens
    cached = scheduled.scheduled_cached_reqs
    yield from zip(cached.req_ids, cached.num_computed_tokens, strict=True)


def _recurrent_spec(attention: FullAttentionSpec) -> MambaSpec:
    """Recurrent state in pages as large as the attention's, as vLLM pads them."""
    return MambaSpec(
        block_size=MAX_MODEL_LEN,
        shapes=(CONV_STATE, SSM_STATE),
        dtypes=(torch.float32, torch.float32),
        page_size_padded=attention.page_size_bytes,
        mamba_type=MambaAttentionBackendEnum.GDN_ATTN,
    )


def _plan(config: Any, specs: Mapping[str, Any], memory: int) -> Any:
    """Let this version plan its KV cache as its engine core does."""
    groups = []
    if hasattr(core, "get_global_kv_cache_groups"):
        groups = [core.get_global_kv_cache_groups(config, [specs])]
    [caches] = core.get_kv_cache_configs(config, [specs], [memory], *groups)
    if hasattr(caches, "kv_cache_layout"):
        caches.kv_cache_layout = config.cache_config.kv_cache_layout
    return caches


def _join_distributed() -> None:
    """Be the only rank of this process's world."""
    if parallel_state.model_parallel_is_initialized():
        return
    parallel_state.init_distributed_environment(
        world_size=1,
        rank=0,
        local_rank=0,
        distributed_init_method=f"tcp://{HOST}:{next(_free)}",
        backend="gloo",
    )
    parallel_state.initialize_model_parallel(1, 1)
