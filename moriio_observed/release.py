"""What this release of moriio_observed can honour, and on which vLLM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moriio_observed.barrier import Era
from moriio_observed.config import CONFIG_PATH, Settings, SettingsError, variable

if TYPE_CHECKING:
    from moriio_observed.upstream import Seams


def _place(path: str) -> str:
    """Where a setting can have come from."""
    return f"{CONFIG_PATH}.{path} (or {variable(path)})"


def check_release(settings: Settings, seams: Seams) -> None:
    """Refuse what the user asked for and this release, on this vLLM, cannot do.

    Raises:
        SettingsError: One error that names every such key, its value and what is possible.
    """
    problems = []
    if settings.barrier == "adaptive":
        problems.append(
            f"{_place('barrier')}: 'adaptive' is not available in this release; use 'auto'"
        )
    if settings.guard != "report":
        problems.append(
            f"{_place('guard')}: {settings.guard!r} is not available in this release; use 'report'"
        )
    problems += [
        f"{_place(path)}: is not available in this release; remove it"
        for path in sorted(settings.given)
        if path.startswith(("otlp.", "exporter.")) or path == "quarantine_limit_s"
    ]
    if seams.era is Era.UNKNOWN and "barrier" in settings.given and settings.barrier != "upstream":
        problems.append(
            f"{_place('barrier')}: {settings.barrier!r} cannot be honoured on this vLLM, whose "
            f"MoRIIO connector is not one that moriio_observed knows ({'; '.join(seams.missing)}); "
            "remove it or use 'upstream'"
        )
    if problems:
        raise SettingsError(problems)
