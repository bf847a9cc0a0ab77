"""Our connector where vLLM loads no plugins: only the loopback is switched on for it."""

from moriio_observed import loopback
from moriio_observed.loopback.alignment import align_kv_cache

loopback.activate()
align_kv_cache()

from moriio_observed.connector import ObservedMoRIIOConnector  # noqa: E402 - looks for mori once

__all__ = ["ObservedMoRIIOConnector"]
