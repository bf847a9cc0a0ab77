"""The time that a preview shows."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moriio_observed.dashboarding.errors import DashboardsError
from moriio_observed.dashboarding.preview.window import Window, at, in_seconds, shown_by_itself


@pytest.mark.parametrize(
    ("duration", "seconds"), [("90s", 90), ("30m", 1800), ("1h30m", 5400), ("2d", 172800)]
)
def test_a_duration_is_written_as_in_prometheus(duration, seconds) -> None:
    assert in_seconds(duration) == seconds


@pytest.mark.parametrize(
    "duration", ["", "h", "1", "1 h", "1y", "now", "-1h", "0s", "٣h", "9" * 5000 + "w"]
)
def test_what_is_no_duration_is_named_with_the_right_form(duration) -> None:
    with pytest.raises(DashboardsError, match=f"{duration!r} is no duration: write it like 30m"):
        in_seconds(duration)


@pytest.mark.parametrize(
    "moment", ["1796029200", "2026-11-30T09:00", "2026-11-30T09:00Z", "2026-11-30T10:00+01:00"]
)
def test_a_moment_is_seconds_or_a_date_in_utc_or_in_its_own_zone(moment) -> None:
    assert at(moment) == 1796029200


@pytest.mark.parametrize(
    "moment",
    ["yesterday", "", "nan", "inf", "1e400", "1" * 400, "2026-13-01"],
)
def test_what_is_no_moment_is_named_with_the_right_form(moment) -> None:
    with pytest.raises(DashboardsError, match=f"'{re.escape(moment)}' is no moment: write it like"):
        at(moment)


def test_a_dashboard_says_itself_how_far_back_it_looks() -> None:
    assert shown_by_itself("now-6h") == 21600
    with pytest.raises(DashboardsError, match=r"begins at 'now/d'.*name a --range"):
        shown_by_itself("now/d")


def test_a_window_begins_when_time_does() -> None:
    with pytest.raises(DashboardsError, match="begins before 1970"):
        Window(at("0001-01-01"), 1000)


@pytest.mark.parametrize("start", [1000, 1001])
def test_a_window_ends_after_it_begins(start) -> None:
    with pytest.raises(DashboardsError, match="begins at 1970-01-01T00:16:4"):
        Window(start, 1000)


def test_a_step_is_as_fine_as_the_panel_has_points_but_never_finer_than_a_scrape() -> None:
    assert Window(0, 3600).step(1600) == 15
    assert Window(0, 36000).step(1200) == 30
    assert Window(0, 36001).step(1200) == 45


def test_rates_look_back_over_four_scrapes_at_least_and_over_more_than_a_step() -> None:
    assert Window(0, 3600).rate_interval(15) == 60
    assert Window(0, 3600).rate_interval(300) == 315


@given(start=st.floats(1e9, 2e9), length=st.floats(60, 1e6), points=st.integers(10, 2000))
def test_points_lie_on_multiples_of_the_step_and_cover_the_window(start, length, points) -> None:
    window = Window(start, start + length)
    step = window.step(points)
    times = window.times(step)
    assert times[0] <= window.start < times[0] + step
    assert times[-1] <= window.end < times[-1] + step
    assert all(time % step == 0 for time in times)
    assert len(times) <= points + 2
