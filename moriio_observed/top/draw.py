"""A picture as lines of a terminal.

What others have written, such as label values, is never taken as markup and cannot steer the
terminal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.text import Text

from moriio_observed.doctor.findings import Severity
from moriio_observed.top.alerts import FIRING, PAGE, Alert, Alerts
from moriio_observed.top.engine import ALL_SITES, Counted, Engine, Waits
from moriio_observed.top.picture import Picture, Row, State
from moriio_observed.top.signs import STUCK_SHARE
from moriio_observed.top.words import number, seconds
from moriio_observed.traces.style import FAILED, SLOW
from moriio_observed.traces.text import safe

LONGEST_NAME, LONGEST_VALUE, LONGEST_TEXT = 60, 40, 300
SHORTEST_NAME = 12
_STATES = {
    State.CRITICAL: (FAILED, "bold red"),
    State.SILENT: (FAILED, "red"),
    State.WARNING: (SLOW, "yellow"),
    State.UNOBSERVED: (SLOW, "yellow"),
    State.OK: (" ", ""),
}
_SIGNS = {
    Severity.CRITICAL: (FAILED, "bold red"),
    Severity.WARNING: (SLOW, "yellow"),
    Severity.NOTE: (" ", "dim"),
}
_COLUMNS = (
    ("EXPOSED/s", 9),
    ("UNPROT/s", 9),
    ("WAIT p50", 9),
    ("p99", 9),
    ("READS", 6),
    ("OLDEST", 9),
    ("REQ/s", 6),
)
_LABEL = 13
_MOST_RANKS = 8
"""So many ranks are shown, those that wait longest first."""


def lines(picture: Picture, width: int, height: int | None) -> list[Text]:
    """A picture as lines.

    Args:
        picture: What to show.
        width: Columns there are for the table; all else is cut by whoever prints it.
        height: Lines there are; None for as many as it takes.
    """
    rows = picture.rows
    most = len(rows) if height is None else max(1, min(len(rows), height // 2 - 2))
    shown = [
        _title(picture),
        *_alerts(picture.alerts, None if height is None else max(1, height // 6)),
        *_table(rows, most, width),
        *(line for row in rows if row.engine for line in _told(row, row.engine)),
    ]
    if height is not None:
        for line in shown:
            line.no_wrap, line.overflow = True, "ellipsis"
    return shown[:height]


def _title(picture: Picture) -> Text:
    counts = {
        state.name.lower(): sum(row.state is state for row in picture.rows)
        for state in sorted(State, reverse=True)
    }
    told = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    return Text.assemble(("moriio-observed top", "bold"), f"  {picture.at:%H:%M:%S}  {told}")


def _alerts(alerts: Alerts | None, most: int | None) -> Iterator[Text]:
    if alerts is None:
        return
    if alerts.trouble:
        yield Text(f"alerts: {safe(alerts.trouble, LONGEST_TEXT)}", "red")
        return
    firing = sum(alert.state == FIRING for alert in alerts.active)
    pending = len(alerts.active) - firing
    yield Text(f"alerts: {firing} firing, {pending} pending", "bold red" if firing else "")
    for alert in alerts.active[:most]:
        yield _alert(alert)


def _alert(alert: Alert) -> Text:
    style = "dim" if alert.state != FIRING else "red" if alert.severity == PAGE else "yellow"
    head = f"{alert.severity or alert.state:7}{alert.name}"
    return Text(f"  {safe(head, LONGEST_NAME)}  {safe(alert.summary, LONGEST_TEXT)}", style)


def _table(rows: Sequence[Row], most: int, width: int) -> Iterator[Text]:
    taken = 2 + sum(size for _, size in _COLUMNS)
    longest = max((len(safe(row.name, LONGEST_NAME)) for row in rows), default=0)
    name = max(SHORTEST_NAME, min(longest, width - taken))
    head = "".join(f"{title:>{size}}" for title, size in _COLUMNS)
    yield Text(f"  {'ENGINE':{name}}{head}", "dim")
    for row in rows[:most]:
        yield _row(row, name)
    if left_out := len(rows) - most:
        yield Text(f"  and {left_out} more, none of them worse", "dim")


def _row(row: Row, width: int) -> Text:
    mark, style = _STATES[row.state]
    name = Text(safe(row.name, LONGEST_NAME))
    name.truncate(width, overflow="ellipsis", pad=True)
    line = Text.assemble((f"{mark} ", style), (name.plain, style))
    if row.engine is None:
        return line.append(f"  {safe(row.trouble, LONGEST_TEXT)}", style)
    if row.engine.sends:
        return line.append(f"  {_sender(row.engine)}")
    for (text, alarming), (_, size) in zip(_cells(row.engine), _COLUMNS, strict=True):
        line.append(f"{text:>{size}}", "bold red" if alarming else "")
    return line


def _cells(engine: Engine) -> Iterator[tuple[str, bool]]:
    """The cells of a decode engine, and which of them nobody wants to see."""
    for counted in (engine.exposed, engine.unprotected):
        rate = _sum(counted, engine)
        yield number(rate), bool(rate)
    waits = engine.waits.get(ALL_SITES, Waits(0, None, None))
    yield seconds(waits.p50), False
    yield seconds(waits.p99), False
    yield number(engine.in_flight), False
    yield seconds(engine.oldest_s), _stuck(engine)
    yield number(engine.requests.per_s), False


def _sum(counted: Mapping[str, Counted], engine: Engine) -> float | None:
    if engine.requests.per_s is None:
        return None
    return sum(each.per_s or 0.0 for each in counted.values())


def _stuck(engine: Engine) -> bool:
    oldest, deadline = engine.oldest_s, engine.deadline_s
    return oldest is not None and deadline is not None and oldest > STUCK_SHARE * deadline


def _sender(engine: Engine) -> str:
    return (
        f"prefill: holds blocks of {number(engine.held)} requests, "
        f"{number(engine.released.per_s)}/s released"
    )


def _told(row: Row, engine: Engine) -> Iterator[Text]:
    """All about one engine."""
    mark, style = _STATES[row.state]
    yield Text()
    head = Text.assemble((f"{mark} ", style), (safe(row.name, LONGEST_NAME), "bold"))
    head.append(f"  model {safe(engine.key.model_name, LONGEST_VALUE)}")
    head.append(f", engine {safe(engine.key.engine, LONGEST_VALUE)}")
    if engine.restarted_s is not None:
        head.append(f"  restarted {engine.restarted_s:.0f} s ago", "yellow")
    yield head
    for sign in row.signs:
        if sign.severity.matters:
            yield from _sign(sign.severity, sign.what, sign.see)
    for label, told in zip(("config", ""), _config(engine), strict=False):
        yield _line(label, told)
    if not engine.sends:
        for label, told in _figures(engine):
            yield _line(label, told)
    for sign in row.signs:
        if not sign.severity.matters:
            yield from _sign(sign.severity, sign.what, sign.see)


def _sign(severity: Severity, what: str, see: str) -> Iterator[Text]:
    mark, style = _SIGNS[severity]
    yield Text(f"  {mark} {safe(what, LONGEST_TEXT)}", style)
    if see and severity is Severity.CRITICAL:
        yield Text(f"    see {see}", "dim")


def _line(label: str, told: str) -> Text:
    return Text.assemble((f"    {label:{_LABEL}}", "dim"), told)


def _config(engine: Engine) -> Iterator[str]:
    info = {label: safe(text, LONGEST_VALUE) for label, text in engine.info.items()}
    if not info:
        yield "not told: there is no moriio_config_info"
        return
    role = {"kv_producer": "prefill", "kv_consumer": "decode"}
    yield (
        f"{role.get(info.get('role', ''), info.get('role', '?'))}, {info.get('mode', '?')}, "
        f"graphs {info.get('cudagraph_mode', '?')}, barrier {info.get('barrier', '?')}, "
        f"guard {info.get('guard', '?')}"
    )
    yield (
        f"vLLM {info.get('vllm_version', '?')}, mori {info.get('mori_version', '?')}, "
        f"moriio-observed {info.get('version', '?')}"
    )


def _figures(engine: Engine) -> Iterator[tuple[str, str]]:
    yield "exposed", _shares(engine.exposed) or "no request since the start"
    if engine.caught:
        yield "caught", _shares(engine.caught)
    yield "unprotected", f"steps: {_shares(engine.unprotected)}"
    if engine.seconds:
        told = "; ".join(
            f"{site} {number(waits.count)}, p50 {seconds(waits.p50)}, p99 {seconds(waits.p99)}"
            for site, waits in engine.waits.items()
            if site != ALL_SITES and waits.count
        )
        yield "waits", f"{told or 'none'} (in {seconds(engine.seconds)})"
    aborted = _shares({"aborted": engine.reads["aborted"]})
    yield "reads", _shares({what: engine.reads[what] for what in ("posted", "landed", "failed")})
    oldest = f"{seconds(engine.oldest_s)} of {seconds(engine.deadline_s)}"
    yield "", f"{aborted}, {number(engine.in_flight)} in flight, oldest {oldest}"
    if len(engine.ranks) > 1:
        yield "ranks", _ranks(engine)


def _shares(counted: Mapping[str, Counted]) -> str:
    return ", ".join(
        f"{safe(name, LONGEST_VALUE)} {number(each.per_s)}/s ({number(each.total)})"
        for name, each in counted.items()
    )


def _ranks(engine: Engine) -> str:
    slowest = sorted(engine.ranks.items(), key=lambda item: -(item[1].blocked_s or 0.0))
    told = ", ".join(
        f"{safe(rank, LONGEST_VALUE)} {seconds(figures.blocked_s)}"
        for rank, figures in slowest[:_MOST_RANKS]
    )
    more = f" and {len(slowest) - _MOST_RANKS} more" if len(slowest) > _MOST_RANKS else ""
    return f"waited per step: {told}{more}"
