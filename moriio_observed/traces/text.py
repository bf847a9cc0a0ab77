"""Text for a terminal: what others wrote made harmless, and times a person can read."""

from __future__ import annotations

import json


def safe(value: object, limit: int) -> str:
    """A value as text that cannot steer a terminal, hide or fill the screen.

    Control and other invisible characters are escaped as in Python, and what is beyond `limit`
    characters is counted instead of shown.
    """
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    shown = "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text[:limit]
    )
    return shown if len(text) <= limit else f"{shown}… ({len(text) - limit} more)"


def duration(nanoseconds: float) -> str:
    """A time of at most 8 characters, below a day."""
    for limit, unit, name in ((1e6, 1e3, "µs"), (1e9, 1e6, "ms")):
        # As it would be shown: 999.96 ms is a second.
        if nanoseconds < limit * (1 - 1e-4):
            return f"{nanoseconds / unit:.1f} {name}"
    seconds = nanoseconds / 1e9
    return f"{seconds:.2f} s" if seconds < 1000 else f"{seconds:.0f} s"
