"""Everything we know of vLLM's MoRIIO connector: the only place that touches its internals.

Written for vLLM 0.28 to 0.33 by looking at what is there, never at version numbers. Hooks are
mixins put in front of the class of the objects upstream has built, and taken away again; a
release that is not as we know it says what is different in `Seams.missing`.
"""

from moriio_observed.upstream import by_name
from moriio_observed.upstream.facts import (
    Deadlines,
    block_size,
    cudagraph_mode,
    deadlines,
    effective_warning,
    hides_full,
    is_read_consumer,
    layer_count,
    metric_labels,
    mode_name,
    mori_version,
    policy,
    reads,
    sends,
    vllm_version,
)
from moriio_observed.upstream.hooks import Hooks
from moriio_observed.upstream.moriio import (
    HAS_GROUPS,
    HAS_TRANSFER_RESULTS,
    MoRIIOConnector,
    TransferError,
)
from moriio_observed.upstream.scheduler import (
    blocks_needed,
    blocks_to_read,
    claims_phantom,
    deferred_sends,
    first_blocks,
    flat,
    held_sends,
    is_over,
    keep_prompt,
    leave_out,
    overdue_sends,
    params_of,
    phantom_cause,
    prompt_on_remote,
    restart,
    traceparent_of,
    transfer_of,
    will_be_read,
    will_read_nothing,
)
from moriio_observed.upstream.seams import OVERRIDDEN, Seams
from moriio_observed.upstream.steps import (
    attach_notes,
    bound_mode,
    read_notes,
    reading_from,
    runtime_mode,
)
from moriio_observed.upstream.worker_report import WorkerReport

__all__ = [
    "HAS_GROUPS",
    "HAS_TRANSFER_RESULTS",
    "OVERRIDDEN",
    "Deadlines",
    "Hooks",
    "MoRIIOConnector",
    "Seams",
    "TransferError",
    "WorkerReport",
    "attach_notes",
    "block_size",
    "blocks_needed",
    "blocks_to_read",
    "bound_mode",
    "by_name",
    "claims_phantom",
    "cudagraph_mode",
    "deadlines",
    "deferred_sends",
    "effective_warning",
    "first_blocks",
    "flat",
    "held_sends",
    "hides_full",
    "is_over",
    "is_read_consumer",
    "keep_prompt",
    "layer_count",
    "leave_out",
    "metric_labels",
    "mode_name",
    "mori_version",
    "overdue_sends",
    "params_of",
    "phantom_cause",
    "policy",
    "prompt_on_remote",
    "read_notes",
    "reading_from",
    "reads",
    "restart",
    "runtime_mode",
    "sends",
    "traceparent_of",
    "transfer_of",
    "vllm_version",
    "will_be_read",
    "will_read_nothing",
]
