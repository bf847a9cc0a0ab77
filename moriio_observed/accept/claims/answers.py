"""Is every answer right, or told to be in doubt, and does "landed" mean that the GPU sees it?"""

from __future__ import annotations

import math
from collections.abc import Iterator

from moriio_observed.accept.claims.counted import by_counters, plural, told, told_numbers
from moriio_observed.accept.facts import UNANSWERED, Facts, Number
from moriio_observed.accept.verdicts import Claim, Ruling, not_proven, proven, refuted
from moriio_observed.canary.metrics import Mode, Result
from moriio_observed.canary.rounds import WRONG

_SHOWN = 3


@by_counters
def visible(facts: Facts) -> Ruling:
    """What the network card reports as done must be there for the GPU."""
    unexplained = _unexplained(facts) and _all_read(facts)
    numbers = (
        *told_numbers(facts),
        *(
            facts.decode.number("barrier_wait_seconds_count", site=site)
            for site in ("layer", "step")
        ),
        Number("wrong answers", _wrong(facts)),
    )
    if unexplained:
        return refuted(
            f"{plural(_wrong(facts), 'answer')} wrong, though every read was seen landed before"
            " attention: what mori reports as landed was not visible to the GPU, or came from the"
            f" wrong place{_or_the_model(facts)}. This is the most important finding that this"
            " command can make",
            *numbers,
        )
    if (doubt := _doubt(facts)) is not None:
        return not_proven(doubt, *numbers)
    waits = facts.decode.growth("barrier_wait_seconds_count")
    if not waits:
        return not_proven(
            "every answer was right, but no barrier had to wait: attention never followed close"
            " upon a landing. More at once (--concurrency) makes it likelier",
            *numbers,
        )
    return proven(
        f"every answer was right, in {plural(waits, 'wait')} of attention for reads that had not"
        " landed yet, and nothing was exposed",
        *numbers,
    )


@by_counters
def right(facts: Facts) -> Ruling:
    """No answer may be wrong without a counter that tells."""
    numbers = (*_by_concurrency(facts), *told_numbers(facts))
    if _unexplained(facts):
        return refuted(
            f"{plural(_wrong(facts), 'answer')} wrong, and the counters tell of {told(facts):g}:"
            f" {'; '.join(_examples(facts))}",
            *numbers,
        )
    if (doubt := _doubt(facts)) is not None:
        return not_proven(doubt, *numbers)
    return proven(
        f"all {len(facts.probes)} probes were answered as the engine answers that computes them"
        " alone, token by token, and nothing was exposed",
        *numbers,
    )


@by_counters
def certain(facts: Facts) -> Ruling:
    """A certain exposure must be a wrong answer."""
    exposed = facts.decode.number("exposed_requests_total", certainty="certain", action="reported")
    growth = facts.decode.growth("exposed_requests_total", certainty="certain", action="reported")
    numbers = (exposed, Number("wrong answers", _wrong(facts)))
    if not growth:
        return not_proven("nothing was exposed, as it should be", *numbers)
    if not facts.alone:
        return not_proven(
            "others' requests were served too: whose exposures these are is not known", *numbers
        )
    fewest = math.ceil(growth / facts.decode.ranks)
    if _wrong(facts) < fewest:
        return refuted(
            f"{plural(fewest, 'request')} exposed for certain at least, and only"
            f" {_wrong(facts)} answered wrong: a read may just have made it",
            *numbers,
        )
    return proven("as many answers were wrong as requests were exposed for certain", *numbers)


def _or_the_model(facts: Facts) -> str:
    """What else may be the reason, where answers are compared token by token."""
    if facts.mode is Mode.DEGENERATION:
        return ""
    return (
        "; or greedy answers of this model depend on what runs beside them: run again with"
        " --mode degeneration to tell"
    )


def _wrong(facts: Facts) -> int:
    return sum(facts.results[result] for result in WRONG)


def _unexplained(facts: Facts) -> bool:
    """Whether an answer is wrong and nothing tells so, of engines whose counters we see."""
    return _wrong(facts) > told(facts) and (_all_read(facts) or not facts.routed)


def _all_read(facts: Facts) -> bool:
    return facts.decode.growth("requests_total") >= facts.answered * facts.decode.ranks


def _doubt(facts: Facts) -> str | None:
    """Why right answers would prove nothing; None if they would."""
    results = facts.results
    unanswered = sum(results[result] for result in UNANSWERED)
    if not _all_read(facts):
        return "not every answered probe was seen to read: see the claim `reads`"
    if wrong := _wrong(facts):
        return f"{plural(wrong, 'answer')} wrong, and told: find the cause of the exposures first"
    if told(facts):
        return "requests were exposed meanwhile: find the cause first"
    if results[Result.OUTDATED]:
        return (
            "the engine that computes alone answers otherwise by now: greedy answers of this model"
            " depend on what runs beside them. Try --mode degeneration"
        )
    if unanswered:
        return f"{plural(unanswered, 'probe')} not answered: {facts.errors[0]}"
    if facts.mode is Mode.DEGENERATION:
        return "no answer was degenerate or another prompt's, but they need not be the same here"
    return facts.ended or None


def _by_concurrency(facts: Facts) -> Iterator[Number]:
    for concurrency in sorted({probe.concurrency for probe in facts.probes}):
        mine = [probe for probe in facts.probes if probe.concurrency == concurrency]
        good = sum(probe.result in (Result.MATCH, Result.SOUND) for probe in mine)
        yield Number(f"right of {len(mine)} probes, {concurrency} at once", good)


def _examples(facts: Facts) -> Iterator[str]:
    wrong = [probe for probe in facts.probes if probe.result in WRONG]
    for probe in wrong[:_SHOWN]:
        yield (
            f"{probe.result}, {probe.concurrency} at once, {probe.divergence} tokens right,"
            f" request {probe.probe_id}"
        )


CLAIMS = (
    Claim(
        "visible",
        "A read that mori reports as landed is visible to the GPU.",
        "Other shapes of load, sizes of model, cards and drivers. It is shown by right answers,"
        " not by a look into the GPU's memory.",
        visible,
        needs_hardware=True,
    ),
    Claim(
        "answers",
        "Every answer is right, or counted as in doubt.",
        "Prompts of other lengths, and what happens under faults.",
        right,
    ),
    Claim(
        "certain",
        "An exposure that is called certain is a wrong answer.",
        "Which of several answers it was: the log line moriio_exposure has the request's id.",
        certain,
        needs_hardware=True,
    ),
)
