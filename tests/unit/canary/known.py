"""Golden answers for the tests' server."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from moriio_observed.canary.answers import Answer
from moriio_observed.canary.golden import Golden, Known
from moriio_observed.canary.metrics import Mode
from moriio_observed.canary.prompts import WORDS, make
from tests.unit.canary.model_server import MODEL, right


def answer(tokens: list[int], **rest: Any) -> Answer:
    """An answer of our words."""
    return Answer(" ".join(WORDS[token] for token in tokens), tuple(tokens), **rest)


def golden(count: int = 16, **different: Any) -> Golden:
    """What a server that is well was recorded to answer."""
    known = tuple(
        Known(prompt, answer(right(prompt), first_logprob=-0.5)) for prompt in make(1, count, 30)
    )
    usual: dict[str, Any] = {
        "model": MODEL,
        "mode": Mode.EXACT,
        "max_tokens": 32,
        "concurrencies": (1, 4, 8),
        "recorded_at": "2026-01-01T00:00:00+00:00",
        "source": "single.example:8000",
        "asked": count,
        "known": known,
    }
    return Golden(**(usual | different))


def in_ascii_locale(program: str, *arguments: str) -> str:
    """What a program says where text is ASCII unless told otherwise."""
    locale = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    command = [sys.executable, "-c", program, *arguments]
    ended = subprocess.run(
        command, env={**os.environ, **locale}, check=True, capture_output=True, text=True
    )
    return ended.stdout.strip()
