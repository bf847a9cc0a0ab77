from itertools import groupby

from tests.faults.modes import Decode
from tests.faults.rows import FAST, FAULTS
from tests.faults.run import wrong_when_bare
from tests.faults.verdict import Row

NAMES = [fault.name for fault in FAULTS]


def test_every_fault_has_a_name_of_its_own():
    assert len(set(NAMES)) == len(NAMES)


def test_the_fast_ones_are_among_them():
    assert set(NAMES) >= FAST


def test_faults_that_need_the_same_decode_engine_stand_together():
    kinds = [kind for kind, _ in groupby(FAULTS, key=lambda fault: fault.decode)]
    assert len(set(kinds)) == len(kinds)


def test_a_prefill_engine_that_was_killed_is_found_dead_by_the_next_fault():
    killed = NAMES.index("P killed in mid-read")
    assert FAULTS[killed + 1].revives_prefill


def test_no_fault_is_played_on_a_decode_engine_whose_prefill_engine_was_another():
    after = NAMES.index("P restarted") + 1
    assert Decode.USUAL not in {fault.decode for fault in FAULTS[after:]}
    # Where the barrier cannot be switched off the usual one is taken: not directly after.
    assert FAULTS[after].decode is Decode.FULL_GRAPHS


def test_the_older_version_plays_what_bare_upstream_answered_wrong():
    def row(fault, mode, wrong):
        return Row(fault, "0.32.0", mode, 16, 16 - wrong, 0, wrong, 0, 0, 0)

    first, second, third = FAULTS[:3]
    rows = [row(first.name, "bare", 0), row(second.name, "bare", 1), row(third.name, "report", 1)]
    assert wrong_when_bare(rows, FAULTS) == [second]
