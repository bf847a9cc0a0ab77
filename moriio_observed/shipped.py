"""The folders that come with the package: `alerts` and `dashboards`.

A wheel has them inside the package, a checkout beside it.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parent


def shipped(name: str) -> Path:
    """Return where our folder of this name is."""
    inside = _PACKAGE / "data" / name
    return inside if inside.is_dir() else _PACKAGE.parent / name
