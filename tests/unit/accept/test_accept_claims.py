"""Each claim and what refutes it, what proves it, and what leaves it open."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from moriio_observed.accept.claims import CLAIMS, judge
from moriio_observed.accept.facts import Facts, Side, Watched
from moriio_observed.accept.throughput import Runs
from moriio_observed.accept.verdicts import Verdict
from moriio_observed.canary.metrics import Mode, Result
from moriio_observed.doctor.prometheus import Stored
from tests.unit.accept.engines import (
    CAUSE,
    INFO,
    PREFILL,
    PROBES,
    STAND_IN,
    facts,
    healthy,
    one,
    page,
    probes,
    ruling,
    seen,
    side,
)

REFUTED, OPEN, PROVEN = Verdict.REFUTED, Verdict.NOT_PROVEN, Verdict.PROVEN
EXPOSED = one("exposed_requests_total", **CAUSE)
FAILED = one("reads_failed_total", error_type="ERR_RDMA_OP")
WAITS = one("barrier_wait_seconds_count", site="layer", tp_rank="0")
LANDED = one("reads_landed_total")
READS = healthy()[LANDED]
STEADY = Runs((100.0, 101.0) * 5, (100.0, 101.0) * 5)


def stored(*names: str) -> Stored:
    return Stored("http://prometheus.example:9090", frozenset(names), vllm=True)


def all_names() -> tuple[str, ...]:
    return tuple(seen(page()).page.names)


CASES: dict[str, list[tuple[str, Facts, Verdict, str]]] = {
    "visible": [
        ("all right", facts(), PROVEN, "21 waits"),
        ("wrong and not told", facts(probes=probes(2)), REFUTED, "the most important finding"),
        ("or the model", facts(probes=probes(2)), REFUTED, "or greedy answers of this model"),
        (
            "swapped",
            facts(probes=probes(2, result=Result.SWAPPED), mode=Mode.DEGENERATION),
            REFUTED,
            "from the wrong place. This",
        ),
        ("wrong and told", facts({EXPOSED: 2}, probes=probes(2)), OPEN, "told"),
        ("wrong and not read", facts({one("requests_total"): 3}, probes=probes(2)), OPEN, "read"),
        (
            "no wait",
            facts({WAITS: 0}),
            OPEN,
            "no barrier had to wait",
        ),
        ("the loopback", facts(info=STAND_IN), OPEN, "made by the loopback"),
        ("wrong on the loopback", facts(info=STAND_IN, probes=probes(2)), OPEN, "the loopback"),
    ],
    "answers": [
        ("all right", facts(), PROVEN, "all 21 probes"),
        ("also over the loopback", facts(info=STAND_IN), PROVEN, "all 21 probes"),
        ("wrong and not told", facts(probes=probes(2)), REFUTED, "request bbbb"),
        ("more wrong than told", facts({EXPOSED: 1}, probes=probes(2)), REFUTED, "tell of 1"),
        (
            "wrong and not read",
            facts({one("requests_total"): 3}, probes=probes(2)),
            REFUTED,
            "of 0",
        ),
        ("wrong and told", facts({EXPOSED: 2}, probes=probes(2)), OPEN, "find the cause"),
        ("right and exposed", facts({EXPOSED: 2}), OPEN, "exposed meanwhile"),
        (
            "the record is old",
            facts(probes=probes(2, result=Result.OUTDATED)),
            OPEN,
            "--mode degeneration",
        ),
        (
            "wrong past the engines",
            facts({one("requests_total"): 3}, probes=probes(2), routed=True),
            OPEN,
            "not every answered probe was seen to read",
        ),
        ("judged by signs", facts(mode=Mode.DEGENERATION), OPEN, "need not be the same"),
        ("cut short", facts(ended="interrupted"), OPEN, "interrupted"),
    ],
    "certain": [
        ("nothing exposed", facts(), OPEN, "nothing was exposed"),
        ("as many wrong", facts({EXPOSED: 2}, probes=probes(2)), PROVEN, "as many"),
        ("exposed and right", facts({EXPOSED: 2}), REFUTED, "may just have made it"),
        (
            "others served",
            facts({EXPOSED: 2, one("requests_total"): PROBES + 5}),
            OPEN,
            "others' requests",
        ),
    ],
    "observed": [
        ("both sides", facts(), PROVEN, "every hook is in force"),
        (
            "a bare prefill engine",
            facts(prefill=None),
            PROVEN,
            "shows no numbers of ours, which is allowed",
        ),
        ("a bare decode engine", facts(info=None), REFUTED, "runs without our connector"),
        ("a hook missing", facts(hooks=0), REFUTED, "start_load_kv"),
        ("WRITE", facts(info={**INFO, "mode": "write"}), REFUTED, "in mode write"),
        ("no barrier", facts(info={**INFO, "barrier": "off"}), REFUTED, "barrier off"),
        ("sides swapped", facts(info=PREFILL, prefill=INFO), REFUTED, "not kv_consumer"),
        (
            "silent",
            facts(decode=Side((Watched("decode", seen(None)),))),
            OPEN,
            "does not answer",
        ),
    ],
    "mori": [
        ("a version", facts(), PROVEN, "mori 1.2.4"),
        ("the loopback", facts(info=STAND_IN), OPEN, "loopback"),
        ("no version", facts(info={**INFO, "mori_version": "unknown"}), OPEN, "not tell"),
        ("no read", facts({one("reads_posted_total"): 0, LANDED: 0}), OPEN, "no read"),
    ],
    "full-graphs": [
        ("protected", facts(), PROVEN, "all protected"),
        (
            "a step that did not wait",
            facts({one("full_graph_skips_total", protected="false"): 1}),
            REFUTED,
            "waited for nothing",
        ),
        ("a barrier too weak", facts({one("full_graph_protected"): 0}), REFUTED, "unprotected"),
        ("none", facts(info={**INFO, "cudagraph_mode": "PIECEWISE"}), OPEN, "no FULL graphs"),
        (
            "without reads",
            facts(
                {
                    one("full_graph_skips_total", protected="true"): 0,
                    one("steps_total", runtime_mode="FULL", reads="true"): 0,
                    one("steps_total", runtime_mode="FULL", reads="false"): 9,
                }
            ),
            OPEN,
            "never in a step with reads",
        ),
        (
            "never seen",
            facts(
                {
                    one("full_graph_skips_total", protected="true"): 0,
                    one("steps_total", runtime_mode="FULL", reads="true"): 0,
                }
            ),
            OPEN,
            "not recognised",
        ),
    ],
    "reads": [
        ("all", facts(), PROVEN, "84 reads posted, 84 landed"),
        ("on every rank", facts(ranks=8), PROVEN, "8 ranks"),
        ("with others'", facts(healthy(PROBES + 9)), PROVEN, "others' requests"),
        ("a probe missing", facts(healthy(PROBES - 1)), REFUTED, "only 20 requests"),
        ("behind a router", facts(healthy(5), routed=True), OPEN, "not given as --engine"),
        ("a rank missing", facts(healthy(PROBES), ranks=2), REFUTED, "2 ranks"),
        ("a read lost", facts({LANDED: READS - 1}), REFUTED, "counted twice or not at all"),
        ("a read twice", facts({LANDED: READS + 1}), REFUTED, "counted twice or not at all"),
        (
            "a read in flight",
            facts({LANDED: READS - 1, one("reads_in_flight", tp_rank="0"): 1}),
            PROVEN,
            "83 landed",
        ),
        ("no bytes", facts({one("request_read_bytes_sum"): 0}), REFUTED, "not a byte"),
        ("a failure", facts({LANDED: READS - 1, FAILED: 1}), OPEN, "1 of 84 reads failed"),
        (
            "layers missing",
            facts({LANDED: PROBES, one("reads_posted_total"): PROBES}),
            OPEN,
            "4 layers",
        ),
    ],
    "waits": [
        ("some", facts(), PROVEN, "2 ms on average"),
        (
            "steps not measured",
            facts({one("step_blocked_seconds_count", tp_rank="0"): 0}),
            REFUTED,
            "none was measured",
        ),
        (
            "none needed",
            facts({WAITS: 0}),
            OPEN,
            "no barrier found",
        ),
        (
            "a guard",
            facts(
                {WAITS: 0},
                info={**INFO, "guard": "fail"},
            ),
            OPEN,
            "no step does",
        ),
    ],
    "events": [
        ("mori 1.2", facts(), PROVEN, "none by its deadline"),
        (
            "never woken",
            facts(
                {
                    one("step_blocked_seconds_bucket", tp_rank="0", le="1.0"): 2,
                    one("step_blocked_seconds_bucket", tp_rank="0", le="5.0"): PROBES,
                    one("step_blocked_seconds_bucket", tp_rank="0", le="+Inf"): PROBES,
                }
            ),
            REFUTED,
            "does not wake it",
        ),
        ("mori 1.1", facts(info={**INFO, "mori_version": "1.1.1"}), OPEN, "since 1.2.0"),
        ("vLLM waits", facts(info={**INFO, "barrier": "upstream"}), OPEN, "vLLM that waits"),
        (
            "a link that hangs",
            facts({one("barrier_timeouts_total", site="layer"): 1}),
            OPEN,
            "their deadline",
        ),
        ("no wait", facts({WAITS: 0}), OPEN, "no barrier had to wait"),
    ],
    "releases": [
        ("all", facts(), PROVEN, "21 releases"),
        (
            "one missing",
            facts(probes=probes(total=PROBES + 1)),
            REFUTED,
            "22 probes were answered, and only 21 releases came",
        ),
        (
            "one given up",
            facts({one("reads_aborted_total"): 4}, probes=probes(total=PROBES + 1)),
            OPEN,
            "given up",
        ),
        ("a bare prefill engine", facts(prefill=None), OPEN, "not observed"),
        (
            "behind a router",
            facts(probes=probes(total=PROBES + 1), routed=True),
            OPEN,
            "prefill engines that were not given",
        ),
    ],
    "nodes": [
        ("two hosts", facts(), PROVEN, "between two addresses"),
        ("one host", facts(apart=False), OPEN, "the same address"),
        ("a router", facts(apart=None), OPEN, "behind a router"),
        ("clocks misjudged", facts({one("stale_reads_total"): 1}), REFUTED, "clocks"),
        (
            "others' stale reads",
            facts({one("stale_reads_total"): 1, one("requests_total"): PROBES + 1}),
            OPEN,
            "may be a reason",
        ),
        ("no lease", facts({one("lease_unknown_total"): 1}), OPEN, "no lease"),
    ],
    "failures": [
        ("none", facts(), OPEN, "nothing failed"),
        ("known codes", facts({FAILED: 3}), PROVEN, "3 reads failed"),
        (
            "a dead link",
            facts({one("peer_failures_total", reason="LOCAL_PORT_DOWN"): 1}),
            PROVEN,
            "1 dead link",
        ),
        (
            "an unknown code",
            facts({one("reads_failed_total", error_type="other"): 1}),
            REFUTED,
            "do not know",
        ),
    ],
    "overhead": [
        ("little", facts(), PROVEN, "0.00%"),
        ("much", facts({one("telemetry_overhead_seconds_total"): 0.2}), REFUTED, "2.00%"),
        (
            "of every rank",
            facts({one("telemetry_overhead_seconds_total"): 0.2}, ranks=4),
            PROVEN,
            "0.50%",
        ),
        ("not measured", facts({one("step_seconds_sum"): 0}), OPEN, "no step"),
        (
            "much on the loopback",
            facts({one("telemetry_overhead_seconds_total"): 0.2}, info=STAND_IN),
            OPEN,
            "the loopback",
        ),
    ],
    "throughput": [
        ("as much", facts(runs=STEADY), PROVEN, "ours / bare 1.000"),
        (
            "less",
            facts(runs=Runs(tuple(0.9 * rate for rate in STEADY.ours), STEADY.bare)),
            REFUTED,
            "does not reach 0.99",
        ),
        ("noise", facts(runs=Runs((50.0, 200.0) * 5, (100.0,) * 10)), OPEN, "too little"),
        ("too few", facts(runs=Runs((1.0,) * 9, (1.0,) * 9)), OPEN, "only 9 pairs"),
        ("none", facts(), OPEN, "no --bare-decode"),
    ],
    "metrics": [
        ("all", facts(), PROVEN, "every metric"),
        ("one missing", facts(without="stale_reads_total"), REFUTED, "moriio_stale_reads_total"),
        (
            "an error of ours",
            facts({one("telemetry_errors_total", signal="metrics"): 1}),
            REFUTED,
            "our own code failed 1 time",
        ),
        (
            "too many series",
            facts({one("remote_reads_total", remote=str(n)): 1 for n in range(400)}),
            REFUTED,
            "series, more than 408",
        ),
        ("silent at the end", facts(info=None), OPEN, "no numbers of ours"),
    ],
    "prometheus": [
        ("all", facts(stored=stored(*all_names())), PROVEN, "Prometheus has all"),
        ("none of ours", facts(stored=stored()), REFUTED, "lacks moriio_"),
        ("away", facts(stored=Stored("p", None, trouble="refused")), OPEN, "refused"),
        ("not given", facts(), OPEN, "no --prometheus"),
    ],
}
FLAT = [(name, *case) for name, cases in CASES.items() for case in cases]


def test_every_claim_has_its_cases() -> None:
    assert set(CASES) == {claim.name for claim in CLAIMS}
    for name, cases in CASES.items():
        verdicts = {verdict for _, _, verdict, _ in cases}
        # What is asked of mori's version alone is never refuted.
        assert verdicts == set(Verdict) - ({REFUTED} if name == "mori" else set()), name


@pytest.mark.parametrize(
    ("name", "given", "verdict", "said"),
    [(name, given, verdict, said) for name, _, given, verdict, said in FLAT],
    ids=[f"{name}: {case}" for name, case, *_ in FLAT],
)
def test_a_claim(name: str, given: Facts, verdict: Verdict, said: str) -> None:
    found = ruling(name, given)
    assert (found.verdict, said in found.reason) == (verdict, True), found.reason


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"probes": ()}, "no probe was sent"),
        ({"probes": (replace(probes()[0], result=Result.ERROR, error="away"),)}, "away"),
        ({"decode": Side((Watched("decode", seen(page())),))}, "not asked again"),
        ({"decode": Side((Watched("decode", seen(page()), seen(None)),))}, "did not answer at"),
        (
            {"decode": Side((Watched("decode", seen(page(healthy())), seen(page())),))},
            "restarted meanwhile",
        ),
        (
            {"decode": side("decode", {one("requests_total"): math.nan})},
            "counters that are no numbers",
        ),
        ({"settled": False, "ended": "interrupted"}, "not waited for: interrupted"),
        ({"decode": Side()}, "no decode engine"),
    ],
)
def test_without_numbers_of_before_and_after_nothing_is_refuted(
    change: dict[str, Any], said: str
) -> None:
    given = facts(**change)
    counted = {"answers", "visible", "reads", "waits", "events", "overhead", "releases"}
    for name in counted:
        found = ruling(name, given)
        assert (found.verdict, said in found.reason) == (OPEN, True), (name, found.reason)


def test_what_is_refuted_stands_first_and_the_gpu_that_sees_no_landing_before_all() -> None:
    names = [
        (one.claim.name, one.ruling.verdict) for one in judge(facts(probes=probes(2), hooks=0))
    ]
    assert names[:3] == [("visible", REFUTED), ("answers", REFUTED), ("observed", REFUTED)]
    order = [list(Verdict).index(verdict) for _, verdict in names]
    assert order == sorted(order)


def test_waits_are_told_by_their_quantiles() -> None:
    numbers = {number.name: number.value for number in ruling("waits", facts()).numbers}
    assert numbers["moriio_barrier_wait_seconds, quantile 0.5"] == pytest.approx(0.00125)
    assert numbers["moriio_request_read_seconds, quantile 0.5"] == "none"


def test_buckets_without_bounds_have_no_quantile() -> None:
    strange = {one("request_read_seconds_bucket", le="wide"): 3.0}
    numbers = {number.name: number.value for number in ruling("waits", facts(strange)).numbers}
    assert numbers["moriio_request_read_seconds, quantile 0.5"] == "none"
