"""What was found, for a machine, for an issue and for the terminal."""

from __future__ import annotations

import contextlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from moriio_observed import __version__
from moriio_observed.accept.claims import judge
from moriio_observed.accept.facts import Facts, Number
from moriio_observed.accept.plan import Plan
from moriio_observed.accept.privacy import Privacy, model_name
from moriio_observed.accept.verdicts import Judged, Verdict
from moriio_observed.canary.errors import CanaryError
from moriio_observed.config import shown
from moriio_observed.traces.text import safe

FORMAT, VERSION = "moriio-observed acceptance report", 1
LONGEST = 2000
"""Characters of one text."""
_STYLES = {
    Verdict.REFUTED: "bold red",
    Verdict.NOT_PROVEN: "yellow",
    Verdict.PROVEN: "green",
}


@dataclass(frozen=True)
class Report:
    """A run that is over, or as far as it has come.

    Attributes:
        facts: What was seen.
        plan: What was to be sent.
        privacy: What must not be told.
        hardware: The user's words for it; empty: none.
    """

    facts: Facts
    plan: Plan
    privacy: Privacy
    hardware: str = ""

    @cached_property
    def judged(self) -> list[Judged]:
        """Every claim, the worst first."""
        return judge(self.facts)

    @property
    def exit_status(self) -> int:
        """1 where a claim is refuted, 2 where the run did not come to its end, else 0."""
        if any(one.ruling.verdict is Verdict.REFUTED for one in self.judged):
            return 1
        return 2 if self.facts.ended else 0

    def as_dict(self) -> dict[str, Any]:
        """As docs/accept.md has it."""
        facts = self.facts
        return {
            "format": FORMAT,
            "version": VERSION,
            "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "moriio_observed": __version__,
            "complete": not facts.ended,
            "ended": self._clean(facts.ended) or None,
            "exit_status": self.exit_status,
            "hardware": safe(self.hardware, LONGEST) or None,
            "model": self._clean(model_name(self.plan.model)),
            "load": {
                "mode": str(facts.mode),
                "concurrencies": list(self.plan.concurrencies),
                "rounds": self.plan.rounds,
                "max_tokens": self.plan.max_tokens,
                "probes": len(facts.probes),
                "answered": facts.answered,
                "seconds": round(facts.seconds, 3),
            },
            "claims": [self._claim(one) for one in self.judged],
        }

    def _claim(self, judged: Judged) -> dict[str, Any]:
        claim, ruling = judged.claim, judged.ruling
        return {
            "name": claim.name,
            "claim": claim.says,
            "verdict": str(ruling.verdict),
            "reason": self._clean(ruling.reason),
            "evidence": [self._number(number) for number in ruling.numbers],
            "leaves_open": claim.leaves_open,
            "needs_hardware": claim.needs_hardware,
        }

    def _number(self, number: Number) -> dict[str, Any]:
        found = {"name": self._clean(number.name), "value": self._value(number.value)}
        return found if number.before is None else found | {"before": self._value(number.before)}

    def _value(self, value: float | str) -> float | str:
        if isinstance(value, str) or not math.isfinite(value):
            return self._clean(str(value))  # JSON has no NaN
        return value

    def _clean(self, text: str) -> str:
        return safe(self.privacy.clean(text), LONGEST)


def write(report: Mapping[str, Any], path: Path) -> None:
    """Write the report as JSON, and beside it as Markdown.

    Raises:
        CanaryError: It cannot be written.
    """
    for file, text in (
        (path, json.dumps(report, indent=1, ensure_ascii=False) + "\n"),
        (markdown_path(path), markdown(report)),
    ):
        fresh = file.with_name(f"{file.name}.new")
        try:
            fresh.write_text(text, encoding="utf-8")
            fresh.replace(file)
        except OSError as error:
            with contextlib.suppress(OSError):
                fresh.unlink(missing_ok=True)
            raise CanaryError(f"--report {shown(str(file))} cannot be written: {error}") from None


def markdown_path(path: Path) -> Path:
    """Where the Markdown of a report is."""
    return path.with_suffix(".md")


def markdown(report: Mapping[str, Any]) -> str:
    """The text of an issue."""
    return "\n".join(_markdown(report)) + "\n"


def _markdown(report: Mapping[str, Any]) -> Iterator[str]:
    yield f"# Acceptance: {_cell(report['model'])}"
    yield ""
    yield f"- hardware: {_cell(report['hardware'] or 'not told')}"
    yield f"- moriio_observed {report['moriio_observed']}, {report['made_at']}"
    load = report["load"]
    yield (
        f"- {load['answered']} of {load['probes']} probes answered in {load['seconds']} s, at most"
        f" {max(load['concurrencies'])} at once, judged by mode {load['mode']}"
    )
    if not report["complete"]:
        yield f"- **not complete**: {_cell(report['ended'])}"
    yield from ("", "| verdict | claim | why |", "| --- | --- | --- |")
    for claim in report["claims"]:
        said = f"`{claim['name']}`: {claim['claim']}"
        yield f"| {claim['verdict']} | {_cell(said)} | {_cell(claim['reason'])} |"
    yield from ("", "<details><summary>Numbers</summary>", "")
    yield from ("| claim | what | before | after |", "| --- | --- | --- | --- |")
    for claim in report["claims"]:
        for number in claim["evidence"]:
            before = _figure(number["before"]) if "before" in number else ""
            cells = (claim["name"], number["name"], before, _figure(number["value"]))
            yield f"| {' | '.join(map(_cell, cells))} |"
    yield from ("", "</details>")


def lines(report: Mapping[str, Any]) -> Iterator[Text | Padding]:
    """What a person reads, worst first; what is not proven for one reason stands together."""
    claims = sorted(report["claims"], key=_shared)
    for claim, next_one in zip(claims, [*claims[1:], None], strict=True):
        verdict = Verdict(claim["verdict"])
        head = Text.assemble((verdict.upper(), _STYLES[verdict]), "  ", (claim["name"], "bold"))
        yield head.append(f"  {claim['claim']}")
        if verdict is Verdict.NOT_PROVEN and next_one and _shared(claim) == _shared(next_one):
            continue
        body = Table.grid(padding=(0, 2))
        body.add_column(style="dim")
        body.add_column(overflow="fold")
        body.add_row("why", Text(claim["reason"]))
        if verdict is not Verdict.NOT_PROVEN:
            body.add_row("numbers", Text("; ".join(map(_told, claim["evidence"]))))
        if verdict is Verdict.PROVEN:
            body.add_row("open", Text(claim["leaves_open"]))
        yield Padding(body, (0, 0, 1, 4))
    if not report["complete"]:
        yield Text(f"NOT COMPLETE: {report['ended']}", "bold")
    counts = Counter(claim["verdict"] for claim in report["claims"])
    yield Text(", ".join(f"{counts[str(verdict)]} {verdict}" for verdict in Verdict))


def _shared(claim: Mapping[str, Any]) -> tuple[int, str]:
    verdict = Verdict(claim["verdict"])
    return list(Verdict).index(verdict), claim["reason"] if verdict is Verdict.NOT_PROVEN else ""


def _told(number: Mapping[str, Any]) -> str:
    if "before" in number:
        return f"{number['name']} {_figure(number['before'])} → {_figure(number['value'])}"
    return f"{number['name']}: {_figure(number['value'])}"


def _figure(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:.10g}" if float(value).is_integer() else f"{value:.4g}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
