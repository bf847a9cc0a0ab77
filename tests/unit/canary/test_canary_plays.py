"""What the canary is played on real pairs: every fault that the table shows to answer wrong."""

from __future__ import annotations

import re
from itertools import groupby

from tests.canary.plays import LEFT_OUT, OF_OUR_OWN, PLAYS
from tests.faults.modes import BARE, INSTALLED, REPORT
from tests.faults.page import BEGINS, ENDS, PAGE

PLAYED = {(play.name, play.mode) for play in PLAYS if play.name not in OF_OUR_OWN}


def salad() -> set[tuple[str, str]]:
    """The faults that answer wrong with HTTP 200 on the vLLM that is played, each with its mode."""
    table = PAGE.read_text().partition(BEGINS)[2].partition(ENDS)[0]
    row = rf"^\| {re.escape(INSTALLED)} \| ([^|]+) \| ([^|]*) \| ([^|]*) \|"
    return {
        (fault, mode)
        for fault, *cells in re.findall(row, table, re.MULTILINE)
        for mode, cell in zip((BARE, REPORT), cells, strict=True)
        if "wrong" in cell
    }


def test_every_fault_that_answers_wrong_is_played_where_it_does() -> None:
    assert {(fault, mode) for fault, mode in salad() if fault not in LEFT_OUT} == PLAYED


def test_what_is_left_out_answers_wrong_and_has_a_reason() -> None:
    assert {fault for fault, _ in salad()} >= LEFT_OUT.keys()
    assert all(LEFT_OUT.values())


def test_plays_that_need_the_same_decode_engine_stand_together() -> None:
    kinds = [kind for kind, _ in groupby(PLAYS, key=lambda play: (play.mode, play.decode))]
    assert len(set(kinds)) == len(kinds)
