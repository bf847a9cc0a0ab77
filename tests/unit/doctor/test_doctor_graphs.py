"""READ with FULL CUDA graphs, by version, runner and barrier."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from moriio_observed.doctor.engines import Engine
from moriio_observed.doctor.findings import Severity
from tests.unit.doctor.patients import bare, config, engine, matters, only, told

HOLE = "full-graphs-unprotected"


@pytest.mark.parametrize("version", ["0.28.0", "0.29.0", "0.30.0"])
@pytest.mark.parametrize("runner", ["0", "1"])
def test_bare_vllm_up_to_0_30_leaves_full_steps_unprotected(version: str, runner: str) -> None:
    assert HOLE in matters(engine(bare(), version=version, VLLM_USE_V2_MODEL_RUNNER=runner))


@pytest.mark.parametrize("transfer", [bare(), config()], ids=["bare", "ours"])
@pytest.mark.parametrize("graphs", ["FULL", "NONE"])
def test_0_27_waits_for_nothing_whatever_the_graphs_are(
    transfer: dict[str, Any], graphs: str
) -> None:
    names = matters(engine(transfer, version="0.27.0", graphs=graphs))
    assert "no-barrier" in names
    assert HOLE not in names


def test_0_27_in_write_mode_has_no_reads_to_wait_for() -> None:
    assert "no-barrier" not in matters(engine(bare(read_mode=False), version="0.27.0"))


@pytest.mark.parametrize("version", ["0.31.0", "0.32.0"])
def test_0_31_and_0_32_protect_them_where_they_can_see_them(version: str) -> None:
    assert HOLE in matters(engine(bare(), version=version))
    assert HOLE not in matters(engine(bare(), version=version, VLLM_USE_V2_MODEL_RUNNER="0"))


def test_0_33_protects_them() -> None:
    assert HOLE not in matters(engine(bare(), version="0.33.0"))


@pytest.mark.parametrize("barrier", ["auto", "adaptive", "step"])
def test_our_barrier_protects_them(barrier: str) -> None:
    sound = engine(config(observed={"barrier": barrier}), version="0.30.0")
    assert HOLE not in matters(sound)


def test_a_layer_barrier_does_not() -> None:
    layer = engine(config(observed={"barrier": "layer"}), version="0.33.0")
    assert HOLE in matters(layer)


def test_a_guard_does_whatever_the_barrier_is() -> None:
    guarded = config(observed={"barrier": "layer", "guard": "fail"})
    assert HOLE not in matters(engine(guarded, version="0.30.0"))


def test_what_is_in_force_is_shown() -> None:
    found = only(HOLE, told(engine(bare(), version="0.30.0", VLLM_USE_V2_MODEL_RUNNER="0")))
    assert found.what.endswith("on vLLM 0.30.0 (Model Runner V1)")
    places = [str(place) for place in found.where]
    assert "kv_connector = MoRIIOConnector" in places
    assert "model runner = V1 (VLLM_USE_V2_MODEL_RUNNER=0)" in places
    given = engine(config(observed={"barrier": "layer"}), version="0.30.0")
    barrier = "kv_connector_extra_config.observed.barrier = "
    assert f"{barrier}layer" in map(str, only(HOLE, told(given)).where)
    guarded = engine(config(observed={"guard": "fail"}), version="0.30.0")
    places = [str(place) for place in only("full-graphs-protected", told(guarded)).where]
    assert "kv_connector_extra_config.observed.guard = fail" in places
    default = only("full-graphs-protected", told(engine(config(), version="0.30.0")))
    assert f"{barrier}auto (by default)" in map(str, default.where)


@pytest.mark.parametrize(("version", "runner"), [("0.28.0", "V1"), ("0.29.0", "V2")])
def test_the_model_runner_is_the_releases_default(version: str, runner: str) -> None:
    found = only(HOLE, told(engine(bare(), version=version)))
    assert f"(Model Runner {runner})" in found.what


def test_vllms_default_graph_mode_has_full_graphs() -> None:
    found = only(HOLE, told(engine(bare(), version="0.30.0")))
    assert str(found.where[0]) == "vLLM's default = FULL_AND_PIECEWISE"


@pytest.mark.parametrize(
    "without",
    [
        engine(bare(), version="0.30.0", graphs="PIECEWISE"),
        engine(bare(), version="0.30.0", graphs="none"),
        engine(bare(), version="0.30.0", options={"enforce-eager": None}),
        engine(bare(), version="0.30.0", options={"optimization-level": "1"}),
        engine(bare("kv_producer"), version="0.30.0"),
        engine(bare(read_mode=False), version="0.30.0"),
    ],
    ids=["piecewise", "none", "eager", "O1", "producer", "write"],
)
def test_without_full_graphs_or_reads_there_is_no_hole(without: Engine) -> None:
    assert HOLE not in matters(without)


@pytest.mark.parametrize("mode", ["FULL", "full_decode_only", "FULL_AND_PIECEWISE"])
def test_every_mode_with_full_graphs_has_it(mode: str) -> None:
    assert HOLE in matters(engine(bare(), version="0.30.0", graphs=mode))


def test_a_mode_that_does_not_exist_is_named() -> None:
    assert "bad-graph-mode" in matters(engine(bare(), graphs="HALF"))
    assert "bad-graph-mode" in matters(engine(bare(), graphs="2"))


@pytest.mark.parametrize(("number", "mode"), [(0, "NONE"), (1, "PIECEWISE"), (2, "FULL")])
def test_a_mode_may_be_given_by_its_number(number: int, mode: str) -> None:
    numbered = replace(engine(bare()), compilation={"cudagraph_mode": number})
    assert numbered.graph_mode[0] == mode


def test_where_nobody_says_which_vllm_the_releases_with_the_hole_are_named() -> None:
    found = only(HOLE, told(engine(bare(), version=None)))
    assert "vLLM 0.27 to 0.32 (say --vllm-version)" in found.what


def test_of_a_release_nobody_knows_nothing_is_claimed() -> None:
    names = {found.name for found in told(engine(bare(), version="0.41.0"))}
    assert not names & {HOLE, "full-graphs-protected"}


def test_protection_that_is_ours_alone_is_noted_with_what_would_be_without() -> None:
    found = only("full-graphs-protected", told(engine(config(), version="0.30.0")))
    assert found.severity is Severity.NOTE
    assert "our barrier ('auto')" in found.what
    assert "nothing would wait there on vLLM 0.30" in found.why
