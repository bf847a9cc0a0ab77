"""What observing costs: our own time, and decode throughput beside bare MoRIIO."""

from __future__ import annotations

import statistics

from moriio_observed.accept.claims.counted import by_counters
from moriio_observed.accept.facts import Facts, Number
from moriio_observed.accept.interval import FEWEST_PAIRS, REACHED, WIDTH, interval
from moriio_observed.accept.verdicts import Claim, Ruling, not_proven, proven, refuted

LARGEST_SHARE = 0.01
"""Of all time while probes were sent."""


@by_counters
def overhead(facts: Facts) -> Ruling:
    """Our time, as we count it ourselves."""
    side = facts.decode
    ours = side.growth("telemetry_overhead_seconds_total")
    steps = side.growth("step_seconds_sum")
    number = side.number("telemetry_overhead_seconds_total")
    if not (ours and steps and facts.seconds):
        return not_proven("no step with reads was measured", number)
    share = ours / (facts.seconds * side.ranks)
    numbers = (
        number,
        side.number("step_seconds_sum"),
        Number("seconds of probing", round(facts.seconds, 3)),
        Number("share of all time", share),
        Number("share of the host's time in steps with reads", ours / steps),
    )
    said = f"{share:.2%} of the time of each rank while probes were sent"
    if share > LARGEST_SHARE:
        return refuted(f"{said}, more than {LARGEST_SHARE:.0%}", *numbers)
    return proven(said, *numbers)


def throughput(facts: Facts) -> Ruling:
    """Tokens per second, ours and bare in turns."""
    runs = facts.runs
    if runs is None:
        return not_proven("no --bare-decode was given to compare with")
    if len(runs.ours) < FEWEST_PAIRS:
        return not_proven(
            f"only {len(runs.ours)} pairs of runs, and {FEWEST_PAIRS} are needed"
            + (f": {facts.ended}" if facts.ended else "")
        )
    found = interval(runs.ours, runs.bare)
    numbers = (
        Number("pairs of runs", len(runs.ours)),
        Number("ours, median tokens/s", statistics.median(runs.ours)),
        Number("bare, median tokens/s", statistics.median(runs.bare)),
        Number("ratio", found.ratio),
        Number("ratio, 95 % interval from", found.low),
        Number("ratio, 95 % interval to", found.high),
    )
    said = f"ours / bare {found.ratio:.3f}, 95 % interval {found.low:.3f} to {found.high:.3f}"
    if not found.reaches:
        return refuted(f"{said}: it does not reach {REACHED}", *numbers)
    if not found.narrow:
        return not_proven(f"{said}: wider than {WIDTH}, so it says too little", *numbers)
    return proven(said, *numbers)


CLAIMS = (
    Claim(
        "overhead",
        "Our own time on the hot path is at most a hundredth of all time.",
        "Idle steps, posting, the look in each layer's hook and the making of the statistics are"
        " not in that counter; `throughput` has everything.",
        overhead,
        needs_hardware=True,
    ),
    Claim(
        "throughput",
        "Decode throughput is that of bare MoRIIO.",
        "Your own load: these are short prompts, many at once.",
        throughput,
        needs_hardware=True,
    ),
)
