"""The guard over upstream's own clean-up: whatever becomes of that, nothing is run too early.

And nothing too late: who is looked at in a step depends on what upstream has dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from moriio_observed import loopback
from moriio_observed.guard import LOOKS_IN_TURN
from tests.unit.fakes import FakeClock, FakeStatus

loopback.activate({"MORIIO_OBSERVED_LOOPBACK": "auto"})

from tests.unit.scripted import (  # noqa: E402
    LAYERS,
    TRANSFER_TIMEOUT_S,
    Decode,
    ScriptedWorker,
    Session,
)

BLOCKS = {1, 2}
"""Those that `Decode` reads every request into."""
OTHER = "decodes"
"""A request that reads nothing, so that every step runs something."""


class Guarded:
    """A decode worker with a guard, step by step, and whom it let go in each."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.decode = Decode(patch, {"guard": "recompute"})
        self.worker = self.decode.worker
        self.clock = FakeClock()
        connector = self.decode.connector
        connector._guard._clock = self.clock
        self.landed: list[str] = []
        self._arrived: set[str] = set()
        take_turn = connector._take_turn

        def noted() -> set[str]:
            self._arrived = take_turn()
            if connector._turn is not None:
                self.landed += connector._turn.landed
            return self._arrived

        patch.setattr(connector, "_take_turn", noted)

    def step(self, *reading: str, during: Callable[[], Any] | None = None) -> set[str]:
        """Run one step; return for whom the scheduler need not wait any longer."""
        self._arrived = set()
        self.decode.connector._turn = None
        self.invalid = self.decode.step(OTHER, reading=reading, during=during).invalid
        return self._arrived

    def reads_of(self, request_id: str) -> list[FakeStatus]:
        by_layer = self.worker._recving_transfers[request_id]
        kept = [by_layer[name] for name in LAYERS]
        return [each[0] if isinstance(each, list) else each for each in kept]

    def land(self, request_id: str) -> None:
        for status in self.reads_of(request_id):
            status.land()


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Guarded]:
    rig = Guarded(monkeypatch)
    yield rig
    rig.decode.connector.shutdown()


def broken(*_: Any, **__: Any) -> Any:
    raise RuntimeError("an error of ours")


def test_what_lands_is_let_go_in_the_step_in_which_upstream_drops_it(guarded: Guarded) -> None:
    assert guarded.step("a", "b") == set()
    assert guarded.step(during=lambda: guarded.land("b")) == {"b"}
    assert guarded.step(during=lambda: guarded.land("a")) == {"a"}
    assert guarded.landed == ["b", "a"]
    assert guarded.worker._recving_transfers == {}


def test_what_a_failed_step_could_not_tell_the_scheduler_side_is_told_once_in_the_next(
    guarded: Guarded,
) -> None:
    connector = guarded.decode.connector
    guarded.step("a")
    guarded.step(during=lambda: guarded.land("a"))
    # vLLM has not asked for the report of that step.
    guarded.decode.step(OTHER, loads_first=False)
    report = connector.build_connector_worker_meta()
    assert report is not None
    assert report.settled == {"a": 1}
    guarded.decode.step(OTHER, loads_first=False)
    assert connector.build_connector_worker_meta() is None


def test_what_has_landed_when_it_is_posted_is_let_go_at_once(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    post = Session.batch_read

    def lands(session: Session, *args: Any) -> FakeStatus:
        status = post(session, *args)
        status.land()
        return status

    monkeypatch.setattr(Session, "batch_read", lands)
    assert guarded.step("a") == {"a"}
    assert guarded.landed == ["a"]


def test_a_failure_is_given_up_once_the_other_reads_have_ended(guarded: Guarded) -> None:
    guarded.step("a")
    first, *others = guarded.reads_of("a")
    assert guarded.step(during=first.fail) == set(), "others may still write into its blocks"
    assert "a" not in guarded.worker._recving_transfers
    for status in others:
        status.land()
    assert guarded.step() == {"a"}
    assert guarded.invalid == BLOCKS
    assert guarded.landed == []


def test_what_upstream_does_not_drop_is_let_go_all_the_same(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = [f"r{number}" for number in range(2 * LOOKS_IN_TURN)]
    guarded.step(*many)
    monkeypatch.setattr(ScriptedWorker, "_pop_done_transfers", lambda _: set())
    for request_id in many:
        guarded.land(request_id)
    arrived = guarded.step() | guarded.step()
    assert arrived == set(many)
    assert sorted(guarded.landed) == sorted(many)


def test_an_error_of_upstreams_clean_up_loses_nobody(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    guarded.step("a", "b")
    guarded.land("a")
    with monkeypatch.context() as patch:
        patch.setattr(guarded.worker.moriio_wrapper, "send_notify", broken)
        with pytest.raises(RuntimeError):
            guarded.step()
    assert guarded.step() == {"a"}
    assert guarded.landed == ["a"]


@pytest.mark.parametrize("broken_one", ["posted", "end_forward", "settle", "let_run", "given_up"])
def test_an_error_of_the_observer_changes_nothing(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch, broken_one: str
) -> None:
    monkeypatch.setattr(guarded.decode.connector._observer, broken_one, broken)
    guarded.step("lands", "fails", "hangs")
    guarded.land("lands")
    for status in guarded.reads_of("fails"):
        status.fail()
    assert guarded.step() == {"lands", "fails"}
    assert guarded.invalid == BLOCKS
    guarded.clock.sleep(TRANSFER_TIMEOUT_S)
    assert guarded.step() == {"hangs"}
    assert guarded.landed == ["lands"]


def test_what_the_send_queue_rejects_is_counted_after_an_error_of_the_observer(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarded.decode.connector._observer, "posted", broken)
    for request_id in ("a", "b"):
        guarded.worker.session.rejections = 2
        guarded.step(request_id)
    assert guarded.decode.counted("send_queue_full_total") == {"send_queue_full_total": 4}


def test_a_failed_read_is_not_overlooked_because_it_could_not_be_counted(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The send queue stays full to the deadline: upstream keeps the last rejection as the read."""
    monkeypatch.setattr(guarded.worker, "_is_sq_full_status", lambda _: False)
    uncountable = SimpleNamespace(inc=broken)
    monkeypatch.setattr(guarded.worker._moriio_observed, "_send_queue_full", uncountable)
    guarded.worker.session.rejections = 1
    guarded.step("a")
    for status in guarded.worker.session.posted:
        status.land()
    assert guarded.step() == {"a"}
    assert guarded.invalid == BLOCKS
    assert guarded.landed == []


def test_a_read_of_unknown_size_is_not_taken_for_none(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    offsets = guarded.worker._compute_block_transfer_offsets

    def without_sizes(layer_name: str, *args: Any, **kwargs: Any) -> Any:
        local, remote, sizes = offsets(layer_name, *args, **kwargs)
        return local, remote, None if layer_name == LAYERS[-1] else sizes

    for name in ("_compute_block_transfer_offsets", "_compute_read_attention_offsets"):
        monkeypatch.setattr(guarded.worker, name, without_sizes)
    guarded.step("a")
    *known, _ = guarded.worker.session.posted
    for status in known:
        status.land()
    assert guarded.step() == set()
    guarded.clock.sleep(TRANSFER_TIMEOUT_S)
    assert guarded.step() == {"a"}
    assert guarded.invalid == BLOCKS
    assert guarded.landed == []


def test_whose_client_has_gone_is_let_go_and_watched_until_it_has_settled(
    guarded: Guarded,
) -> None:
    guarded.step("a")
    connector = guarded.decode.connector
    guarded.decode.step(OTHER, finished={"a"})
    assert guarded.landed == []
    assert len(connector._guard) == 1
    guarded.land("a")
    guarded.step()
    assert len(connector._guard) == 0
