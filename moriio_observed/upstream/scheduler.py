"""What upstream's scheduler side shows: tokens claimed without a read, blocks held for reads."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any


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
