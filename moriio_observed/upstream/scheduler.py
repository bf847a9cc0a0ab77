"""What upstream's scheduler side shows: tokens claimed, reads to come, blocks held for reads."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any


def params_of(request: Any) -> dict[str, Any]:
    """The ``kv_transfer_params`` of a request, empty if it has none."""
    params = getattr(request, "kv_transfer_params", None)
    return params if isinstance(params, dict) else {}


def traceparent_of(request: Any) -> str | None:
    """The W3C trace context vLLM was called with for a request; it keeps one when it traces."""
    headers = getattr(request, "trace_headers", None)
    value = headers.get("traceparent") if isinstance(headers, Mapping) else None
    return value if isinstance(value, str) else None


def will_be_read(request: Any) -> bool:
    """Whether upstream will post reads for a request, if it claims tokens for it."""
    params = params_of(request)
    blocks = params.get("remote_block_ids")
    return bool(
        params.get("do_remote_prefill")
        # Whatever a client has sent.
        and isinstance(blocks, list | tuple)
        and blocks
        and "remote_engine_id" in params
    )


def transfer_of(request: Any) -> str:
    """The transfer a request takes part in, as upstream names it."""
    return str(params_of(request).get("transfer_id") or f"sidecar-{request.request_id}")


def keep_prompt(request: Any, block_size: int) -> None:
    """Leave out what P has allocated beyond the prompt, for speculative tokens.

    Upstream pairs the blocks of both sides from their ends, and D has none of those.
    """
    params = params_of(request)
    remote = params["remote_block_ids"]
    count = -(-int(request.num_prompt_tokens) // block_size)
    kept = list((remote[0] if _grouped(remote) else remote)[:count])
    params["remote_block_ids"] = _as(remote, kept)


def prompt_on_remote(request: Any, computed: int, block_size: int) -> int:
    """How many tokens of a prompt P has beyond those computed here.

    Unlike upstream's claim, the last one is among them: then D has as many blocks as P, and what
    is read of it is computed again, as upstream does.
    """
    remote = params_of(request)["remote_block_ids"]
    blocks = len(remote[0] if _grouped(remote) else remote)
    return max(0, min(int(request.num_prompt_tokens), blocks * block_size) - computed)


def will_read_nothing(request: Any) -> None:
    """Let upstream neither read for a request nor release anything."""
    params_of(request)["do_remote_prefill"] = False


def blocks_to_read(scheduler: Any, request_id: str) -> list[int]:
    """The blocks upstream will read into for a request, none if it will not read."""
    _, blocks = scheduler._reqs_need_recv.get(request_id, (None, ()))
    return list(flat(blocks))


def first_blocks(blocks: Any, count: int) -> frozenset[int]:
    """The ids of the first blocks that were allocated to a request, of its one group."""
    return frozenset(blocks.get_block_ids()[0][:count])


def leave_out(scheduler: Any, request_id: str, computed: Collection[int]) -> None:
    """Have upstream not read into these blocks of a request: they are computed, and shared."""
    if not computed:
        return
    request, local = scheduler._reqs_need_recv[request_id]
    params = scheduler._req_kv_params[request_id]
    remote = params["remote_block_ids"]
    pairs = list(zip(flat(local), flat(remote), strict=True))
    kept = [pair for pair in pairs if pair[0] not in computed]
    scheduler._reqs_need_recv[request_id] = (request, _as(local, [mine for mine, _ in kept]))
    params["remote_block_ids"] = _as(remote, [theirs for _, theirs in kept])


def _as(ids: Any, flat_ids: list[int]) -> list[Any]:
    """Block ids of one group in the shape of others."""
    return [flat_ids] if _grouped(ids) else flat_ids


def _grouped(ids: Any) -> bool:
    """Whether block ids come as one list for each group (0.30 and newer), or as one list."""
    return bool(ids) and not isinstance(ids[0], int)


def flat(ids: Any) -> Iterable[int]:
    """Block ids of all groups."""
    return (block for group in ids for block in group) if _grouped(ids) else ids


def restart(request: Any) -> None:
    """Have a request that has failed to load give its blocks back and compute all of its tokens."""
    request.num_computed_tokens = 0


def is_over(request: Any) -> bool:
    """Whether a request has finished, in whatever way."""
    return bool(request.is_finished())


def blocks_needed(request: Any, block_size: int) -> int:
    """How many blocks all tokens of a request take, and its next one, in one group."""
    return int(request.num_tokens) // block_size + 1


def claims_phantom(scheduler: Any, request: Any, external_tokens: int) -> bool:
    """Whether tokens were claimed as external though no read of them will be posted."""
    return external_tokens > 0 and request.request_id not in scheduler._reqs_need_recv


def phantom_cause(request: Any) -> str:
    """Why a request's external tokens are a phantom hit."""
    return "preempted" if getattr(request, "num_preemptions", 0) else "no_params"


def overdue_sends(scheduler: Any) -> set[str]:
    """The finished prefills whose blocks are held past ``defer_timeout``."""
    now = time.monotonic()
    held = getattr(scheduler, "_deferred_send_deadlines", {})
    return {request_id for request_id, entry in held.items() if now >= _deadline(entry)}


def held_sends(scheduler: Any) -> Collection[str]:
    """The finished prefills whose blocks are held for a decode engine."""
    return getattr(scheduler, "_deferred_send_deadlines", {}).keys()


def deferred_sends(scheduler: Any) -> int:
    """How many finished prefills hold their blocks for a decode engine."""
    return len(held_sends(scheduler))


def _deadline(entry: Any) -> float:
    return float(entry[0] if isinstance(entry, tuple) else entry)
