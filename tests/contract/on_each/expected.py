"""What is expected of a version, by what its classes have."""

from __future__ import annotations

from vllm.distributed.kv_transfer.kv_connector.v1.moriio import moriio_connector
from vllm.v1.core.sched.output import SchedulerOutput

from moriio_observed import upstream
from moriio_observed.barrier import Era

ERA = upstream.Seams.detect().era
RECOVERS = ERA is not Era.LAYER
"""0.31 and newer report failed reads, and the scheduler recomputes."""
LOADS_AFTER = "has_sync_kv_loads" in SchedulerOutput.__dataclass_fields__
"""0.29 and newer start loads after the forward where no read is due before it."""
HYBRID = hasattr(moriio_connector.MoRIIOConnectorWorker, "_is_mamba_layer")
"""0.31 and newer read recurrent state."""
FAILS_STEP = ERA is Era.STEP
"""0.33 fails a step whose reads are in flight after the deadline, and claims no phantom hits."""
ADAPTIVE = ["adaptive"] if FAILS_STEP else []
"""Where it is not what `auto` is."""

UNPROTECTED_BY_UPSTREAM = {
    Era.LAYER: {("V1", "FULL"), ("V2", "FULL")},
    Era.LAYER_AND_STEP: {("V2", "FULL")},
    Era.STEP: set(),
}[ERA]
"""(runner, CUDA graph mode) whose healthy but slow reads vLLM's own barrier does not wait for."""
