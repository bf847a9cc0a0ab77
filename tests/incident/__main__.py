"""Tells the recorded incident: who was paged when, and what users had been answered by then."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from pathlib import Path

from moriio_observed.alerting.folder import Folder
from moriio_observed.alerting.rules import Group, render_groups
from tests.incident import case
from tests.incident.backfill import watched
from tests.incident.canary import with_canary
from tests.incident.recording import HEALTHY, INCIDENT, WRONG, Recording, load
from tests.incident.rules import evaluate
from tests.incident.story import Firing, Story, healthy, story, wrong_at

ROOT = Path(__file__).parents[2]
OUT = ROOT / "build" / "incident.json"
RESTART_S = 60.0


def main() -> int:
    """Tell the story; the answer is the exit code, 1 where the page came too late or in vain."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave a Prometheus with it running")
    parser.add_argument("--case", action="store_true", help="only write the case for promtool")
    parser.add_argument("--recording", type=Path, default=INCIDENT, help="another incident")
    parser.add_argument("--healthy", type=Path, default=HEALTHY, help="other healthy minutes")
    options = parser.parse_args()
    folder = Folder(ROOT / "alerts")
    groups = render_groups(folder.sources(), folder.values())
    incident, before = load(options.recording), load(options.healthy)
    if options.case:
        case.write(groups, incident)
        return 0

    print(f"incident: {_about(incident)}\nhealthy: {_about(before)}\n", flush=True)
    told = story(groups, incident, before)
    for line in (*_lines(told), "", *_summary(told)):
        print(line, flush=True)
    if (options.recording, options.healthy) == (INCIDENT, HEALTHY):
        OUT.parent.mkdir(exist_ok=True)
        OUT.write_text(json.dumps(told.result(), indent=2) + "\n", encoding="utf-8")
        print(f"{OUT.relative_to(ROOT)} has the numbers", flush=True)
    if options.keep:
        _keep(groups, before, incident)
    shortfalls = list(told.shortfalls())
    for shortfall in shortfalls:
        print(f"NOT ACCEPTED: {shortfall}")
    return int(bool(shortfalls))


def _about(recording: Recording) -> str:
    return "; ".join(f"{name}: {what}" for name, what in recording.about.items())


def _lines(told: Story) -> list[str]:
    """What happened, in its order; with what was answered until then."""
    incident = told.incident
    events = [(stage.at_s, stage.what) for stage in incident.stages]
    events += [(firing.at_s, _named(firing)) for firing in told.slowest.firings]
    if incident.first_late_s is not None:
        events.append((incident.first_late_s, "FIRST LATE READ"))
    if (wrong := wrong_at(incident)) is not None:
        events.append((wrong, "1 % OF THE ANSWERS SINCE ARE WRONG"))
    return [f"{_clock(at_s)}  {_answered(incident, at_s)}  {what}" for at_s, what in sorted(events)]


def _named(firing: Firing) -> str:
    return " ".join(
        (f"{firing.labels['severity'].upper():6}", firing.alert, firing.labels.get("cause", ""))
    )


def _answered(incident: Recording, until_s: float) -> str:
    given = [answer for answer in incident.answers if answer.given_s <= until_s]
    wrong = sum(answer.outcome == WRONG for answer in given)
    return f"{len(given):5} answers, {wrong:4} wrong"


def _clock(at_s: float) -> str:
    return f"{int(at_s) // 60:2}:{at_s % 60:04.1f}"


def _summary(told: Story) -> list[str]:
    fired = ", ".join(firing.alert for firing in told.false_alarms) or "no alert"
    calm = f"{told.healthy_s / 60:.1f} healthy minutes: {fired}"
    if (page := told.first_page) is None:
        return [calm, "Nobody was paged"]
    fastest, slowest = told.paged_s[0], told.paged_s[-1]
    spread = f"{fastest:.1f} to {slowest:.1f} s after the first late read"
    wrong = "at no time" if told.wrong_s is None else f"after {told.wrong_s:.1f} s"
    return [
        calm,
        f"The first page: {page['alert']}, {spread}, by how scrapes and evaluations fall",
        *(f"  {name}: {page.get(name)}" for name in ("summary", "cause", "runbook_url")),
        f"1 % of the answers given since then were wrong {wrong}",
    ]


def _keep(groups: list[Group], before: Recording, incident: Recording) -> None:
    """Show it as one Prometheus has it, ending now, until the user interrupts."""
    timeline = with_canary(healthy(before), RESTART_S, incident)
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
