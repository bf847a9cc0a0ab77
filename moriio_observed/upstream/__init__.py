"""Everything we know of vLLM's MoRIIO connector: the only place that touches its internals.

Written for vLLM 0.28 to 0.33 by looking at what is there, never at version numbers. Hooks are
mixins put in front of the class of the objects upstream has built, and taken away again; a
release that is not as we know it says what is different in `Seams.missing`.
"""

from moriio_observed.upstream import by_name
from moriio_observed.upstream.facts import (
    Deadlines,
    cudagraph_mode,
    deadlines,
    effective_warning,
    hides_full,
    is_read_consumer,
    layer_count,
    mode_name,
    mori_version,
    reads,
    vllm_version,
)
from moriio_observed.upstream.hooks import Hooks
from moriio_observed.upstream.moriio import (
    HAS_TRANSFER_RESULTS,
    MoRIIOConnector,
    TransferError,
)
from moriio_observed.upstream.scheduler import (
    claims_phantom,
    deferred_sends,
    held_sends,
    overdue_sends,
    phantom_cause,
)
from moriio_observed.upstream.seams import OVERRIDDEN, Seams
from moriio_observed.upstream.steps import attach_notes, bound_mode, read_notes, runtime_mode

__all__ = [
    "HAS_TRANSFER_RESULTS",
    "OVERRIDDEN",
    "Deadlines",
    "Hooks",
    "MoRIIOConnector",
    "Seams",
    "TransferError",
    "attach_notes",
    "bound_mode",
    "by_name",
    "claims_phantom",
    "cudagraph_mode",
    "deadlines",
    "deferred_sends",
    "effective_warning",
    "held_sends",
    "hides_full",
    "is_read_consumer",
    "layer_count",
    "mode_name",
    "mori_version",
    "overdue_sends",
    "phantom_cause",
    "read_notes",
    "reads",
    "runtime_mode",
    "vllm_version",
]
