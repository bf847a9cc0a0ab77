"""This version is one that we know: nothing we hold on to is missing."""

from __future__ import annotations

import pytest

from moriio_observed import loopback

loopback.activate({"MORIIO_OBSERVED_LOOPBACK": "auto"})

from moriio_observed import upstream  # noqa: E402
from moriio_observed.barrier import Era  # noqa: E402
from tests.unit.scripted import Decode  # noqa: E402

ERAS = {
    ("0.28", "0.29", "0.30"): Era.LAYER,
    ("0.31", "0.32"): Era.LAYER_AND_STEP,
    ("0.33",): Era.STEP,
}


def test_every_hook_can_be_installed() -> None:
    seams = upstream.Seams.detect()
    assert seams.missing == ()
    assert all(seams.hooks.values())


def test_what_ours_leaves_out_of_a_step_does_nothing_there(monkeypatch: pytest.MonkeyPatch) -> None:
    connector = Decode(monkeypatch).connector
    assert connector._hooks.cleans_up_nothing
    assert not connector._saves


def test_its_barrier_is_the_one_the_design_names() -> None:
    release = ".".join(upstream.vllm_version().split(".")[:2])
    [era] = [era for releases, era in ERAS.items() if release in releases]
    assert upstream.Seams.detect().era is era
