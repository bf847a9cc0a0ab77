"""What this release of moriio_observed can honour, and on which vLLM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moriio_observed.barrier import Era
from moriio_observed.config import Settings, SettingsError

if TYPE_CHECKING:
    from moriio_observed.upstream import Seams

_PREFIX = "kv_connector_extra_config.observed."


def check_release(settings: Settings, seams: Seams) -> None:
    """Refuse what the user asked for and this release, on this vLLM, cannot do.

    Raises:
        SettingsError: One error that names every such key, its value and what is possible.
    """
    problems = []
    if settings.barrier == "adaptive":
        problems.append(
            f"{_PREFIX}barrier: 'adaptive' is not available in this release; use 'auto'"
        )
    if settings.guard != "report":
        problems.append(
            f"{_PREFIX}guard: {settings.guard!r} is not available in this release; use 'report'"
        )
    problems += [
        f"{_PREFIX}{path}: is not available in this release; remove it"
        for path in sorted(settings.given)
        if path.startswith(("otlp.", "exporter.")) or path == "quarantine_limit_s"
    ]
    if seams.era is Era.UNKNOWN and "barrier" in settings.given and settings.barrier != "upstream":
        problems.append(
            f"{_PREFIX}barrier: {settings.barrier!r} cannot be honoured on this vLLM, whose MoRIIO "
            f"connector is not known (missing: {', '.join(seams.missing)}); "
            "remove it or use 'upstream'"
        )
    if problems:
        raise SettingsError(problems)
