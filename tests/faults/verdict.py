"""What a fault did: answers, references and flagged request ids make one row of the table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moriio_observed.demo.client import Answer
from moriio_observed.demo.exposures import EXPOSURE, PHANTOM_HIT, STALE_READ

CERTAIN_BY_KIND = {EXPOSURE: False, PHANTOM_HIT: True, STALE_READ: False}
"""Whether a kind of log line is certain where the line itself does not say: nothing ever fills a
phantom hit's blocks, while a stale read may still find P's blocks as they were."""


@dataclass(frozen=True)
class Asked:
    """One request of a fault.

    Attributes:
        answer: What came back.
        reference: What the prefill engine answers alone.
    """

    answer: Answer
    reference: Answer


@dataclass(frozen=True)
class Row:
    """One fault under one mode. Every request is right, an error, or wrong with HTTP 200.

    Attributes:
        fault: The fault's name.
        vllm: The version of both engines.
        mode: `bare`, `report`, `recompute` or `fail`.
        requests: How many were sent.
        right: Answers with the reference's tokens.
        error: Requests without an answer: an HTTP error, an engine that was killed, or a client
            that hung up. Nobody was told anything wrong.
        wrong_200: Answers with other tokens.
        exposed: Requests that a log line names, whatever became of them.
        wrong_flagged: Those of them that answered wrong.
        right_flagged: Those that answered right all the same.
        certain: Flagged requests with an answer, where the log line was certain.
        certain_wrong: Those of them that answered wrong.
        unflagged: The ids of wrong answers that no log line names.
    """

    fault: str
    vllm: str
    mode: str
    requests: int
    right: int
    error: int
    wrong_200: int
    exposed: int
    wrong_flagged: int
    right_flagged: int
    certain: int = 0
    certain_wrong: int = 0
    unflagged: tuple[str, ...] = ()

    @property
    def precision(self) -> tuple[float | None, float | None]:
        """Flagged and wrong / flagged and answered: of *certain*, of *possible*; None of none."""
        possible = self.wrong_flagged + self.right_flagged - self.certain
        return (
            _share(self.certain_wrong, self.certain),
            _share(self.wrong_flagged - self.certain_wrong, possible),
        )


def flags(events: Mapping[str, Iterable[Mapping[str, Any]]]) -> dict[str, bool]:
    """The request ids that log lines name, and whether one of their lines is certain.

    Args:
        events: The lines' objects under their marker.
    """
    flagged: dict[str, bool] = {}
    for marker, lines in events.items():
        for line in lines:
            said = line.get("certainty")
            certain = CERTAIN_BY_KIND[marker] if said is None else said == "certain"
            request_id = line["request_id"]
            flagged[request_id] = flagged.get(request_id, False) or certain
    return flagged


def judge(
    fault: str, vllm: str, mode: str, asked: Sequence[Asked], flagged: Mapping[str, bool]
) -> Row:
    """Make the row.

    Args:
        fault: The fault's name.
        vllm: The version.
        mode: The mode.
        asked: Its requests.
        flagged: What `flags` gives.
    """
    outcomes = [_outcome(one) for one in asked]
    certainties = [_certainty(one.answer, flagged) for one in asked]
    both = list(zip(outcomes, certainties, strict=True))
    return Row(
        fault=fault,
        vllm=vllm,
        mode=mode,
        requests=len(asked),
        right=outcomes.count("right"),
        error=outcomes.count("error"),
        wrong_200=outcomes.count("wrong"),
        exposed=sum(certainty is not None for certainty in certainties),
        wrong_flagged=sum(
            outcome == "wrong" and certainty is not None for outcome, certainty in both
        ),
        right_flagged=sum(
            outcome == "right" and certainty is not None for outcome, certainty in both
        ),
        certain=both.count(("wrong", True)) + both.count(("right", True)),
        certain_wrong=both.count(("wrong", True)),
        unflagged=tuple(
            one.answer.request_id
            for one, (outcome, certainty) in zip(asked, both, strict=True)
            if outcome == "wrong" and certainty is None
        ),
    )


def _outcome(asked: Asked) -> str:
    if asked.answer.error is not None:
        return "error"
    return "right" if asked.answer.tokens == asked.reference.tokens else "wrong"


def _certainty(answer: Answer, flagged: Mapping[str, bool]) -> bool | None:
    """Whether the lines that name a request are certain; None when none does."""
    named = [certain for engine_id, certain in flagged.items() if answer.is_known_as(engine_id)]
    return any(named) if named else None


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
