"""The results of the benchmarks: what a row says, what is kept of earlier runs, what is drawn."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from benchmarks.picture import picture, x, y
from benchmarks.result import (
    Budget,
    On,
    Row,
    compared,
    exponent,
    from_json,
    measured,
    merge,
    middle,
    over_budget,
    ratio_of,
    table,
    throughput,
    to_json,
)


def test_a_comparison_is_of_medians_and_its_spread_of_rounds() -> None:
    row = compared("step", "us", ours=[1.0, 2.0, 9.0], bare=[4.0, 4.0, 4.0])
    assert (row.ours, row.bare, row.ratio) == (2.0, 4.0, 0.5)
    assert row.spread == (0.25, 2.25)


@pytest.mark.parametrize(
    ("on", "limit", "ok"),
    [
        (On.RATIO, 0.5, True),
        (On.RATIO, 0.49, False),
        (On.OURS, 2, True),
        (On.OURS, 1, False),
        (On.MORE, -2, True),
        (On.MORE, -3, False),
    ],
)
def test_a_budget_bounds_the_ratio_or_ours_or_the_difference(
    on: On, limit: float, ok: bool
) -> None:
    assert ratio_of("step", "us", 2.0, 4.0, Budget(on, limit)).ok is ok


def test_a_row_without_a_budget_has_no_verdict() -> None:
    free = measured("bytes", "", [1234.5])
    assert free.budget is free.ok is None
    over = measured("slow", "", [2.0], Budget(On.OURS, 1))
    assert over_budget([free, over, measured("fast", "", [1.0], Budget(On.OURS, 1))]) == ["slow"]


def test_of_several_runs_the_middle_one_is_shown_and_each_has_to_keep_the_budget() -> None:
    def run(ours: float) -> Row:
        return ratio_of("step", "us", ours, 4.0, Budget(On.RATIO, 0.5))

    shown = middle([run(1.8), run(1.0), run(1.9)])
    assert (shown.ours, shown.ok, shown.runs) == (1.8, True, 3)
    assert middle([run(1.0), run(1.1), run(3.0)]).ok is False
    assert middle([measured("bytes", "", [number]) for number in (1.0, 2.0, 3.0)]).ok is None


def test_a_budget_that_compares_needs_something_to_compare_with() -> None:
    with pytest.raises(ValueError, match=r"ratio ≤ 0\.5 needs what upstream takes"):
        measured("step", "us", [1.0], Budget(On.RATIO, 0.5))


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_the_exponent_is_that_of_the_curve(power: float) -> None:
    points = [(n, 7 * n**power) for n in (1, 8, 64, 256)]
    assert exponent(points) == pytest.approx(power, abs=1e-12)


def test_a_throughput_must_reach_the_mark_and_be_known_well_enough() -> None:
    bare = [100.0] * 40
    even = [99.0, 101.0] * 20
    assert throughput("rate", "tokens/s", even, bare).ok
    assert not throughput("rate", "tokens/s", [97.0, 98.0] * 20, bare).ok, "too slow"
    assert not throughput("rate", "tokens/s", [60.0, 140.0] * 20, bare).ok, "too uncertain"


def test_rows_survive_the_file() -> None:
    rows = [compared("a", "us", [1.0, 2.0], [3.0, 4.0]), measured("b", "", [1.0])]
    assert from_json(to_json(rows)) == rows


def test_a_run_replaces_its_own_rows_and_leaves_those_of_others(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    merge([measured("a", "", [1.0]), measured("b", "", [2.0])], file)
    merge([measured("a", "", [3.0])], file)
    assert {row.name: row.ours for row in from_json(file.read_text())} == {"a": 3.0, "b": 2.0}


def test_the_table_says_what_is_over_budget() -> None:
    over = ratio_of("slow", "us", 3.0, 4.0, Budget(On.RATIO, 0.5))
    free = measured("bytes", "", [1234.5])
    head, _, *lines = table([over, free]).splitlines()
    assert head.startswith("| what ")
    assert [[cell.strip() for cell in line.strip("|").split("|")] for line in lines] == [
        ["slow", "us", "3.00", "4.00", "0.750", "", "ratio ≤ 0.5", "NO"],
        ["bytes", "", "1234", "", "", "", "", ""],
    ]


def test_the_picture_has_a_curve_for_each_way_that_rises_to_all() -> None:
    svg = ET.fromstring(picture({"poll": [0.001, 0.0005], "a < b": [0.0001]}))  # noqa: S314
    curves = [each for each in svg if each.tag.endswith("polyline")]
    ends = [curve.attrib["points"].split()[-1] for curve in curves]
    assert ends == [f"{x(at):.1f},{y(100):.1f}" for at in (0.001, 0.0001)]
    texts = {each.text for each in svg if each.tag.endswith("text")}
    assert {"poll", "a < b", "1 ms", "50 %"} <= texts
