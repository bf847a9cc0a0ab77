"""One probe: sent, answered or not, judged."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from moriio_observed.canary.answers import Answer, common
from moriio_observed.canary.at_once import at_once
from moriio_observed.canary.compare import judge, logprob_difference
from moriio_observed.canary.degeneration import Limits
from moriio_observed.canary.errors import BusyError, NoAnswerError
from moriio_observed.canary.golden import Golden, Known
from moriio_observed.canary.metrics import Mode, Result, Sign
from moriio_observed.canary.targets import Question, Target, new_probe


@dataclass(frozen=True)
class Reply:
    """What came back for one question.

    Attributes:
        probe_id: Stands in the id by which the servers know the request.
        answer: The answer; None: there is none.
        seconds: How long it took.
        error: Why there is no answer.
    """

    probe_id: str
    answer: Answer | None
    seconds: float
    error: NoAnswerError | None = None


@dataclass(frozen=True)
class Probe:
    """One probe and what became of it.

    Attributes:
        prompt: Which of the golden prompts it sent, counted from 0.
        concurrency: How many were sent at once.
        result: What became of it.
        probe_id: Stands in the id by which the servers know the request; empty: it was not sent.
        seconds: How long the answer took; None without one.
        divergence: How many tokens were as recorded before the first that was not; None where the
            answer matches, or is missing.
        logprob_difference: The first token's, against the recorded one; None where not known.
        signs: Signs of degeneration.
        text: What the server answered.
        error: Why there is no answer.
    """

    prompt: int
    concurrency: int
    result: Result
    probe_id: str = ""
    seconds: float | None = None
    divergence: int | None = None
    logprob_difference: float | None = None
    signs: tuple[Sign, ...] = ()
    text: str | None = None
    error: str | None = None


def ask_at_once(target: Target, questions: Sequence[Question]) -> list[Reply]:
    """Ask several questions at the same time; a failure is a reply without an answer."""
    return at_once([partial(_reply, target, question) for question in questions])


def _reply(target: Target, question: Question) -> Reply:
    probe_id = new_probe()
    began = time.monotonic()
    try:
        answer = target.ask(question, probe_id)
    except NoAnswerError as error:
        return Reply(probe_id, None, time.monotonic() - began, error)
    return Reply(probe_id, answer, time.monotonic() - began)


class Judge:
    """Holds replies against the golden answers.

    Args:
        golden: The golden answers.
        mode: Whether other tokens than recorded are wrong by themselves.
    """

    def __init__(self, golden: Golden, mode: Mode) -> None:
        self._known = golden.known
        self._mode = mode
        self._limits = Limits.of([one.answer for one in golden.known])

    def probe(self, prompt: int, concurrency: int, reply: Reply) -> Probe:
        """What a reply amounts to.

        Args:
            prompt: The place of the prompt among the golden ones.
            concurrency: How many were sent at once.
            reply: What came back.
        """
        if reply.answer is None:
            busy = isinstance(reply.error, BusyError)
            result = Result.BUSY if busy else Result.ERROR
            return Probe(prompt, concurrency, result, reply.probe_id, error=str(reply.error))
        answer, known = reply.answer, self._known[prompt].answer
        signs = self._limits.signs(answer)
        result = judge(answer, known, self._others(self._known[prompt]), signs, self._mode)
        return Probe(
            prompt,
            concurrency,
            result,
            reply.probe_id,
            reply.seconds,
            divergence=None if result is Result.MATCH else common(answer, known),
            logprob_difference=logprob_difference(answer, known),
            signs=signs,
            text=answer.text,
        )

    def _others(self, known: Known) -> list[Answer]:
        return [one.answer for one in self._known if one is not known]
