"""The log lines that say which requests were exposed, and the answers joined to them."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moriio_observed.demo.client import Answer

EXPOSURE = "moriio_exposure "
PHANTOM_HIT = "moriio_phantom_hit "
STALE_READ = "moriio_stale_read "


class LogFollower:
    """Reads the structured lines that a server adds to its log.

    Args:
        log: The server's log.
        whole: Whether to read it from its beginning, and not only what is written from now on.
    """

    def __init__(self, log: Path, *, whole: bool = False) -> None:
        self._log = log
        self._start = 0 if whole else log.stat().st_size

    def events(self, marker: str = EXPOSURE) -> list[dict[str, Any]]:
        """All events of a kind since this follower was made, oldest first."""
        with self._log.open("rb") as log:
            log.seek(self._start)
            return parse_events(log.read().decode(errors="replace"), marker)


def parse_events(text: str, marker: str) -> list[dict[str, Any]]:
    """The JSON objects that follow a marker in a log; a line cut short is left for later."""
    decoder = json.JSONDecoder()
    events = []
    for line in text.splitlines():
        _, found, payload = line.partition(marker)
        if not found:
            continue
        try:
            event, _ = decoder.raw_decode(payload)
        except ValueError:
            continue
        events.append(event)
    return events


@dataclass(frozen=True)
class Verdict:
    """How a phase's answers compare with the reference, and with the exposures.

    Attributes:
        right: Answers whose tokens equal the reference's.
        wrong: Answers with other tokens.
        error: Requests that failed.
        wrong_not_exposed: The request ids of wrong answers that no exposure names.
    """

    right: int
    wrong: int
    error: int
    wrong_not_exposed: tuple[str, ...]


def judge(
    answers: Iterable[Answer], references: Iterable[Answer], exposed_ids: Iterable[str]
) -> Verdict:
    """Compare answers with the reference and join the wrong ones to exposures by id.

    Args:
        answers: What the pair answered.
        references: What a single engine answers to the same prompts.
        exposed_ids: The engine's ids of all exposed requests.
    """
    exposed = set(exposed_ids)
    right = error = 0
    wrong: list[Answer] = []
    for answer, reference in zip(answers, references, strict=True):
        if answer.error is not None:
            error += 1
        elif answer.tokens == reference.tokens:
            right += 1
        else:
            wrong.append(answer)
    missed = tuple(
        answer.request_id
        for answer in wrong
        if not any(answer.is_known_as(request_id) for request_id in exposed)
    )
    return Verdict(right, len(wrong), error, missed)
