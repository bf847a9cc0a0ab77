"""Answers of Prometheus as the frames that Grafana's data source would hand to a panel.

A frame is columns of equal length. Numbers that JSON has no word for (`NaN`, `+Inf`) are gaps.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from moriio_observed.dashboarding.preview.prometheus import RefusedError, Series

Frame = dict[str, Any]
"""One frame, as JSON."""

_LABEL = re.compile(r"\{\{\s*(\w+)\s*\}\}")


def called(legend: str, labels: Mapping[str, str]) -> str:
    """Return what a series is called: its legend with its labels in place, or all its labels."""
    if legend:
        return _LABEL.sub(lambda match: labels.get(match[1], ""), legend)
    text = ", ".join(f'{label}="{value}"' for label, value in labels.items() if label != "__name__")
    return f"{labels.get('__name__', '')}{{{text}}}"


def of_series(
    ref_id: str, legend: str, answer: Sequence[Series], times: Sequence[float]
) -> list[Frame]:
    """Return a frame for each series of an answer, with a gap where it has no point.

    Args:
        ref_id: Which of the panel's queries it is.
        legend: What to call a series.
        answer: What Prometheus said.
        times: The moments that were asked for, in seconds since 1970.
    """
    frames = []
    for series in answer:
        labels = series["metric"]
        config = {"displayNameFromDS": called(legend, labels)}
        value = _number_column("Value", _on(times, series), labels=labels, config=config)
        frames.append({"refId": ref_id, "fields": [_time_column(times), value]})
    return frames


def of_buckets(ref_id: str, answer: Sequence[Series], times: Sequence[float]) -> list[Frame]:
    """Return one frame with a column for each bucket, each without those below it."""
    ordered = sorted(answer, key=_upper_bound)
    columns: list[dict[str, Any]] = []
    below: Sequence[float | None] = [0.0] * len(times)
    for series in ordered:
        up_to = _on(times, series)
        # Increases are extrapolated for each bucket alone: a bucket can come out below the last.
        own = [
            None if total is None else max(0.0, total - (less or 0.0))
            for total, less in zip(up_to, below, strict=True)
        ]
        columns.append(_number_column(series["metric"]["le"], own))
        below = up_to
    return [{"refId": ref_id, "fields": [_time_column(times), *columns]}] if columns else []


def _upper_bound(bucket: Series) -> float:
    try:
        return float(bucket["metric"]["le"])
    except (KeyError, ValueError):
        raise RefusedError("a heatmap wants buckets: series with a number as le") from None


def of_rows(ref_id: str, answer: Sequence[Series], *, alone: bool) -> list[Frame]:
    """Return one frame with a row for each series and a column for each label.

    Args:
        ref_id: Which of the panel's queries it is.
        answer: What Prometheus said of one moment.
        alone: Whether it is the panel's only query, whose value needs no number.
    """
    if not answer:
        return []
    labels = sorted({label for series in answer for label in series["metric"]})
    columns = [
        {"name": label, "type": "string", "values": [each["metric"].get(label) for each in answer]}
        for label in labels
    ]
    moments = [each["value"][0] for each in answer]
    values = [_number(each["value"][1]) for each in answer]
    name = "Value" if alone else f"Value #{ref_id}"
    fields = [_time_column(moments), *columns, _number_column(name, values)]
    return [{"refId": ref_id, "fields": fields}]


def has_data(frames: Sequence[Frame]) -> bool:
    """Return whether there is a single number in some frames."""
    return any(
        value is not None
        for frame in frames
        for column in frame["fields"]
        if column["type"] == "number"
        for value in column["values"]
    )


def _time_column(times: Sequence[float]) -> dict[str, Any]:
    return {"name": "Time", "type": "time", "values": [round(time * 1000) for time in times]}


def _number_column(name: str, values: Sequence[float | None], **more: Any) -> dict[str, Any]:
    return {"name": name, "type": "number", "values": list(values), **more}


def _on(times: Sequence[float], series: Series) -> list[float | None]:
    """The points of a series on the moments that were asked for."""
    pairs = series["values"] if "values" in series else [series["value"]]
    points = {round(moment * 1000): _number(text) for moment, text in pairs}
    return [points.get(round(time * 1000)) for time in times]


def _number(text: str) -> float | None:
    number = float(text)
    return number if math.isfinite(number) else None
