"""What vLLM's plugin mechanism calls in each of its processes.

It makes our connector known by name, puts it in the place of ``MoRIIOConnector`` when the
environment variable ``MORIIO_OBSERVED`` is 1, and switches the loopback on where it is asked for.
"""

from __future__ import annotations

import os

from moriio_observed import loopback
from moriio_observed.registration import register as register_connector

_OFF = ("", "0")


def register() -> None:
    """Entry point ``vllm.general_plugins``; may be called more than once in a process.

    Raises:
        ValueError: ``MORIIO_OBSERVED`` is neither 0 nor 1.
    """
    asked = os.environ.get("MORIIO_OBSERVED", "0")
    if asked not in (*_OFF, "1"):
        raise ValueError(f"MORIIO_OBSERVED={asked!r}: must be 0 or 1")
    # Before upstream's module is imported: it looks for mori once, when it is.
    if loopback.activate():
        from moriio_observed.loopback.alignment import align_kv_cache

        align_kv_cache()
    register_connector()
    if asked == "1":
        register_connector("MoRIIOConnector")
