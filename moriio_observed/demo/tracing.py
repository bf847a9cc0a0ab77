"""Where the demo's spans go: to the backend the user has named, else to a sink of its own."""

import shlex
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from moriio_observed.traces.sink import Sink
from moriio_observed.traces.store import SpanStore

FOLDER = Path("demo") / "traces"
"""Where in the demo's folder its own sink keeps the spans."""

PATIENCE_S = 20.0
"""How long a trace may take to arrive, seconds."""
OURS, VLLMS = "moriio.step", "llm_request"

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


@dataclass(frozen=True)
class Tracing:
    """How the demo's servers trace.

    Attributes:
        flags: Their command line flags for it.
        env: Their environment variables for it.
        folder: Where the spans are kept; None: the user's backend has them.
    """

    flags: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    folder: Path | None = None

    def where(self, trace_id: str) -> str:
        """Where to see a trace, once it is there to be seen."""
        if self.folder is None:
            return f"search {self.flags[-1]}'s backend for it"
        deadline = time.monotonic() + PATIENCE_S
        while not self._has(self.folder, trace_id) and time.monotonic() < deadline:
            time.sleep(0.25)
        return f"{script()} traces --last --from {shlex.quote(str(self.folder))}"

    def _has(self, folder: Path, trace_id: str) -> bool:
        names = [span.name for span in SpanStore([folder]).spans([trace_id])]
        # Both engines' own spans come last.
        return OURS in names and names.count(VLLMS) > 1


@contextmanager
def start_tracing(out: Path, environ: Mapping[str, str]) -> Iterator[Tracing]:
    """Have a place for spans.

    Args:
        out: The demo's folder.
        environ: The user's environment, which may name a backend.
    """
    named = next((environ[name] for name in _ENDPOINTS if environ.get(name)), None)
    if named is not None:
        yield Tracing(("--otlp-traces-endpoint", named))
        return
    folder = (out / FOLDER).resolve()
    with Sink(folder) as sink:
        yield Tracing(
            # vLLM takes the address as it is, and reads only this variable.
            ("--otlp-traces-endpoint", f"{sink.url}/v1/traces"),
            {
                "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
                "OTEL_BSP_SCHEDULE_DELAY": "500",
            },
            folder,
        )


def script() -> str:
    """The command `moriio-observed`, as the shell takes it."""
    return shlex.quote(str(Path(sys.executable).with_name("moriio-observed")))
