"""What this release of moriio_observed can honour, and on which vLLM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moriio_observed.barrier import Era
from moriio_observed.config import CONFIG_PATH, Settings, SettingsError, variable
from moriio_observed.policy import Policy

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
    if seams.era is Era.UNKNOWN:
        problems += [
            f"{_place(path)}: {value!r} cannot be honoured on this vLLM, whose MoRIIO connector is "
            f"not one that moriio_observed knows ({'; '.join(seams.missing)}); remove it or use "
            f"{upstreams!r}"
            for path, value, upstreams in (
                ("barrier", settings.barrier, "upstream"),
                ("guard", settings.guard, "report"),
            )
            if path in settings.given and value != upstreams
        ]
    if problems:
        raise SettingsError(problems)


def check_guard(policy: Policy) -> None:
    """Refuse a guard that vLLM, as configured, would not honour.

    Raises:
        SettingsError: It says what vLLM would do instead.
    """
    if policy.refusal:
        raise SettingsError([f"{_place('guard')} = {policy.guard!r}: {policy.refusal}"])
