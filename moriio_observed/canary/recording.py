"""Golden answers made: asked again and again, and kept only where they are always the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from moriio_observed.canary.answers import Answer, common, same
from moriio_observed.canary.errors import CanaryError
from moriio_observed.canary.golden import Golden, Known
from moriio_observed.canary.metrics import Mode
from moriio_observed.canary.probes import ask_at_once
from moriio_observed.canary.targets import Question, Target

LONGEST_COMMON = 4
"""Two golden answers may begin with so many tokens alike: which one an answer is can be told."""


@dataclass(frozen=True)
class Recording:
    """How to record.

    Attributes:
        model: Who is asked.
        max_tokens: How many tokens each answer has.
        concurrencies: How many prompts are sent at once, one value for each pass through them all.
        repeats: How often that is done.
        keep: How many prompts are wanted.
        mode: `exact` wants answers that are the same each time; else everything is asked once.
    """

    model: str
    max_tokens: int
    concurrencies: tuple[int, ...]
    repeats: int
    keep: int
    mode: Mode

    @property
    def needed(self) -> int:
        """So many prompts there must be, or neighbouring probes could not all be different."""
        return 2 * max(self.concurrencies)


def record(
    recording: Recording,
    target: Target,
    prompts: Sequence[str],
    reference: Target | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Golden:
    """Record golden answers.

    Args:
        recording: How.
        target: Who answers.
        prompts: More of them than are wanted.
        reference: Who answers as well, and the same if all is well; None: nobody.
        say: Gets progress, line by line.

    Raises:
        CanaryError: A server does not answer, or too few prompts have an answer to be known by.
    """
    passes = [(target, at_once) for at_once in recording.concurrencies] * recording.repeats
    if reference is not None:
        passes.insert(0, (reference, 1))
    if recording.mode is Mode.DEGENERATION:
        # Answers vary anyway.
        del passes[1:]
    kept: dict[str, Answer] = {}
    for number, (asked, concurrency) in enumerate(passes):
        answers = dict(zip(prompts, _pass(recording, asked, prompts, concurrency), strict=True))
        kept = _agreeing(kept, answers) if number else answers
        say(
            f"pass {number + 1} of {len(passes)}, {asked.name}, {concurrency} at once:"
            f" {len(kept)} of {len(prompts)} prompts answered, the same each time"
        )
    known = _distinct(kept)
    _check(recording, len(prompts), len(kept), len(known))
    return Golden(
        model=recording.model,
        mode=recording.mode,
        max_tokens=recording.max_tokens,
        concurrencies=recording.concurrencies,
        recorded_at=datetime.now(UTC).isoformat(timespec="seconds"),
        source=(reference or target).name,
        asked=len(prompts),
        known=tuple(known[: recording.keep]),
    )


def _pass(
    recording: Recording, target: Target, prompts: Sequence[str], concurrency: int
) -> list[Answer]:
    answers: list[Answer] = []
    for begin in range(0, len(prompts), concurrency):
        questions = [
            Question(recording.model, prompt, recording.max_tokens)
            for prompt in prompts[begin : begin + concurrency]
        ]
        for reply in ask_at_once(target, questions):
            if reply.answer is None:
                raise CanaryError(f"nothing was recorded: {reply.error}")
            answers.append(reply.answer)
    return answers


def _agreeing(kept: dict[str, Answer], again: dict[str, Answer]) -> dict[str, Answer]:
    return {prompt: answer for prompt, answer in kept.items() if same(answer, again[prompt])}


def _distinct(kept: dict[str, Answer]) -> list[Known]:
    """Those whose answers cannot be taken for each other's."""
    known: list[Known] = []
    for prompt, answer in kept.items():
        if all(common(answer, other.answer) <= LONGEST_COMMON for other in known):
            known.append(Known(prompt, answer))
    return known


def _check(recording: Recording, asked: int, agreeing: int, distinct: int) -> None:
    needed = recording.needed
    if agreeing < needed:
        raise CanaryError(
            f"only {agreeing} of {asked} prompts were answered the same each time, and {needed} are"
            " needed: twice the highest concurrency. Either wrong answers are served now, or greedy"
            " answers of this model depend on what runs beside them: then record with"
            " --mode degeneration"
        )
    if distinct < needed:
        raise CanaryError(
            f"only {distinct} of {asked} prompts have an answer of their own, and {needed} are"
            " needed: twice the highest concurrency. Perhaps the model does not know the words;"
            " give it others with --words, or fewer at once with --concurrency"
        )
