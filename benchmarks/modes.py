"""The barrier modes that are compared, as settings of ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["MODES", "UNSAFE"]

UNSAFE = {"barrier": "off", "allow_unsafe": True}
MODES: Mapping[str, Mapping[str, Any]] = {
    "auto": {},
    "step": {"barrier": "step"},
    "layer": {"barrier": "layer"},
    "adaptive": {"barrier": "adaptive"},
    "off": UNSAFE,
    "guard": {"guard": "recompute"},
    "upstream": {"barrier": "upstream"},
}
