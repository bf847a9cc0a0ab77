"""The connector on the installed vLLM: upstream's own methods, with reads a test lands."""

from __future__ import annotations

import functools
import gc
import json
import logging
import math
import pickle
import threading
import tracemalloc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moriio_observed import loopback
from tests.unit.fakes import FakeStatus

loopback.activate({"MORIIO_OBSERVED_LOOPBACK": "auto"})

from vllm.config import CUDAGraphMode  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.moriio import moriio_connector  # noqa: E402

from moriio_observed import upstream  # noqa: E402
from moriio_observed.barrier import Era, place  # noqa: E402
from moriio_observed.config import SettingsError  # noqa: E402
from moriio_observed.connector import FLUSH_S, LOOK_S  # noqa: E402
from moriio_observed.upstream.posting import Posting  # noqa: E402
from tests.unit.scripted import LAYERS, Decode, ScriptedWorker  # noqa: E402

CASES = Path(__file__).parents[1] / "cases"
ERA = upstream.Seams.detect().era


@pytest.fixture
def decode(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    built: list[Decode] = []

    def build(**observed: Any) -> Decode:
        built.append(Decode(monkeypatch, observed or None))
        return built[-1]

    yield build
    for each in built:
        each.connector.shutdown()


def broken(*_: Any, **__: Any) -> None:
    raise KeyError("a bug")


def land(statuses: list[FakeStatus]) -> None:
    for status in statuses:
        status.land()


def land_soon(decode: Decode, after_s: float = 0.01, posted: int = len(LAYERS)) -> threading.Thread:
    """Land all reads once they have been posted, from another thread, which is returned."""

    def wait_and_land() -> None:
        statuses = decode.worker.session.posted
        while len(statuses) < posted:
            threading.Event().wait(0.001)
        threading.Event().wait(after_s)
        land(statuses)

    landing = threading.Thread(target=wait_and_land, daemon=True)
    landing.start()
    return landing


def test_a_read_is_entered_for_every_layer_that_upstream_posts(decode: Any) -> None:
    d = decode()
    land_soon(d)
    d.step("r", reading=["r"])
    assert d.counted("reads_posted_total") == {"reads_posted_total": 4}
    assert d.counted("requests_total") == {"requests_total": 1}


def test_slow_reads_are_waited_for_under_auto(decode: Any) -> None:
    d = decode()
    land_soon(d)
    d.step("r", reading=["r"])
    assert d.counted("unprotected_steps_total") == {}
    assert d.counted("reads_landed_total") == {"reads_landed_total": 4}


def test_landed_requests_are_released_by_upstreams_own_clean_up(decode: Any) -> None:
    d = decode()
    land_soon(d)
    d.step("r", reading=["r"])
    assert len(d.sent) == 1
    assert d.counted("remote_reads_total") == {"remote_reads_total|127.0.0.1:7301": 4}


def test_off_lets_the_forward_run_ahead_of_its_reads(decode: Any) -> None:
    d = decode(barrier="off", allow_unsafe=True)
    d.step("r", reading=["r"])
    assert d.counted("unprotected_steps_total") == {"unprotected_steps_total|no_barrier|certain": 1}


def test_a_full_graph_that_model_runner_v1_shows_is_protected_under_auto(decode: Any) -> None:
    d = decode()
    land_soon(d)
    d.step("r", reading=["r"], mode="FULL", layers=())
    assert d.counted("unprotected_steps_total") == {}
    assert d.counted("full_graph_skips_total") == {"full_graph_skips_total|true": 1}


def test_a_full_graph_that_model_runner_v2_hides_is_protected_under_auto(decode: Any) -> None:
    d = decode()
    land_soon(d)
    d.step("r", reading=["r"], layers=(), hidden=True, load_kwargs={"attn_metadata": {"x": 1}})
    assert d.counted("unprotected_steps_total") == {}
    assert d.counted("steps_total") == {"steps_total|FULL|true": 1}


def test_a_hidden_full_graph_is_recognised_by_its_tokens_where_no_keywords_are_passed(
    decode: Any,
) -> None:
    d = decode()
    land_soon(d)
    d.step("r", reading=["r"], layers=(), hidden=True)
    assert d.counted("steps_total") == {"steps_total|FULL|true": 1}


@pytest.mark.skipif(ERA is Era.STEP, reason="0.33 awaits every read before the forward itself")
def test_a_hidden_full_graph_is_unprotected_under_upstreams_own_barrier(decode: Any) -> None:
    d = decode(barrier="upstream")
    d.step("r", reading=["r"], layers=(), hidden=True, load_kwargs={"attn_metadata": {"x": 1}})
    assert d.counted("unprotected_steps_total") == {"unprotected_steps_total|full_graph|certain": 1}


@pytest.mark.skipif(ERA is Era.STEP, reason="0.33 has no layer barrier")
def test_upstreams_own_layer_barrier_is_timed_and_believed(decode: Any) -> None:
    d = decode(barrier="upstream")
    land_soon(d)
    d.step("r", reading=["r"])
    assert d.counted("unprotected_steps_total") == {}
    waits = d.connector._aggregate.cumulative()["histograms"]["barrier_wait_seconds|layer|0"]
    assert sum(waits[0]) == 4


def test_a_failed_read_exposes_its_request_and_no_other(decode: Any) -> None:
    d = decode()

    def fail_one_land_rest() -> None:
        posted = d.worker.session.posted
        while len(posted) < 8:
            threading.Event().wait(0.001)
        posted[0].fail()
        land(posted[1:])

    threading.Thread(target=fail_one_land_rest, daemon=True).start()
    result = d.step("bad", "good", reading=["bad", "good"])
    action = "recomputed" if upstream.Seams.detect().load_errors else "reported"
    assert d.counted("exposed_requests_total") == {
        f"exposed_requests_total|failed|certain|{action}": 1
    }
    assert bool(result.invalid) == upstream.Seams.detect().load_errors
    assert d.counted("load_error_blocks_total") == (
        {"load_error_blocks_total": 2} if result.invalid else {}
    )
    assert d.counted("reads_failed_total") == {"reads_failed_total|ERR_RDMA_OP": 1}


@pytest.mark.skipif(ERA is Era.STEP, reason="0.33 fails the step")
def test_a_hung_read_times_out_and_the_forward_goes_on(decode: Any) -> None:
    d = decode()
    d.step("r", reading=["r"])
    assert d.counted("unprotected_steps_total") == {"unprotected_steps_total|timeout|certain": 1}
    assert d.counted("barrier_timeouts_total") == {"barrier_timeouts_total|step": 1}


@pytest.mark.skipif(ERA is not Era.STEP, reason="only 0.33 fails the step")
def test_a_hung_read_fails_the_step_and_counts_with_the_next(decode: Any) -> None:
    d = decode()
    with pytest.raises(upstream.TransferError):
        d.step("r", reading=["r"])
    assert d.counted("barrier_timeouts_total") == {"barrier_timeouts_total|step": 1}
    assert d.counted("unprotected_steps_total") == {}


@pytest.mark.skipif(ERA is Era.LAYER, reason="hybrid models came with 0.31")
@pytest.mark.parametrize("barrier", ["auto", "step", "upstream"])
def test_a_hybrid_step_with_a_failed_read_is_failed_as_upstream_fails_it(
    decode: Any, barrier: str
) -> None:
    d = decode(barrier=barrier)
    d.worker.make_hybrid()
    d.worker.session.failures = 1
    land_soon(d)
    with pytest.raises(upstream.TransferError):
        d.step("r", reading=["r"], mode="FULL", layers=())


@pytest.mark.skipif(ERA is Era.LAYER, reason="hybrid models came with 0.31")
def test_a_hybrid_step_whose_reads_land_is_not_failed(decode: Any) -> None:
    d = decode()
    d.worker.make_hybrid()
    land_soon(d)
    d.step("r", reading=["r"])
    assert d.counted("unprotected_steps_total") == {}


def test_our_own_fallback_wait_covers_healthy_reads_though_one_has_failed(
    decode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    d = decode(barrier="step")
    monkeypatch.setattr(d.connector._observer, "before_forward", broken)
    d.worker.session.failures = 1
    land_soon(d)
    d.step("r", reading=["r"])
    assert [status.state for status in d.worker.session.posted] == ["failed"] + ["landed"] * 3


def test_a_peer_failure_nobody_can_read_silences_nothing_else(decode: Any) -> None:
    d = decode()
    d.worker.moriio_engine.pop_peer_failure = object
    land_soon(d)
    counters = d.step("r", reading=["r"]).stats.data["counters"]
    assert counters["telemetry_errors_total|metrics"] == 1
    land_soon(d, posted=8)
    counters = d.step("s", reading=["s"]).stats.data["counters"]
    assert counters["reads_landed_total"] == 4


def test_statistics_that_fail_still_send_what_was_counted(
    decode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    d = decode()
    monkeypatch.setattr(d.connector, "_set_gauges", broken)
    land_soon(d)
    counters = d.step("r", reading=["r"]).stats.data["counters"]
    assert counters["reads_landed_total"] == 4
    assert counters["telemetry_errors_total|metrics"] == 1


@pytest.mark.skipif(ERA is Era.LAYER, reason="hybrid models came with 0.31")
def test_a_hybrid_load_after_the_forward_is_awaited_by_upstream_as_ever(decode: Any) -> None:
    d = decode()
    d.worker.make_hybrid()
    d.worker.mamba_layers = set(LAYERS)
    d.worker.session.failures = 1
    land_soon(d)
    with pytest.raises(upstream.TransferError):
        d.step("r", reading=["r"], loads_first=False)


def test_hooks_that_stepped_back_are_shown_as_not_installed_and_the_gauges_as_unknown(
    decode: Any,
) -> None:
    d = decode()
    d.connector._hooks.containment.step_back(KeyError("a bug"))
    d.connector._news = True
    gauges = d.step("r", loads_first=False).stats.data["gauges"]
    assert gauges["hook_installed|read_blocks"]["rank 0"][1] == 0
    assert math.isnan(gauges["reads_in_flight|0"]["rank 0"][1])


def test_upstreams_barrier_is_reached_for_every_layer_even_after_the_forward(
    decode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    d = decode(barrier="upstream")
    reached: list[str] = []
    monkeypatch.setattr(
        moriio_connector.MoRIIOConnector,
        "wait_for_layer_load",
        lambda _, name: reached.append(name),
    )
    land_soon(d)
    d.step("r", reading=["r"])
    d.connector.wait_for_layer_load("model.layers.4.draft")
    assert reached == [*LAYERS, "model.layers.4.draft"]


def test_draft_layers_are_those_numbered_behind_the_targets_or_named_so(decode: Any) -> None:
    d = decode()
    draft = ("model.layers.4.self_attn.attn", "draft_model.model.layers.0.self_attn.attn")
    d.worker.kv_caches = dict.fromkeys([*LAYERS, *draft])
    assert d.connector._hooks.hookless_layers(4) == draft
    assert d.connector._hooks.hookless_layers(0) == draft[1:]


def test_a_request_finished_before_the_step_is_known_to_be_gone_when_it_begins(
    decode: Any,
) -> None:
    d = decode(barrier="layer")
    d.step("gone", reading=["gone"], layers=())
    first = list(d.worker.session.posted)

    def land_soon_after() -> None:
        threading.Event().wait(0.01)
        land(first)

    threading.Thread(target=land_soon_after, daemon=True).start()
    d.step("other", loads_first=None, finished={"gone"})
    assert d.counted("late_landings_total") == {"late_landings_total|false": 4}


def test_blocks_that_nobody_posted_reads_for_now_are_no_reads(decode: Any) -> None:
    d = decode()
    land_soon(d)
    d.step("r", reading=["r"])
    posted = d.counted("reads_posted_total")
    d.worker._recving_transfers["r"] = {LAYERS[0]: [FakeStatus()]}
    d.worker._recving_transfers_callback_addr["r"] = ("127.0.0.1", "62005", "tx-r")
    call = {"request_id": "r", "transfer_id": "tx-r", "dst_engine_id": "x"}
    found = d.worker._moriio_observed._find(Posting(), None, (), call)
    d.connector._observer.posted(*found, 0.0, 0.0)
    assert d.counted("reads_posted_total") == posted


def test_a_rejected_post_is_backpressure_and_no_failure(decode: Any) -> None:
    d = decode()
    d.worker.session.rejections = 2
    land_soon(d)
    d.step("r", reading=["r"])
    assert d.counted("send_queue_full_total") == {"send_queue_full_total": 2}
    assert d.counted("reads_failed_total") == {}
    assert d.counted("unprotected_steps_total") == {}


def test_what_was_posted_is_let_go_with_its_request(decode: Any) -> None:
    d = decode()
    landing = land_soon(d)
    d.step("r", reading=["r"])
    landing.join()
    posted = [weakref.ref(status) for status in d.worker.session.posted]
    d.worker.session.posted.clear()
    d.step("other", finished={"r"})
    gc.collect()
    assert len(posted) == len(LAYERS)
    assert [status() for status in posted] == [None] * len(LAYERS)


def test_reads_are_not_judged_by_a_forward_that_ran_before_they_were_posted(decode: Any) -> None:
    d = decode(barrier="off", allow_unsafe=True)
    d.step("other", reading=["r"], loads_first=False)
    assert d.counted("unprotected_steps_total") == {}


def test_what_the_scheduler_side_knows_of_a_step_reaches_a_worker_in_another_process(
    decode: Any,
) -> None:
    metadata = decode().metadata(["r"], ["r"], loads_first=None)
    sent = pickle.loads(pickle.dumps(metadata))  # noqa: S301  (as vLLM does)
    assert upstream.read_notes(sent) == upstream.read_notes(metadata)
    assert upstream.read_notes(sent).scheduled == {"r": 1}


def test_a_step_without_reads_sends_no_statistics_of_its_own(decode: Any) -> None:
    d = decode()
    land_soon(d)
    assert d.step("r", reading=["r"]).stats is not None
    assert d.step("r", loads_first=False).stats is None


def test_what_quiet_steps_counted_travels_after_a_while(
    decode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    d = decode()
    land_soon(d)
    d.step("r", reading=["r"])
    d.step("r", loads_first=False)
    monkeypatch.setattr(d.connector, "_look_at", d.connector._look_at - LOOK_S)
    assert d.step("r", loads_first=False).stats is None
    monkeypatch.setattr(d.connector, "_look_at", d.connector._look_at - LOOK_S)
    monkeypatch.setattr(d.connector, "_flush_at", d.connector._flush_at - FLUSH_S)
    stats = d.step("r", loads_first=False).stats
    assert stats.data["counters"]["steps_total|NONE|false"] == 3


def test_how_old_a_read_in_flight_is_travels_sooner_than_quiet_steps_are_told(
    decode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    d = decode(guard="recompute")
    d.step("other", reading=["r"])
    assert d.step("other").stats is None
    monkeypatch.setattr(d.connector, "_look_at", d.connector._look_at - LOOK_S)
    stats = d.step("other").stats
    assert stats.data["gauges"]["oldest_read_age_seconds|0"]["rank 0"][1] > 0


def test_a_peers_failure_is_looked_for_sooner_than_quiet_steps_are_told(
    decode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    d = decode()
    d.step("r", loads_first=False)
    failures = ["PEER_UNREACHABLE"]
    monkeypatch.setattr(d.connector._hooks, "peer_failures", lambda: [failures.pop()])
    monkeypatch.setattr(d.connector, "_look_at", d.connector._look_at - LOOK_S)
    stats = d.step("r", loads_first=False).stats
    assert stats.data["counters"]["peer_failures_total|PEER_UNREACHABLE"] == 1


def test_a_layer_hook_allocates_nothing_while_no_read_is_in_flight(decode: Any) -> None:
    d = decode()
    land_soon(d)
    d.step("r", reading=["r"])
    hook = d.connector.wait_for_layer_load
    name = LAYERS[0]
    hook(name)
    tracemalloc.start()
    try:
        before = tracemalloc.take_snapshot()
        for _ in range(1000):
            hook(name)
        after = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    ours = tracemalloc.Filter(True, "*moriio_observed*")
    grown = after.filter_traces([ours]).compare_to(before.filter_traces([ours]), "lineno")
    assert sum(entry.size_diff for entry in grown) == 0


def test_shutdown_leaves_upstreams_objects_as_they_were_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    d = Decode(monkeypatch)
    assert type(d.worker) is not ScriptedWorker
    d.connector.shutdown()
    assert type(d.worker) is ScriptedWorker
    assert type(d.worker.moriio_wrapper) is moriio_connector.MoRIIOWrapper
    assert not hasattr(d.worker, "_moriio_observed")


def test_a_worker_is_never_hooked_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    d = Decode(monkeypatch)
    again = upstream.Hooks(d.worker, upstream.Seams.detect(), d.connector._aggregate)
    with pytest.raises(ValueError, match="hooked already"):
        again.install(None)
    d.connector.shutdown()


@pytest.mark.parametrize(("role", "asked"), [("kv_consumer", 0), ("kv_producer", 1)])
def test_only_an_engine_that_saves_is_asked_to_save_a_layer(
    monkeypatch: pytest.MonkeyPatch, role: str, asked: int
) -> None:
    saved = []
    monkeypatch.setattr(
        moriio_connector.MoRIIOConnectorWorker, "save_kv_layer", lambda *args: saved.append(args)
    )
    one = Decode(monkeypatch, role=role)
    one.connector.bind_connector_metadata(one.metadata((), ["r"]))
    one.connector.save_kv_layer(LAYERS[0], None, None)
    assert len(saved) == asked
    assert one.connector._saves is bool(asked)


def test_a_layer_is_saved_as_upstream_saves_it_where_saving_has_become_something_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def save_kv_layer(self: Any, layer_name: str, *_: Any, **__: Any) -> None:
        self.copies.append(layer_name)

    save_kv_layer.__module__ = moriio_connector.__name__
    monkeypatch.setattr(moriio_connector.MoRIIOConnector, "save_kv_layer", save_kv_layer)
    assert not upstream.Seams.saves_nothing(Decode(monkeypatch).worker)


def test_a_layer_is_saved_as_somebody_elses_wrapper_saves_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    saved = []
    upstreams = moriio_connector.MoRIIOConnector.save_kv_layer

    @functools.wraps(upstreams)
    def save_kv_layer(self: Any, layer_name: str, *args: Any, **kwargs: Any) -> None:
        saved.append(layer_name)
        upstreams(self, layer_name, *args, **kwargs)

    monkeypatch.setattr(moriio_connector.MoRIIOConnector, "save_kv_layer", save_kv_layer)
    Decode(monkeypatch).connector.save_kv_layer(LAYERS[0], None, None)
    assert saved == LAYERS[:1]


def test_a_producer_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    d = Decode(monkeypatch, role="kv_producer")
    d.connector.wait_for_layer_load(LAYERS[0])
    assert not d.connector._watch.armed


def test_a_release_leaves_a_producer_with_its_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    d = Decode(monkeypatch, role="kv_producer")
    d.worker.moriio_wrapper._handle_release_message({"transfer_id": "tx-r"})
    stats = d.connector.get_kv_connector_stats()
    assert stats.data["counters"]["releases_total"] == 1
    assert d.connector.get_kv_connector_stats() is None


def test_a_write_mode_engine_moves_no_barrier_series(monkeypatch: pytest.MonkeyPatch) -> None:
    d = Decode(monkeypatch, read_mode="false")
    assert d.connector._observer is None
    assert not d.connector._watch.armed
    assert d.counted("barrier") == {}


def test_an_error_of_ours_leaves_the_wait_to_upstream(
    decode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    d = decode()
    monkeypatch.setattr(d.connector._observer, "before_forward", broken)
    land_soon(d)
    d.step("r", reading=["r"])
    assert all(status.state == "landed" for status in d.worker.session.posted)
    assert d.counted("telemetry_errors_total") == {"telemetry_errors_total|metrics": 1}


@pytest.mark.skipif(ERA is Era.STEP, reason="0.33 has no layer barrier")
def test_after_an_error_of_ours_every_layer_reaches_upstreams_barrier(
    decode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    d = decode()
    d.connector._hooks.containment.step_back(KeyError("a bug"))
    reached: list[str] = []
    monkeypatch.setattr(d.worker, "wait_for_layer_load", reached.append)
    land_soon(d)
    d.step("r", reading=["r"])
    d.step("r")
    assert reached == LAYERS * 2


def test_the_cuda_graph_mode_is_never_overridden() -> None:
    cls = moriio_connector.MoRIIOConnector
    from moriio_observed.connector import ObservedMoRIIOConnector

    for read_mode in (True, False):
        extra = {"read_mode": read_mode, "observed": {"barrier": "layer"}}
        assert ObservedMoRIIOConnector.requires_piecewise_for_cudagraph(extra) is False
        assert cls.requires_piecewise_for_cudagraph(extra) is False


def test_bad_settings_are_refused_when_vllm_asks_for_the_graph_mode_before_it_loads_a_model() -> (
    None
):
    from moriio_observed.connector import ObservedMoRIIOConnector

    with pytest.raises(SettingsError, match="did you mean barrier"):
        ObservedMoRIIOConnector.requires_piecewise_for_cudagraph({"observed": {"barier": "step"}})


@pytest.mark.parametrize(
    "observed",
    [
        {"guard": "fail"},
        {"otlp": {"sample_ratio": 1.5}},
        {"exporter": {"port": 70_000}},
        {"barier": "layer"},
    ],
)
def test_a_setting_that_cannot_be_honoured_refuses_to_start(
    observed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SettingsError, match=r"kv_connector_extra_config\.observed"):
        Decode(monkeypatch, observed)


def test_an_unknown_vllm_runs_as_upstream_wrote_it(monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = upstream.Seams(Era.UNKNOWN, {"read_blocks": False}, load_errors=False)
    monkeypatch.setattr(upstream.Seams, "detect", lambda: unknown)
    d = Decode(monkeypatch)
    assert type(d.worker) is ScriptedWorker
    assert d.connector._watch.armed
    gauges = d.connector._aggregate.cumulative()["gauges"]
    assert gauges["hook_installed|read_blocks"]["rank 0"][1] == 0


def test_an_unknown_vllm_refuses_a_barrier_the_user_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unknown = upstream.Seams(Era.UNKNOWN, {"read_blocks": False}, load_errors=False)
    monkeypatch.setattr(upstream.Seams, "detect", lambda: unknown)
    with pytest.raises(SettingsError, match="'step' cannot be honoured"):
        Decode(monkeypatch, {"barrier": "step"})
    with pytest.raises(SettingsError, match="'recompute' cannot be honoured"):
        Decode(monkeypatch, {"guard": "recompute"})


@pytest.mark.parametrize("barrier", ["auto", "layer"])
def test_full_and_piecewise_graphs_are_left_as_configured_and_warned_of_only_if_unprotected(
    barrier: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    case = json.loads((CASES / "read-full-and-piecewise.json").read_text())
    mode = CUDAGraphMode[case["compilation_config"]["cudagraph_mode"]]
    extra = case["kv_transfer_config"]["kv_connector_extra_config"]
    with caplog.at_level(logging.WARNING, logger="vllm.moriio_observed"):
        d = Decode(
            monkeypatch,
            {"barrier": barrier},
            graphs=mode,
            **{key: extra[key] for key in ("qp_per_transfer", "num_workers")},
        )
    assert d.config.compilation_config.cudagraph_mode is mode
    warned = [r for r in caplog.records if "FULL graph replay" in r.getMessage()]
    assert len(warned) == (1 if barrier == "layer" else 0)
    d.connector.shutdown()


@pytest.mark.parametrize(
    ("barrier", "era", "v2", "warns"),
    [
        ("auto", Era.LAYER, False, False),
        ("auto", Era.LAYER_AND_STEP, True, False),
        ("upstream", Era.LAYER, False, True),
        ("upstream", Era.LAYER_AND_STEP, False, False),
        ("upstream", Era.LAYER_AND_STEP, True, True),
        ("layer", Era.LAYER_AND_STEP, False, True),
        ("step", Era.LAYER, False, False),
    ],
)
def test_we_warn_only_where_the_effective_barrier_leaves_full_graphs_unprotected(
    barrier: str, era: Era, v2: bool, warns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    d = Decode(monkeypatch)
    d.config.compilation_config.cudagraph_mode = CUDAGraphMode.FULL
    d.config.use_v2_model_runner = v2
    warning = upstream.effective_warning(place(barrier, era), era, d.config)
    assert (warning is not None) is warns
    d.connector.shutdown()
