"""What is said of a claim: proven, refuted, or neither, with the numbers it rests on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from moriio_observed.accept.facts import Facts, Number


class Verdict(StrEnum):
    """What became of a claim; the worst first."""

    REFUTED = "refuted"
    NOT_PROVEN = "not proven here"
    PROVEN = "proven"


@dataclass(frozen=True)
class Ruling:
    """What is said of a claim.

    Attributes:
        verdict: It.
        reason: Why, in one sentence or two.
        numbers: What it rests on.
    """

    verdict: Verdict
    reason: str
    numbers: tuple[Number, ...] = ()


def proven(reason: str, *numbers: Number) -> Ruling:
    """The deployment does what is claimed."""
    return Ruling(Verdict.PROVEN, reason, numbers)


def refuted(reason: str, *numbers: Number) -> Ruling:
    """It does not."""
    return Ruling(Verdict.REFUTED, reason, numbers)


def not_proven(reason: str, *numbers: Number) -> Ruling:
    """It was not seen either way."""
    return Ruling(Verdict.NOT_PROVEN, reason, numbers)


@dataclass(frozen=True)
class Claim:
    """Something that is claimed of every deployment.

    Attributes:
        name: For machines; the same from release to release.
        says: What is claimed.
        leaves_open: What stays unproven even if it is proven.
        judge: Says what the facts make of it.
        needs_hardware: Whether only mori itself can prove or refute it: the loopback cannot.
    """

    name: str
    says: str
    leaves_open: str
    judge: Callable[[Facts], Ruling]
    needs_hardware: bool = False

    def judged(self, facts: Facts) -> Judged:
        """The claim with what is said of it."""
        ruling = self.judge(facts)
        if self.needs_hardware and ruling.verdict is not Verdict.NOT_PROVEN and facts.stand_in:
            ruling = not_proven(f"{facts.stand_in}. There: {ruling.reason}", *ruling.numbers)
        return Judged(self, ruling)


@dataclass(frozen=True)
class Judged:
    """A claim and what is said of it."""

    claim: Claim
    ruling: Ruling


def worst_first(judged: Iterable[Judged]) -> list[Judged]:
    """In the order in which they matter; claims of one verdict stay in theirs."""
    order = list(Verdict)
    return sorted(judged, key=lambda one: order.index(one.ruling.verdict))
