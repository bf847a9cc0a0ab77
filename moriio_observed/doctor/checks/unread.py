"""What an engine is configured by and the doctor does not see."""

from __future__ import annotations

from collections.abc import Iterator

from moriio_observed.doctor.engines import Engine
from moriio_observed.doctor.findings import Finding, Place, Severity


def check(engine: Engine) -> Iterator[Finding]:
    """Whether options stand in a file of vLLM's."""
    file = engine.options.get("config")
    if file:
        yield Finding(
            "config-file-unread",
            Severity.NOTE,
            "options stand in a file that was not read",
            (Place("--config", file),),
            "What is said here holds for the options of the command line alone.",
            "Give the options that stand in the file on the command line.",
            ("docs/doctor.md#what-it-cannot-tell",),
            engine.name,
        )
