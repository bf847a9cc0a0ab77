"""Tells the recorded incident: who was paged when, and what users had been answered by then."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from moriio_observed.alerting.folder import Folder
from moriio_observed.alerting.rules import Group, render_groups
from tests.incident import case
from tests.incident.backfill import watched
from tests.incident.recording import WRONG, Recording, load
from tests.incident.rules import evaluate
from tests.incident.story import (
    Firing,
    Replay,
    firings,
    healthy,
    replays,
    told,
    wrong_at,
)
from tests.incident.timeline import in_a_row, scraped

ROOT = Path(__file__).parents[2]
OUT = ROOT / "build" / "incident.json"
RESTART_S = 60.0
PAGE = "MoriioUnprotectedSteps"


def main() -> int:
    """Tell the story; the answer is the exit code, 1 where the page came too late or in vain."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave a Prometheus with it running")
    parser.add_argument("--case", action="store_true", help="only write the case for promtool")
    options = parser.parse_args()
    folder = Folder(ROOT / "alerts")
    groups = render_groups(folder.sources(), folder.values())
    incident, before = load("incident"), load("healthy")
    if options.case:
        case.write(groups, incident)
        return 0

    calm = healthy(before)
    false_alarms = firings(evaluate(groups, calm))
    played = list(replays(groups, incident))
    slowest = max(played, key=_paged_at)
    result = _result(groups, incident, slowest, false_alarms, calm.length_s)
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")

    print(f"{calm.length_s / 60:.0f} healthy minutes: {_names(false_alarms)}\n")
    for line in _lines(incident, slowest):
        print(line)
    _tell(result, played, incident)
    print(f"\n{OUT.relative_to(ROOT)} has it")
    if options.keep:
        _keep(groups, before, incident)
    return int(not _holds(result, played))


def _paged_at(replay: Replay) -> float:
    return replay.first_page.at_s if replay.first_page else float("inf")


def _result(
    groups: list[Group],
    incident: Recording,
    replay: Replay,
    false_alarms: Sequence[Firing],
    healthy_s: float,
) -> dict[str, Any]:
    late, page, wrong = incident.first_late_s, replay.first_page, wrong_at(incident)
    return {
        "first_page_s": round(page.at_s - late, 1) if page and late is not None else None,
        "wrong_1pct_s": round(wrong - late, 1) if wrong and late is not None else None,
        "first_page": dict(told(groups, replay, page)) if page else None,
        "false_alarms": len(false_alarms),
        "healthy_minutes": round(healthy_s / 60, 1),
    }


def _lines(incident: Recording, replay: Replay) -> list[str]:
    """What happened, in its order; with what was answered until then."""
    events = [(stage.at_s, stage.what) for stage in incident.stages]
    events += [
        (firing.at_s, f"{firing.labels['severity'].upper():6} {firing.alert} {_cause(firing)}")
        for firing in replay.firings
    ]
    if incident.first_late_s is not None:
        events.append((incident.first_late_s, "FIRST LATE READ"))
    if (wrong := wrong_at(incident)) is not None:
        events.append((wrong, "1 % OF THE ANSWERS SINCE ARE WRONG"))
    return [f"{_clock(at_s)}  {_answered(incident, at_s)}  {what}" for at_s, what in sorted(events)]


def _cause(firing: Firing) -> str:
    return firing.labels.get("cause", "")


def _answered(incident: Recording, until_s: float) -> str:
    given = [answer for answer in incident.answers if answer.given_s <= until_s]
    wrong = sum(answer.outcome == WRONG for answer in given)
    return f"{len(given):5} answers, {wrong:4} wrong"


def _clock(at_s: float) -> str:
    return f"{int(at_s) // 60:2}:{at_s % 60:04.1f}"


def _names(fired: Sequence[Firing]) -> str:
    return ", ".join(firing.alert for firing in fired) or "no alert"


def _tell(result: dict[str, Any], played: Sequence[Replay], incident: Recording) -> None:
    if (page := result["first_page"]) is None:
        print("\nnobody was paged")
        return
    late = incident.first_late_s or 0.0
    after = sorted(_paged_at(replay) - late for replay in played)
    print(
        f"\nThe first page: {page['alert']}, {after[0]:.0f} to {after[-1]:.0f} s after the first "
        "late read, by how scrapes and evaluations fall"
    )
    for name in ("summary", "cause", "runbook_url", "dashboard_url"):
        print(f"  {name}: {page.get(name)}")
    wrong = result["wrong_1pct_s"]
    print(
        "1 % of the answers given since then were wrong "
        + ("at no time" if wrong is None else f"after {wrong} s")
    )


def _holds(result: dict[str, Any], played: Sequence[Replay]) -> bool:
    paged, wrong = result["first_page_s"], result["wrong_1pct_s"]
    return (
        all(replay.first_page and replay.first_page.alert == PAGE for replay in played)
        and paged >= 0
        and (wrong is None or paged < wrong)
        and result["false_alarms"] == 0
    )


def _keep(groups: list[Group], before: Recording, incident: Recording) -> None:
    """Show it as one Prometheus has it, ending now, until the user interrupts."""
    timeline = in_a_row(healthy(before), RESTART_S, scraped(incident))
    folder = ROOT / "build" / "incident" / "prometheus"
    shutil.rmtree(folder, ignore_errors=True)
    began = time.time() - timeline.length_s
    with watched(folder, timeline, evaluate(groups, timeline), began) as url:
        print(f"Prometheus with all of it: {url}; Ctrl-C ends it", flush=True)
        try:
            while True:
                time.sleep(1)
        except KeyboardInterrupt:
            print("stopping")


if __name__ == "__main__":
    sys.exit(main())
