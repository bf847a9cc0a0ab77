"""What a guard means on an engine, and which one an engine cannot honour."""

from __future__ import annotations

import pytest

from moriio_observed.config import SettingsError
from moriio_observed.policy import Policy
from moriio_observed.release import check_guard


def policy(guard: str, load_failure: str, *, groups: int = 1, partial: bool = False) -> Policy:
    return Policy(guard, load_failure, groups, partial)


@pytest.mark.parametrize("load_failure", ["recompute", "fail"])
def test_report_goes_with_whatever_vllm_does(load_failure: str) -> None:
    told = policy("report", load_failure, groups=2, partial=True)
    check_guard(told)
    assert (told.guarded, told.waits, told.fails_steps) == (False, False, False)


@pytest.mark.parametrize("guard", ["recompute", "fail"])
def test_a_guard_has_requests_wait(guard: str) -> None:
    guarded = policy(guard, guard)
    check_guard(guarded)
    assert (guarded.guarded, guarded.waits, guarded.fails_steps) == (True, True, False)


@pytest.mark.parametrize(("guard", "other"), [("recompute", "fail"), ("fail", "recompute")])
def test_a_guard_that_is_not_vllms_policy_is_refused_with_the_reason(
    guard: str, other: str
) -> None:
    with pytest.raises(SettingsError) as error:
        check_guard(policy(guard, other))
    [problem] = error.value.problems
    assert f"observed.guard (or MORIIO_OBSERVED_GUARD) = {guard!r}" in problem
    assert f"vLLM would do {other!r}, its kv_load_failure_policy" in problem


@pytest.mark.parametrize("guard", ["recompute", "fail"])
def test_a_guard_is_refused_where_context_parallelism_spreads_a_prompts_blocks(guard: str) -> None:
    with pytest.raises(SettingsError, match="context parallelism"):
        check_guard(Policy(guard, guard, groups=1, partial=False, spread=True))
    check_guard(Policy("report", guard, groups=1, partial=False, spread=True))


@pytest.mark.parametrize("guard", ["recompute", "fail"])
def test_a_guard_is_refused_where_two_requests_can_have_one_id(guard: str) -> None:
    with pytest.raises(SettingsError, match="VLLM_DISABLE_REQUEST_ID_RANDOMIZATION=1"):
        check_guard(Policy(guard, guard, groups=1, partial=False, repeats_ids=True))
    check_guard(Policy("report", guard, groups=1, partial=False, repeats_ids=True))


@pytest.mark.parametrize("hybrid", [{"groups": 2}, {"partial": True}])
def test_recompute_is_refused_where_vllm_cannot_recover_by_block(
    hybrid: dict[str, int | bool],
) -> None:
    with pytest.raises(SettingsError, match="cannot recompute single requests"):
        check_guard(policy("recompute", "recompute", **hybrid))  # type: ignore[arg-type]


@pytest.mark.parametrize("hybrid", [{"groups": 2}, {"partial": True}])
def test_fail_fails_the_step_where_vllm_cannot_recover_by_block(
    hybrid: dict[str, int | bool],
) -> None:
    guarded = policy("fail", "fail", **hybrid)  # type: ignore[arg-type]
    check_guard(guarded)
    assert (guarded.waits, guarded.fails_steps) == (False, True)


@pytest.mark.parametrize(
    ("ahead", "guard", "load_failure", "action"),
    [
        (False, "report", "recompute", "recomputed"),
        (True, "report", "recompute", "reported"),
        (True, "report", "fail", "failed"),
        (True, "recompute", "recompute", "recomputed"),
        (True, "fail", "fail", "failed"),
    ],
)
def test_vllm_does_not_recover_a_running_request_under_asynchronous_scheduling(
    ahead: bool, guard: str, load_failure: str, action: str
) -> None:
    told = Policy(guard, load_failure, groups=1, partial=False, ahead=ahead)
    assert told.action == action


@pytest.mark.parametrize(
    ("guarded", "says"),
    [
        (policy("report", "fail"), "answered all the same"),
        (policy("recompute", "recompute"), "takes 30 s the request is computed here"),
        (policy("fail", "fail"), "takes 30 s the request is answered with an error"),
        (policy("fail", "fail", groups=2), "a step fails"),
    ],
)
def test_it_says_what_it_will_do(guarded: Policy, says: str) -> None:
    assert says in guarded.sentence(30.0)
