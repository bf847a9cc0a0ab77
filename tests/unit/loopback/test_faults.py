import pytest

from moriio_observed.loopback.enums import StatusCode
from moriio_observed.loopback.faults import NEVER, NO_FAULT, SQ_FULL, Fault, Plan, Rule
from moriio_observed.loopback.places import Place

FIRST = Place(0, 0)
SLOW = Rule(latency_s=1.0)
PLACES = [Place(request, layer) for request in range(50) for layer in range(4)]


def fault(*rules: Rule, at: Place = FIRST, side: str = "consumer", seed: int = 0) -> Fault:
    return Plan(rules, seed).fault_for(at, side)


def test_without_rules_nothing_happens():
    assert fault() == NO_FAULT


def test_the_first_rule_that_hits_decides():
    assert fault(Rule(layers=frozenset([1])), SLOW, Rule(latency_s=2.0)).delay_s == 1.0


@pytest.mark.parametrize(
    ("rule", "hit"),
    [
        (Rule(requests=frozenset([2])), {(2, 0), (2, 1)}),
        (Rule(layers=frozenset([1])), {(1, 1), (2, 1)}),
        (Rule(requests=frozenset([1]), layers=frozenset([0])), {(1, 0)}),
        (Rule(side="consumer"), {(1, 0), (1, 1), (2, 0), (2, 1)}),
        (Rule(side="producer"), set()),
    ],
)
def test_selectors_hit_exactly_what_they_name(rule, hit):
    failing = Plan((Rule(rule.requests, rule.layers, rule.side, latency_s=1.0),))
    places = [Place(request, layer) for request in (1, 2) for layer in (0, 1)]
    hits = {place[:2] for place in places if failing.fault_for(place, "consumer") != NO_FAULT}
    assert hits == hit


def test_a_probability_hits_about_that_share():
    rule = Rule(probability=0.3, latency_s=1.0)
    hits = sum(fault(rule, at=place) != NO_FAULT for place in PLACES)
    assert 0.2 < hits / len(PLACES) < 0.4


def test_chance_is_the_same_in_any_order_of_posts():
    plan = Plan((Rule(probability=0.5, latency_s=0.1, jitter_s=1.0),), seed=3)
    in_order = {place: plan.fault_for(place, "consumer") for place in PLACES}
    assert in_order == {place: plan.fault_for(place, "consumer") for place in reversed(PLACES)}


def test_another_seed_hits_others():
    rule = Rule(probability=0.5, latency_s=1.0)
    hits = [[fault(rule, at=place, seed=seed) for place in PLACES] for seed in (1, 2)]
    assert hits[0] != hits[1]


def test_two_rules_draw_independently():
    rules = Rule(probability=0.5, latency_s=1.0), Rule(probability=0.5, latency_s=2.0)
    delays = {fault(*rules, at=place).delay_s for place in PLACES}
    assert delays == {0.0, 1.0, 2.0}


def test_jitter_is_added_to_the_latency_and_differs_from_post_to_post():
    delays = {fault(Rule(latency_s=0.05, jitter_s=0.25), at=place).delay_s for place in PLACES}
    assert len(delays) == len(PLACES)
    assert all(0.05 <= delay <= 0.3 for delay in delays)


def test_bandwidth_adds_the_time_the_bytes_take():
    assert fault(Rule(latency_s=1.0, bandwidth_bytes_per_s=100.0)).seconds(50) == 1.5


def test_a_hang_never_lands():
    assert fault(Rule(latency_s=NEVER)).seconds(1) == NEVER


def test_a_failure_has_its_code_and_message():
    error = (StatusCode.ERR_BAD_STATE, "said so")
    assert fault(Rule(fail=error)).error == error


def test_a_full_queue_rejects_so_many_attempts_and_then_lets_the_next_rule_speak():
    rules = Rule(sq_full_times=2), SLOW
    seen = [fault(*rules, at=Place(0, 0, attempt)) for attempt in range(3)]
    assert seen == [SQ_FULL, SQ_FULL, Fault(delay_s=1.0)]


def test_a_full_queue_by_chance_draws_anew_for_each_attempt():
    rule = Rule(sq_full_times=NEVER, probability=0.5)
    attempts = {fault(rule, at=Place(0, 0, attempt)) for attempt in range(50)}
    assert attempts == {SQ_FULL, NO_FAULT}


def test_a_full_queue_is_worded_as_upstream_expects():
    assert SQ_FULL.rejected
    assert SQ_FULL.error is not None
    assert SQ_FULL.error[0] is StatusCode.ERR_RDMA_OP
    assert "SQ full" in SQ_FULL.error[1]
