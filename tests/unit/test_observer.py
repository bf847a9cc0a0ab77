"""A decode worker's steps, told to the observer in upstream's order."""

from __future__ import annotations

import json
import logging

import pytest

from moriio_observed.barrier import Era, Placement
from moriio_observed.observer import StepNotes
from tests.unit.stepping import LAYERS, Worker, land


def test_slow_reads_are_waited_for_and_the_step_is_protected() -> None:
    worker = Worker()
    worker.begin("r")
    worker.post_slow("r")
    worker.step("r")
    assert worker.unprotected() == {}
    assert worker.counted("reads_landed_total") == 3
    assert worker.counted("steps_total", runtime_mode="NONE", reads="true") == 1


def test_a_layer_hook_not_yet_seen_to_fire_is_not_relied_on() -> None:
    worker = Worker()
    worker.begin("r")
    worker.post_slow("r")
    outcome = worker.observer.before_forward("NONE")
    assert outcome is not None
    assert outcome.landed == 3


def test_layer_hooks_seen_to_fire_let_transfer_and_compute_overlap() -> None:
    worker = Worker()
    worker.learn_hooks()
    worker.begin("b")
    statuses = worker.post("b")
    assert worker.observer.before_forward("NONE") is None
    worker.clock.at(0.2, statuses[0].land)
    assert worker.layers(LAYERS[:1])[0] is not None
    assert statuses[1].state == "in flight"
    land(statuses)
    worker.layers(LAYERS[1:])
    worker.end()
    assert worker.unprotected() == {}


def test_hooks_that_stop_firing_are_learnt_again() -> None:
    worker = Worker()
    worker.learn_hooks()
    worker.begin("b")
    worker.post("b")
    worker.step("b", layers=())
    assert worker.unprotected() == {"unprotected_steps_total|no_barrier|certain": 1}
    worker.begin("c")
    worker.post_slow("c")
    outcome = worker.observer.before_forward("NONE")
    assert outcome is not None


def test_a_full_graph_step_is_waited_for_before_the_forward() -> None:
    worker = Worker()
    worker.begin("r")
    worker.post_slow("r")
    worker.step("r", mode="FULL", layers=())
    assert worker.unprotected() == {}
    assert worker.counted("full_graph_skips_total", protected="true") == 1


@pytest.mark.parametrize("placement", [Placement.UPSTREAM, Placement.LAYER])
def test_a_full_graph_step_nobody_waits_for_is_unprotected(placement: Placement) -> None:
    worker = Worker(placement, Era.LAYER)
    worker.begin("r")
    worker.post("r")
    worker.step("r", mode="FULL", layers=())
    assert worker.unprotected() == {"unprotected_steps_total|full_graph|certain": 1}
    assert worker.counted("full_graph_skips_total", protected="false") == 1


def test_a_full_graph_step_whose_reads_had_landed_is_protected_without_a_barrier() -> None:
    worker = Worker(Placement.UPSTREAM, Era.LAYER)
    worker.begin("r")
    land(worker.post("r"))
    worker.step("r", mode="FULL", layers=())
    assert worker.unprotected() == {}
    assert worker.counted("full_graph_skips_total", protected="true") == 1


def test_without_a_barrier_slow_reads_expose_their_request() -> None:
    worker = Worker(Placement.OFF)
    worker.begin("r")
    worker.post("r")
    worker.step("r")
    assert worker.unprotected() == {"unprotected_steps_total|no_barrier|certain": 1}
    assert (
        worker.counted(
            "exposed_requests_total", cause="no_barrier", certainty="certain", action="reported"
        )
        == 1
    )


def test_a_hung_read_times_out_once_a_step_and_exposes_its_request_once() -> None:
    worker = Worker()
    worker.begin("hung")
    statuses = worker.post("hung")
    land([statuses[0], statuses[2]])
    worker.step("hung")
    worker.begin("hung", before=False)
    worker.layers()
    worker.end()
    timeouts = sum(
        worker.counted("barrier_timeouts_total", site=site) for site in ("layer", "step")
    )
    assert timeouts == 2
    assert worker.unprotected() == {"unprotected_steps_total|timeout|certain": 2}
    assert (
        worker.counted(
            "exposed_requests_total", cause="timeout", certainty="certain", action="reported"
        )
        == 1
    )


def test_a_step_waits_out_one_deadline_for_a_request_that_hangs_in_every_layer() -> None:
    worker = Worker()
    worker.learn_hooks()
    worker.begin("hung")
    worker.post("hung")
    before = worker.clock.now
    worker.step("hung")
    assert worker.counted("barrier_timeouts_total", site="layer") == 1
    assert worker.clock.now - before == pytest.approx(30.0, abs=1.0)


def test_the_seeds_layer_barrier_waits_out_its_deadline_in_each_layer() -> None:
    worker = Worker(Placement.LAYER, Era.LAYER)
    worker.begin("hung")
    worker.post("hung")
    worker.step("hung")
    assert worker.counted("barrier_timeouts_total", site="layer") == 3


def test_healthy_reads_are_awaited_though_another_request_failed() -> None:
    worker = Worker()
    worker.begin("bad", "good")
    bad, good = worker.post("bad"), worker.post("good")
    bad[0].fail()
    land(bad[1:])
    worker.clock.at(0.3, lambda: land(good))
    worker.observer.before_forward("NONE")
    worker.layers()
    worker.end("bad", recovers=True)
    assert worker.unprotected() == {"unprotected_steps_total|failed|certain": 1}
    counted = worker.aggregate.cumulative()["counters"]
    assert {k: v for k, v in counted.items() if k.startswith("exposed") and v} == {
        "exposed_requests_total|failed|certain|recomputed": 1
    }
    assert worker.counted("reads_failed_total", error_type="ERR_RDMA_OP") == 1


def test_upstreams_early_give_up_is_told_apart_from_the_failure_that_caused_it() -> None:
    worker = Worker(Placement.UPSTREAM)
    worker.begin("bad", "good")
    bad, good = worker.post("bad"), worker.post("good")
    bad[0].fail()
    worker.observer.before_forward("NONE")
    worker.observer.upstream_waited_at_layer(LAYERS[0], 0.001)
    land(bad[1:])
    land(good[1:])
    for name in LAYERS[1:]:
        worker.observer.upstream_waited_at_layer(name, 0.001)
    worker.end("bad", recovers=True)
    counted = worker.aggregate.cumulative()["counters"]
    assert {k: v for k, v in counted.items() if k.startswith("exposed") and v} == {
        "exposed_requests_total|failed|certain|recomputed": 1,
        "exposed_requests_total|gave_up|certain|reported": 1,
    }
    assert worker.counted("barrier_timeouts_total", site="layer") == 0


def test_upstreams_timeout_is_a_timeout() -> None:
    worker = Worker(Placement.UPSTREAM)
    worker.begin("r")
    land(worker.post("r")[1:])
    worker.observer.before_forward("NONE")
    for name in LAYERS:
        worker.observer.upstream_waited_at_layer(name, 30.0 if name == LAYERS[0] else 0.0)
    worker.end()
    assert worker.counted("barrier_timeouts_total", site="layer") == 1
    assert worker.unprotected() == {"unprotected_steps_total|timeout|certain": 1}


def test_upstreams_step_barrier_confirms_what_it_waited_for() -> None:
    worker = Worker(Placement.UPSTREAM)
    worker.begin("r")
    statuses = worker.post("r")
    worker.observer.upstream_starts_step_wait()
    worker.observer.upstream_covers(statuses)
    land(statuses)
    worker.observer.upstream_waited_before_forward(0.2)
    worker.step("r", mode="FULL", layers=())
    assert worker.unprotected() == {}
    waits = worker.aggregate.cumulative()["histograms"]["barrier_wait_seconds|step|0"]
    assert sum(waits[0]) == 1


def test_a_short_wait_after_the_forward_is_counted_with_its_step() -> None:
    worker = Worker(Placement.UPSTREAM)
    worker.begin("other", before=False)
    worker.observer.end_forward()
    statuses = worker.post("r")
    worker.observer.upstream_starts_step_wait()
    worker.observer.upstream_covers(statuses)
    land(statuses)
    worker.observer.upstream_waited_before_forward(0.001)
    worker.end()
    waits = worker.aggregate.cumulative()["histograms"]["barrier_wait_seconds|step|0"]
    assert sum(waits[0]) == 1, "there may be no further step for long"
    assert worker.counted("reads_landed_total") == len(statuses)


def test_reads_posted_after_the_forward_are_not_judged_by_it() -> None:
    worker = Worker(Placement.OFF)
    worker.begin("other", before=False)
    worker.observer.end_forward()
    worker.post("r")
    worker.end()
    assert worker.unprotected() == {}
    worker.begin("r", before=False)
    worker.end()
    assert worker.unprotected() == {"unprotected_steps_total|no_barrier|certain": 1}


def test_a_forward_that_ran_before_its_own_reads_were_posted_is_unprotected_once() -> None:
    worker = Worker()
    worker.begin("a", "b", before=False)
    worker.observer.end_forward()
    worker.post("a")
    worker.post("b")
    worker.end()
    assert worker.unprotected() == {"unprotected_steps_total|no_barrier|certain": 1}
    exposed = worker.counted(
        "exposed_requests_total", cause="no_barrier", certainty="certain", action="reported"
    )
    assert exposed == 2


def test_reads_posted_after_a_forward_are_waited_for_before_the_next() -> None:
    worker = Worker()
    worker.begin("other", before=False)
    worker.observer.end_forward()
    statuses = worker.post("r")
    worker.end()
    worker.clock.at(0.5, lambda: land(statuses))
    worker.begin("r", before=False)
    worker.layers()
    worker.end()
    assert worker.unprotected() == {}


def test_what_a_wait_between_steps_left_in_flight_is_told_before_the_forward() -> None:
    worker = Worker()
    worker.begin("other", before=False)
    worker.observer.end_forward()
    worker.post("r")
    worker.end()
    notes = StepNotes({"r": 1}, loads_before_forward=False)
    outcome = worker.observer.begin_step(notes, "NONE")
    assert outcome is not None
    assert outcome.timed_out


def test_a_read_that_had_failed_before_the_look_is_told_before_the_forward() -> None:
    worker = Worker(Placement.STEP, Era.STEP)
    worker.begin("r")
    statuses = worker.post("r")
    statuses[0].fail()
    land(statuses[1:])
    outcome = worker.observer.before_forward("NONE")
    assert outcome is not None
    assert outcome.failed == 1


def test_the_step_barrier_does_not_stall_for_a_request_that_is_gone() -> None:
    worker = Worker(Placement.STEP, Era.STEP)
    worker.begin("gone")
    worker.post("gone")
    worker.observer.finish({"gone"})
    before = worker.clock.now
    worker.begin("r")
    land(worker.post("r"))
    worker.step("r")
    assert worker.clock.now == before


def test_two_requests_of_one_transfer_are_settled_each_by_its_own_reads() -> None:
    worker = Worker(Placement.OFF)
    worker.begin("bad", "good")
    bad, good = worker.post("bad"), worker.post("good")
    bad[0].fail()
    land(bad[1:])
    land(good)
    worker.observer.before_forward("NONE")
    worker.end("bad", "good")
    assert worker.counted("remote_reads_total", remote="10.0.0.1:7301") == 3
    assert worker.counted("reads_failed_total", error_type="ERR_RDMA_OP") == 1
    worker.begin("bad", before=False)
    worker.end()
    assert worker.unprotected() == {"unprotected_steps_total|failed|certain": 2}


def test_a_read_that_fails_after_its_step_makes_the_next_one_unprotected_too() -> None:
    worker = Worker(Placement.OFF)
    worker.begin("r")
    statuses = worker.post("r")
    land(statuses[1:])
    worker.step("r")
    statuses[0].fail()
    worker.begin("r", before=False)
    worker.end("r", recovers=True)
    assert sum(worker.unprotected().values()) == 2


def test_the_step_barrier_waits_no_more_for_a_request_exposed_by_an_earlier_step() -> None:
    worker = Worker(Placement.STEP, Era.LAYER)
    worker.begin("hung")
    worker.post("hung")
    worker.step("hung")
    before = worker.clock.now
    worker.begin("hung", "r")
    land(worker.post("r"))
    worker.step("r")
    assert worker.clock.now == before
    assert worker.unprotected() == {
        "unprotected_steps_total|timeout|certain": 2,
    }


def test_a_finished_requests_reads_land_late_though_a_barrier_waits_for_them() -> None:
    worker = Worker(Placement.LAYER, Era.LAYER)
    worker.begin("gone")
    statuses = worker.post("gone")
    worker.begin("r", before=True)
    worker.observer.begin_step(StepNotes({"r": 1}, True, ended={"gone"}), "NONE")
    land(worker.post("r"))
    worker.clock.at(0.2, lambda: land(statuses))
    worker.step("r")
    assert worker.counted("late_landings_total", quarantined="false") == 3
    assert worker.unprotected() == {}


def test_a_preempted_requests_reads_land_late() -> None:
    worker = Worker(Placement.OFF)
    worker.begin("r")
    statuses = worker.post("r")
    worker.step("r")
    worker.observer.begin_step(StepNotes({"other": 1}, True, ended={"r"}), "NONE")
    land(statuses)
    worker.end("r")
    assert worker.counted("late_landings_total", quarantined="false") == 3
    assert worker.unprotected() == {"unprotected_steps_total|no_barrier|certain": 1}


def test_every_layer_of_a_request_that_was_given_up_has_the_same_cause() -> None:
    worker = Worker()
    worker.learn_hooks()
    worker.begin("hung")
    worker.post("hung")
    worker.step("hung")
    assert worker.counted("unlanded_reads_total", cause="timeout", certainty="certain") == 3
    assert worker.counted("unlanded_reads_total", cause="no_barrier", certainty="certain") == 0


def test_our_own_time_holds_no_time_waited_for_reads() -> None:
    worker = Worker()
    worker.begin("other", before=False)
    worker.observer.end_forward()
    worker.post("hung")
    worker.end()
    worker.begin("hung", before=False)
    worker.layers()
    worker.end()
    assert worker.counted("telemetry_overhead_seconds_total") < 1


def test_a_kind_of_step_in_which_the_hooks_do_not_fire_is_told_from_one_in_which_they_do() -> None:
    worker = Worker()
    for step in range(6):
        mode = ("NONE", "PIECEWISE")[step % 2]
        worker.begin(f"r{step}", mode=mode)
        statuses = worker.post(f"r{step}")
        worker.clock.at(0.2, lambda landing=statuses: land(landing))
        worker.step(f"r{step}", mode=mode, layers=LAYERS if mode == "NONE" else ())
    assert worker.unprotected() == {}


def test_a_layer_hook_that_failed_to_fire_once_is_never_relied_on_again() -> None:
    worker = Worker()
    fired: list[list[str]] = [LAYERS, LAYERS, LAYERS[:2], LAYERS, LAYERS[:2], LAYERS]
    for step, layers in enumerate(fired):
        worker.begin(f"r{step}")
        statuses = worker.post(f"r{step}")
        worker.clock.at(0.2, lambda landing=statuses: land(landing))
        worker.step(f"r{step}", layers=layers)
        worker.observer.finish({f"r{step}"})
    assert sum(worker.unprotected().values()) == 1


def test_reads_whose_layer_hook_did_not_fire_are_waited_for_before_the_next_forward() -> None:
    worker = Worker()
    worker.learn_hooks()
    worker.begin("b")
    statuses = worker.post("b")
    worker.step("b", layers=())
    worker.clock.at(0.2, lambda: land(statuses))
    worker.begin("b", before=False)
    worker.end()
    assert sum(worker.unprotected().values()) == 1


def test_a_draft_models_layers_are_waited_for_before_the_forward() -> None:
    worker = Worker(hookless=[LAYERS[2]])
    worker.learn_hooks()
    worker.begin("b")
    worker.post_slow("b")
    outcome = worker.observer.before_forward("NONE")
    assert outcome is not None
    assert outcome.landed == 1


def test_a_runtime_mode_nobody_has_heard_of_is_counted_as_none() -> None:
    worker = Worker()
    worker.begin("r", before=False, mode="SOMETHING_NEW")
    worker.end()
    assert worker.counted("steps_total", runtime_mode="NONE", reads="false") == 1


def test_a_step_without_a_forward_exposes_nobody() -> None:
    worker = Worker(Placement.OFF)
    worker.begin()
    worker.post("r")
    worker.observer.before_forward("NONE")
    worker.end()
    assert worker.unprotected() == {}
    assert (
        sum(
            v
            for k, v in worker.aggregate.cumulative()["counters"].items()
            if k.startswith("steps_")
        )
        == 0
    )


def test_a_step_that_upstream_broke_off_is_not_judged_but_its_timeout_counts() -> None:
    worker = Worker(Placement.STEP, Era.STEP)
    worker.begin("r")
    worker.post("r")
    outcome = worker.observer.before_forward("NONE")
    assert outcome is not None
    assert outcome.timed_out
    worker.begin("r", before=False)  # the step before never ended: start_load_kv raised
    assert worker.unprotected() == {}
    assert worker.counted("barrier_timeouts_total", site="step") >= 1


def test_a_step_without_reads_has_nothing_to_say_and_arms_no_layer() -> None:
    worker = Worker()
    worker.begin("r", before=False)
    assert not worker.observer.armed
    worker.end()
    assert not worker.observer.news


def test_a_step_with_reads_says_so_at_once() -> None:
    worker = Worker()
    worker.begin("r")
    land(worker.post("r"))
    worker.step("r")
    assert worker.observer.news


def idle_step(worker: Worker, *requests: str, before: bool = False, mode: str = "NONE") -> None:
    assert worker.observer.at_rest
    worker.observer.begin_idle_step(StepNotes(dict.fromkeys(requests, 1), before), mode)


def test_an_idle_step_is_counted_once_in_its_mode() -> None:
    worker = Worker()
    idle_step(worker, "r", mode="FULL")
    worker.observer.end_idle_step()
    worker.observer.end_idle_step()
    worker.end()
    assert worker.counted("steps_total", runtime_mode="FULL", reads="false") == 1
    assert not worker.observer.news


def test_an_idle_step_that_runs_no_forward_is_none() -> None:
    worker = Worker()
    idle_step(worker)
    worker.observer.end_idle_step()
    assert worker.counted("steps_total", runtime_mode="NONE", reads="false") == 0


def test_an_idle_step_in_which_reads_are_posted_is_a_step_with_reads_from_then_on() -> None:
    worker = Worker()
    idle_step(worker, "r", before=True)
    worker.clock.sleep(5.0)
    worker.observer.wake(worker.clock(), after_forward=False)
    assert not worker.observer.idle
    land(worker.post("r"))
    worker.step("r")
    worker.clock.sleep(1.0)
    worker.end()
    assert worker.counted("steps_total", runtime_mode="NONE", reads="true") == 1
    assert worker.counted("steps_total", runtime_mode="NONE", reads="false") == 0
    assert worker.unprotected() == {}
    assert worker.aggregate.histogram("step_seconds").sum == pytest.approx(0.0)


def test_what_is_posted_after_the_forward_of_an_idle_step_that_needed_it_is_exposed() -> None:
    worker = Worker()
    idle_step(worker, "r")
    worker.observer.wake(worker.clock(), after_forward=True)
    land(worker.post("r"))
    worker.end("r")
    assert sum(worker.unprotected().values()) == 1
    assert worker.counted("steps_total", runtime_mode="NONE", reads="false") == 1


def test_nothing_is_at_rest_while_a_read_is_in_flight() -> None:
    worker = Worker()
    worker.begin("r")
    statuses = worker.post("r")
    assert not worker.observer.at_rest
    land(statuses)
    worker.step("r")
    worker.end("r")
    assert worker.observer.at_rest


def test_nothing_is_at_rest_before_an_exposure_has_been_handed_over() -> None:
    worker = Worker(Placement.OFF)
    worker.begin("r")
    statuses = worker.post("r")
    worker.step("r")
    land(statuses)
    worker.begin("r", before=False)
    worker.end("r")
    assert not worker.observer.at_rest
    assert worker.observer.take_exposed()
    assert worker.observer.at_rest


def test_recurrent_state_has_no_layer_hook_and_is_waited_for_before_the_forward() -> None:
    worker = Worker(Placement.LAYER, hookless=[LAYERS[2]])
    worker.begin("r")
    worker.post_slow("r")
    outcome = worker.observer.before_forward("NONE")
    assert outcome is not None
    assert outcome.landed == 1


def test_an_aborted_read_that_lands_later_is_a_late_landing() -> None:
    worker = Worker(Placement.OFF)
    worker.begin("r")
    statuses = worker.post("r")
    worker.observer.before_forward("NONE")
    worker.end("r")
    assert worker.counted("reads_aborted_total") == 3
    land(statuses)
    worker.begin("other", before=False)
    worker.end()
    assert worker.counted("late_landings_total", quarantined="false") == 3


def test_each_exposed_request_is_one_log_line_with_a_json_object(
    caplog: pytest.LogCaptureFixture,
) -> None:
    worker = Worker(Placement.OFF)
    hostile = 'cmpl-"quoted"\nnew line' + "x" * 4096
    worker.begin(hostile)
    worker.post(hostile)
    with caplog.at_level(logging.WARNING, logger="vllm.moriio_observed"):
        worker.step(hostile)
    lines = [r.getMessage() for r in caplog.records if "moriio_exposure" in r.getMessage()]
    assert len(lines) == 1
    assert "\n" not in lines[0]
    told = json.loads(lines[0].removeprefix("moriio_exposure "))
    assert told == {
        "request_id": hostile[:512],
        "step": 1,
        "cause": "no_barrier",
        "certainty": "certain",
        "layers": [0, 1, 2],
        "action": "reported",
    }


def test_remotes_beyond_the_limit_are_counted_together() -> None:
    worker = Worker()
    for index in range(4):
        name = f"r{index}"
        worker.begin(name)
        land(worker.post(name, remote=f"10.0.0.{index}:7301"))
        worker.observer.before_forward("NONE")
        worker.layers()
        worker.end(name)
    assert worker.counted("remote_reads_total", remote="10.0.0.0:7301") == 3
    assert worker.counted("remote_reads_total", remote="other") == 6


def test_the_gauges_say_how_many_reads_are_in_flight_and_how_old_the_oldest_is() -> None:
    worker = Worker(Placement.OFF)
    worker.begin("r")
    worker.post("r")
    worker.clock.sleep(4.0)
    worker.observer.gauge()
    gauges = worker.aggregate.cumulative()["gauges"]
    assert gauges["reads_in_flight|0"]["rank 0"][1] == 3
    assert gauges["oldest_read_age_seconds|0"]["rank 0"][1] == 4.0


def test_a_lease_runs_on_while_its_step_waits_to_be_run() -> None:
    notes = StepNotes(lease_left={"r": 10.0}, built_at=1000.0)
    assert notes.lease_left_at(1004.0) == {"r": 6.0}
    # The clocks of two hosts may disagree.
    assert notes.lease_left_at(999.0) == {"r": 10.0}


def test_a_step_that_fails_in_its_forward_serves_nobody_and_is_not_judged() -> None:
    w = Worker(Placement.OFF)
    w.begin("a")
    w.post("a")
    w.observer.before_forward("NONE")
    w.observer.fail_step()
    assert w.observer.step_failed
    w.end()
    assert w.unprotected() == {}
    w.begin("a")
    assert not w.observer.step_failed
