"""Answers, each joined to the exposure of its request, and what they say of the reads."""

from __future__ import annotations

from collections.abc import Sequence

from tests.incident.recording import CERTAIN, ERROR, RIGHT, WRONG, Answer
from tests.incident.traffic import Given
from tests.incident.watch import Exposed


def answers(given: Sequence[Given], exposed: Sequence[Exposed], began: float) -> Sequence[Answer]:
    """Return the answers as a recording has them.

    Args:
        given: In the order they were given.
        exposed: The lines of the decode engine's log.
        began: When the recording began.
    """
    certainty = {_asked(one): one.certainty for one in exposed}
    certainty |= {_asked(one): CERTAIN for one in exposed if one.certainty == CERTAIN}
    return [
        Answer(
            asked_s=round(each.asked - began, 2),
            given_s=round(each.given - began, 2),
            outcome=_outcome(each),
            exposed=certainty.get(each.answer.request_id, ""),
        )
        for each in given
    ]


def first_late(given: Sequence[Given], exposed: Sequence[Exposed], began: float) -> float | None:
    """Return when a read was first known to be late, seconds since the recording began.

    Either it was still in flight when its step ended, or the answer is wrong: then it had landed by
    the end of the step, but not before attention ran on it. Any other exposure may have been one
    in time, and as a rule was.
    """
    wrong = {each.answer.request_id for each in given if _outcome(each) == WRONG}
    late = [one.seen for one in exposed if one.certainty == CERTAIN or _asked(one) in wrong]
    return round(min(late) - began, 2) if late else None


def _outcome(each: Given) -> str:
    return ERROR if each.answer.error else RIGHT if each.right else WRONG


def _asked(one: Exposed) -> str:
    """The id that the client knows: the engine adds eight random digits."""
    return one.request_id.rpartition("-")[0]
