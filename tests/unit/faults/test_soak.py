from dataclasses import replace

import pytest

from tests.faults.levels import FILES_SLACK, MEMORY_SLACK_MIB, THREADS_SLACK, Level, grown
from tests.faults.soak import HANG, INJECTED, plan

BEFORE = Level("decode", {"moriio_reads_in_flight": 0.0}, memory_mib=1500, threads=60, files=90)


def test_a_plan_has_exactly_its_hangs_and_every_other_kind():
    kinds = plan(100, 50)
    assert len(kinds) == 100
    assert kinds.count(HANG) == 50
    assert set(kinds) == set(INJECTED)


def test_the_same_seed_gives_the_same_plan_and_another_seed_another():
    assert plan(100, 50, seed=1) == plan(100, 50, seed=1)
    assert plan(100, 50, seed=1) != plan(100, 50, seed=2)


def test_a_level_that_stayed_within_the_slack_has_not_grown():
    after = replace(
        BEFORE,
        memory_mib=BEFORE.memory_mib + MEMORY_SLACK_MIB,
        threads=BEFORE.threads + THREADS_SLACK,
        files=BEFORE.files + FILES_SLACK,
    )
    assert grown(BEFORE, after) == []
    assert grown(after, BEFORE) == []


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"memory_mib": 1500 + MEMORY_SLACK_MIB + 1}, "MiB"),
        ({"threads": 60 + THREADS_SLACK + 1}, "threads"),
        ({"files": 90 + FILES_SLACK + 1}, "files"),
        ({"held": {"moriio_reads_in_flight": 1.0}}, "moriio_reads_in_flight"),
    ],
)
def test_what_has_grown_beyond_it_is_named_with_the_server(more, named):
    [problem] = grown(BEFORE, replace(BEFORE, **more))
    assert named in problem
    assert "decode" in problem


def test_a_server_that_still_holds_something_is_not_idle():
    assert BEFORE.idle
    assert not replace(BEFORE, held={"vllm:kv_cache_usage_perc": 0.01}).idle
