"""A stand-in for `mori.io` on one machine: real one-sided reads, and faults on demand.

Importing this package changes nothing and imports no torch; `activate` puts the stand-in into
`sys.modules`. docs/loopback.md says how to use it.
"""

from moriio_observed.loopback.activation import LoopbackSettingError, activate, deactivate

__all__ = ["LoopbackSettingError", "activate", "deactivate"]
