"""What Prometheus answers, as a panel's frames."""

import pytest

from moriio_observed.dashboarding.preview import frames
from moriio_observed.dashboarding.preview.prometheus import RefusedError

TIMES = [15.0, 30.0, 45.0]


def column(frame: frames.Frame, name: str) -> list[object]:
    return next(field["values"] for field in frame["fields"] if field["name"] == name)


def test_a_series_is_called_by_its_legend_with_labels_in_place() -> None:
    labels = {"instance": "a:1", "engine": "0"}
    assert frames.called("{{instance}} {{ engine }}, rank {{tp_rank}}", labels) == "a:1 0, rank "


def test_without_a_legend_a_series_is_called_by_all_its_labels() -> None:
    assert frames.called("", {"__name__": "up", "job": "vllm"}) == 'up{job="vllm"}'


def test_every_series_is_a_frame_over_all_moments_with_gaps_where_it_has_no_point() -> None:
    answer = [{"metric": {"site": "step"}, "values": [[15, "1"], [45, "2.5"]]}]
    (frame,) = frames.of_series("A", "{{site}}", answer, TIMES)
    assert frame["refId"] == "A"
    assert column(frame, "Time") == [15000, 30000, 45000]
    assert column(frame, "Value") == [1, None, 2.5]
    assert frame["fields"][1]["config"] == {"displayNameFromDS": "step"}


def test_what_json_cannot_say_is_a_gap() -> None:
    answer = [{"metric": {}, "values": [[15, "NaN"], [30, "+Inf"], [45, "-Inf"]]}]
    (frame,) = frames.of_series("A", "", answer, TIMES)
    assert column(frame, "Value") == [None, None, None]
    assert not frames.has_data([frame])


def test_an_answer_about_one_moment_is_a_point() -> None:
    (frame,) = frames.of_series("A", "p99", [{"metric": {}, "value": [45.123, "7"]}], [45.123])
    assert column(frame, "Value") == [7]
    assert frames.has_data([frame])


def test_buckets_are_ordered_by_their_bound_and_stand_alone() -> None:
    answer = [
        {"metric": {"le": "+Inf"}, "values": [[15, "9"], [30, "9"]]},
        {"metric": {"le": "0.5"}, "values": [[15, "2"], [30, "4"]]},
        {"metric": {"le": "10"}, "values": [[15, "5"], [30, "3.9"]]},
    ]
    (frame,) = frames.of_buckets("A", answer, TIMES)
    assert [field["name"] for field in frame["fields"]] == ["Time", "0.5", "10", "+Inf"]
    assert column(frame, "0.5") == [2, 4, None]
    assert column(frame, "10") == [3, 0, None]
    assert column(frame, "+Inf") == [4, 5.1, None]


def test_what_has_no_bound_is_no_bucket() -> None:
    answer = [{"metric": {"job": "a"}, "values": [(60, "1")]}]
    with pytest.raises(RefusedError, match="a heatmap wants buckets"):
        frames.of_buckets("A", answer, [60.0])


def test_without_buckets_there_is_no_frame() -> None:
    assert frames.of_buckets("A", [], TIMES) == []


def test_rows_have_a_column_for_each_label_and_one_for_the_value() -> None:
    answer = [
        {"metric": {"layer": "0", "site": "step"}, "value": [45, "1.5"]},
        {"metric": {"layer": "1"}, "value": [45, "2"]},
    ]
    (frame,) = frames.of_rows("B", answer, alone=False)
    assert [field["name"] for field in frame["fields"]] == ["Time", "layer", "site", "Value #B"]
    assert column(frame, "layer") == ["0", "1"]
    assert column(frame, "site") == ["step", None]
    assert column(frame, "Value #B") == [1.5, 2]


def test_the_value_of_the_only_query_has_no_number() -> None:
    (frame,) = frames.of_rows("A", [{"metric": {}, "value": [45, "1"]}], alone=True)
    assert frame["fields"][-1]["name"] == "Value"


def test_no_series_is_no_data() -> None:
    assert not frames.has_data(frames.of_rows("A", [], alone=True))
