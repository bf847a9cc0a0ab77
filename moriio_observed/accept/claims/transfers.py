"""Are reads seen from post to end, waited for by events, and released; and what if one fails?"""

from __future__ import annotations

from moriio_observed.accept.claims.counted import by_counters, plural
from moriio_observed.accept.facts import Facts, Number
from moriio_observed.accept.verdicts import Claim, Ruling, not_proven, proven, refuted
from moriio_observed.barrier import SLICE_S
from moriio_observed.doctor.versions import minor_of
from moriio_observed.telemetry.catalog import OTHER, SITES

EVENTS_SINCE = (1, 2)
"""The mori that can be waited for without polling."""


@by_counters
def reads(facts: Facts) -> Ruling:
    """Every probe reads, every layer of it, and each read has an end."""
    side = facts.decode
    names = ("requests_total", "reads_posted_total", "reads_landed_total", "reads_failed_total")
    asked, expected = facts.answered, facts.answered * side.ranks
    requests, posted, landed, failed = (side.growth(name) for name in names)
    aborted = side.growth("reads_aborted_total")
    per_request = posted / requests if requests else 0.0
    numbers = (
        Number("probes answered", asked),
        Number("ranks", side.ranks),
        Number("layers", side.layers or "not known"),
        *map(side.number, (*names, "reads_aborted_total", "request_read_bytes_sum")),
        Number("reads per request and rank", per_request),
        Number("bytes per request and rank", _each(facts, "request_read_bytes")),
    )
    if requests < expected and facts.routed:
        return not_proven(
            f"{asked} probes were answered, and {requests:g} requests read: the router sends to"
            " engines that were not given as --engine, or does not do READ",
            *numbers,
        )
    if requests < expected:
        return refuted(
            f"{asked} probes were answered on {plural(side.ranks, 'rank')}, and only"
            f" {requests:g} requests counted as read for",
            *numbers,
        )
    lost = posted - landed - failed - aborted
    if lost < 0 or lost > max(0.0, side.after("reads_in_flight")):
        return refuted(
            f"{posted:g} reads were posted, and {landed + failed + aborted:g} ended: {abs(lost):g}"
            " are counted twice or not at all",
            *numbers,
        )
    if not side.growth("request_read_bytes_sum"):
        return refuted("reads were posted, and not a byte was counted", *numbers)
    if failed or aborted:
        return not_proven(
            f"{failed + aborted:g} of {posted:g} reads failed or were given up: mend that first",
            *numbers,
        )
    if side.layers is not None and posted < requests * side.layers:
        return not_proven(
            f"{per_request:g} reads for each request of a model with {side.layers} layers: right"
            " only where layers share their KV",
            *numbers,
        )
    others = "" if facts.alone else ", and others' requests beside them"
    return proven(
        f"all {asked} probes were read for on {plural(side.ranks, 'rank')}{others}:"
        f" {posted:g} reads posted, {landed:g} landed",
        *numbers,
    )


@by_counters
def waits(facts: Facts) -> Ruling:
    """What is waited is measured."""
    side = facts.decode
    steps, measured = (
        side.growth("steps_total", reads="true"),
        side.growth("step_blocked_seconds_count"),
    )
    waited = side.growth("barrier_wait_seconds_count")
    numbers = (
        *(side.number("barrier_wait_seconds_count", site=site) for site in SITES),
        side.number("barrier_wait_seconds_sum"),
        *(side.quantile_number("barrier_wait_seconds", q) for q in (0.5, 0.99)),
        side.quantile_number("request_read_seconds", 0.5),
        *map(side.number, ("step_blocked_seconds_sum", "step_seconds_sum")),
        side.number("step_blocked_seconds_count"),
        side.number("steps_total", reads="true"),
    )
    if steps and not measured:
        return refuted(f"{plural(steps, 'step')} had reads, and none was measured", *numbers)
    if waited:
        mean = side.growth("barrier_wait_seconds_sum") / waited
        return proven(
            f"{plural(waited, 'wait')} measured, {mean * 1e3:.3g} ms on average", *numbers
        )
    if set(side.infos("guard")) != {"report"}:
        return not_proven("with a guard requests wait, and no step does", *numbers)
    return not_proven("no barrier found a read that it had to wait for", *numbers)


@by_counters
def events(facts: Facts) -> Ruling:
    """Waits end because mori says so, not because a clock does."""
    side = facts.decode
    versions = side.infos("mori_version")
    timeouts = side.growth("barrier_timeouts_total")
    waited = side.growth("barrier_wait_seconds_count")
    numbers = (
        *(Number("mori_version", version) for version in versions),
        *map(side.number, ("barrier_wait_seconds_count", "barrier_timeouts_total")),
        side.quantile_number("step_blocked_seconds", 0.5),
    )
    minors = [minor_of(version) for version in versions]
    if not all(minor is not None and minor >= EVENTS_SINCE for minor in minors):
        return not_proven(
            "mori has events to wait for since 1.2.0; of this one that is not known", *numbers
        )
    if "upstream" in side.infos("barrier"):
        return not_proven("with barrier 'upstream' it is vLLM that waits", *numbers)
    if (side.quantile("step_blocked_seconds", 0.5) or 0.0) >= SLICE_S:
        return refuted(
            f"half of the steps with reads were held for {SLICE_S:g} s or longer, after which the"
            " barrier looks by itself: mori does not wake it, or your reads take that long",
            *numbers,
        )
    if not waited or timeouts:
        return not_proven(
            "waits ran into their deadline" if timeouts else "no barrier had to wait", *numbers
        )
    return proven(f"{plural(waited, 'wait')} ended, none by its deadline", *numbers)


@by_counters
def failures(facts: Facts) -> Ruling:
    """What mori reports of failures is understood."""
    side = facts.decode
    unknown = side.growth("reads_failed_total", error_type=OTHER)
    failed, peers = map(side.growth, ("reads_failed_total", "peer_failures_total"))
    numbers = (
        side.number("reads_failed_total"),
        side.number("reads_failed_total", error_type=OTHER),
        side.number("peer_failures_total"),
        side.number("send_queue_full_total"),
    )
    if unknown:
        return refuted(
            f"{plural(unknown, 'read')} failed with a status code that we do not know", *numbers
        )
    if failed or peers:
        return proven(
            f"{plural(failed, 'read')} failed, all with codes that we know, and mori told of"
            f" {plural(peers, 'dead link or device')}: compare with what your fabric's tools say",
            *numbers,
        )
    return not_proven("nothing failed. Take a link down during a run to prove it", *numbers)


@by_counters
def released(facts: Facts) -> Ruling:
    """The prefill side hears that its blocks are free."""
    side = facts.prefill
    if not side.engines or not all(one.info for one in side.engines):
        return not_proven("the prefill engine is not observed, or was not given")
    if side.untold:
        return not_proven(side.untold)
    released, expired = map(side.growth, ("releases_total", "deferred_sends_expired_total"))
    numbers = (
        Number("probes answered", facts.answered),
        *map(side.number, ("releases_total", "deferred_sends", "deferred_sends_expired_total")),
        facts.decode.number("notify_failures_total"),
    )
    if released < facts.answered and facts.routed:
        return not_proven("the router uses prefill engines that were not given", *numbers)
    given_up = sum(map(facts.decode.growth, ("reads_failed_total", "reads_aborted_total")))
    if released < facts.answered and given_up:
        return not_proven("reads were given up, and vLLM releases none of those", *numbers)
    if released < facts.answered:
        return refuted(
            f"{facts.answered} probes were answered, and only {released:g} releases came", *numbers
        )
    if expired:
        return not_proven(
            f"{plural(expired, 'request')} held until the deadline: whose is not known", *numbers
        )
    return proven(f"{plural(released, 'release')} came back", *numbers)


@by_counters
def apart(facts: Facts) -> Ruling:
    """Two hosts, two clocks."""
    side = facts.decode
    stale = side.growth("stale_reads_total")
    held = facts.prefill.after("defer_timeout_seconds")
    slowest = max((probe.seconds or 0.0 for probe in facts.probes), default=0.0)
    numbers = (
        *map(side.number, ("stale_reads_total", "lease_unknown_total")),
        Number("slowest answer, s", round(slowest, 3)),
        Number("defer_timeout, s", held),
    )
    if stale and facts.alone and slowest < held:
        return refuted(
            f"{plural(stale, 'read')} counted as stale, and no probe took as long as the prefill"
            f" engine holds its blocks ({held:g} s): clocks are misjudged",
            *numbers,
        )
    if stale:
        return not_proven(f"{plural(stale, 'read')} stale, and there may be a reason", *numbers)
    if side.growth("lease_unknown_total"):
        return not_proven(
            "a prefill engine without our connector gives no lease to be kept", *numbers
        )
    if not facts.apart:
        return not_proven(
            "the prefill and the decode engine have the same address"
            if facts.apart is False
            else "where the engines run is not known behind a router",
            *numbers,
        )
    return proven("leases were kept between two addresses, and none was misjudged", *numbers)


def _each(facts: Facts, histogram: str) -> float:
    count = facts.decode.growth(f"{histogram}_count")
    return facts.decode.growth(f"{histogram}_sum") / count if count else 0.0


CLAIMS = (
    Claim(
        "reads",
        "Every request's reads are counted from post to end.",
        "That the bytes are the right ones: see `answers`.",
        reads,
    ),
    Claim(
        "waits",
        "What steps wait for their reads is measured.",
        "How much of a read hides behind compute: docs/protection-cost.md has the queries.",
        waits,
    ),
    Claim(
        "events",
        "Waits end by mori's own events.",
        "How soon after a landing: nothing tells when a read has landed but mori itself.",
        events,
        needs_hardware=True,
    ),
    Claim(
        "releases",
        "The prefill engine hears of every request that its blocks are free.",
        "A decode engine that dies in between.",
        released,
    ),
    Claim(
        "nodes",
        "Leases are kept between hosts whose clocks differ.",
        "Two addresses may still be one machine, and clocks may agree by chance.",
        apart,
        needs_hardware=True,
    ),
    Claim(
        "failures",
        "What mori says of reads and links that fail is understood.",
        "Codes and reasons that did not occur.",
        failures,
        needs_hardware=True,
    ),
)
