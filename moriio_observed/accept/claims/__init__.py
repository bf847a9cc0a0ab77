"""Every claim, in the order in which they matter."""

from __future__ import annotations

from moriio_observed.accept.claims import answers, cost, serving, telemetry, transfers
from moriio_observed.accept.facts import Facts
from moriio_observed.accept.verdicts import Claim, Judged, worst_first

CLAIMS: tuple[Claim, ...] = (
    *answers.CLAIMS,
    *serving.CLAIMS,
    *transfers.CLAIMS,
    *cost.CLAIMS,
    *telemetry.CLAIMS,
)


def judge(facts: Facts) -> list[Judged]:
    """What is to be said of every claim, the worst first."""
    return worst_first(claim.judged(facts) for claim in CLAIMS)
