"""What an engine is configured by and the doctor, or vLLM, does not see."""

from __future__ import annotations

from collections.abc import Iterator

from moriio_observed.doctor.engines import Engine
from moriio_observed.doctor.findings import Finding, Place, Severity
from moriio_observed.doctor.options_file import PASSED_OVER


def check(engine: Engine) -> Iterator[Finding]:
    """Whether options stand in a file that somebody does not read."""
    place = Place("--config", engine.options.get("config") or "")
    if engine.unread == PASSED_OVER:
        yield Finding(
            "config-file-ignored",
            Severity.WARNING,
            f"vLLM passes over --config={place.value} in silence",
            (place,),
            f"{PASSED_OVER}, and reads no file. Nothing that stands in it is in force.",
            f"Write --config {place.value}, in two words.",
            ("docs/doctor.md",),
            engine.name,
        )
    elif engine.unread:
        yield Finding(
            "config-file-unread",
            Severity.NOTE,
            f"options stand in a file that was not read: {engine.unread}",
            (place,),
            "What is said here holds for the options of the command line alone.",
            "Run the doctor where the file is, as in the engine's container, or give the options "
            "that stand in it on the command line.",
            ("docs/doctor.md#what-it-cannot-tell",),
            engine.name,
        )
