"""A picture for machines."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
from collections.abc import Mapping
from datetime import datetime

from moriio_observed.top.picture import Picture


def as_json(picture: Picture) -> str:
    """A picture as a JSON object, its keys those of `Picture`.

    States and severities have their names. What an engine does not know is null, as is what takes a
    second look. All that is not ASCII is escaped, so what others wrote cannot steer a terminal.
    """
    return json.dumps(_plain(dataclasses.asdict(picture)), indent=2, allow_nan=False)


def _plain(value: object) -> object:
    match value:
        case Mapping():
            return {str(key): _plain(inner) for key, inner in value.items()}
        case list() | tuple():
            if isinstance(value, tuple) and hasattr(value, "_asdict"):
                return value._asdict()
            return [_plain(inner) for inner in value]
        case enum.Enum():
            return value.name.lower()
        case float() if not math.isfinite(value):
            return None
        case datetime():
            return value.isoformat(timespec="seconds")
        case _:
            return value
