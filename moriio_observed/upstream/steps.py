"""What a step is: what its scheduler side knows of it, and under which CUDA graph it runs."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any

from moriio_observed.observer import FULL, NO_NOTES, StepNotes
from moriio_observed.upstream.moriio import get_forward_context, is_forward_context_available
from moriio_observed.upstream.scheduler import flat

_NOTES = "moriio_observed_notes"
_NOTHING_TO_TELL = NO_NOTES[2:]


def attach_notes(
    metadata: Any,
    scheduler_output: Any,
    *,
    lease_left: Mapping[str, float] | None = None,
    held: Collection[str] = (),
    traceparents: Mapping[str, str] | None = None,
) -> None:
    """Give the worker the scheduler's view of the step, on the metadata it already gets.

    The mapping is the scheduler's own object: in the same pickle it costs a reference. Of a step of
    which there is no more to tell, a plain tuple of the first two notes is sent: see `quiet_notes`.

    Args:
        metadata: Upstream's metadata of the step.
        scheduler_output: The scheduler's output for it.
        lease_left: For how many seconds P holds what is read, by request.
        held: Requests whose blocks are kept from reuse from now on.
        traceparents: The trace contexts of what is read, by request.
    """
    finished = getattr(scheduler_output, "finished_req_ids", None)
    preempted = getattr(scheduler_output, "preempted_req_ids", None)
    scheduled = scheduler_output.num_scheduled_tokens
    loads_before_forward = getattr(scheduler_output, "has_sync_kv_loads", None)
    if not (finished or preempted or lease_left or held or traceparents):
        setattr(metadata, _NOTES, (scheduled, loads_before_forward))
        return
    setattr(
        metadata,
        _NOTES,
        StepNotes(
            scheduled=scheduled,
            loads_before_forward=loads_before_forward,
            ended={*(finished or ()), *(preempted or ())},
            held=held,
            # Not the default: what cannot be pickled would not reach the worker.
            lease_left=lease_left or {},
            built_at=time.time() if lease_left else 0.0,
            traceparents=traceparents or {},
        ),
    )


def read_notes(metadata: Any) -> StepNotes:
    """Return what `attach_notes` put there; a bare scheduler side leaves all unknown."""
    notes = getattr(metadata, _NOTES, NO_NOTES)
    return notes if isinstance(notes, StepNotes) else StepNotes(*notes)


def quiet_notes(metadata: Any) -> StepNotes | None:
    """As `read_notes`, of a step in which nothing is read and of which there is no more to tell.

    Asked in every step of an engine at rest, so it makes as few calls as it can.
    """
    notes = getattr(metadata, _NOTES, None)
    if type(notes) is not tuple or metadata.reqs_to_recv:
        return None
    return tuple.__new__(StepNotes, notes + _NOTHING_TO_TELL)


def reading_from(metadata: Any) -> dict[str, list[int]]:
    """The blocks that requests are to be read into from this step on; none of a mere release."""
    if not metadata.reqs_to_recv:
        return {}
    found = {
        request_id: list(flat(each.local_block_ids))
        for request_id, each in metadata.reqs_to_recv.items()
    }
    return {request_id: blocks for request_id, blocks in found.items() if blocks}


def bound_mode(notes: StepNotes) -> str:
    """The runtime mode of the forward that is about to run, seen when metadata are bound.

    Model Runner V2 replays FULL graphs outside any forward context.
    """
    if is_forward_context_available():
        return _mode_of(get_forward_context())
    return FULL if notes.scheduled else "NONE"


def runtime_mode(forward_context: Any, load_kwargs: Mapping[str, Any], notes: StepNotes) -> str:
    """The runtime mode of the forward that is about to run, seen by ``start_load_kv``.

    Model Runner V2 hides FULL behind an empty forward context: up to 0.29 tokens are scheduled
    all the same, from 0.30 the attention metadata come as a keyword argument instead.
    """
    mode = _mode_of(forward_context)
    if mode != "NONE" or getattr(forward_context, "attn_metadata", None) is not None:
        return mode
    if load_kwargs:
        return FULL if load_kwargs.get("attn_metadata") is not None else mode
    return FULL if notes.scheduled else mode


def _mode_of(forward_context: Any) -> str:
    mode = getattr(forward_context, "cudagraph_runtime_mode", None)
    # Not `name`: that is a property written in Python, and this is asked in every step.
    return str(getattr(mode, "_name_", "NONE"))
