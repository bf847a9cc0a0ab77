"""A span as it was received, and which spans need a look."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

OURS = "moriio."
STEP, BARRIER, READ, HOLD = (OURS + name for name in ("step", "barrier", "read", "hold"))

REQUEST_IDS = ("moriio.request_id", "gen_ai.request.id")
"""Where our spans and vLLM's carry a request's id."""

SLOW_S = 0.1
"""A wait this long is slow, in seconds: the default of the setting `otlp.slow_wait_s`."""

Attributes = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Event:
    """Something at one moment of a span.

    Attributes:
        name: What.
        at_ns: When, in nanoseconds since the epoch.
        attributes: More about it.
    """

    name: str
    at_ns: int
    attributes: Attributes


@dataclass(frozen=True, slots=True)
class Link:
    """A span's reference to a span that is not its parent.

    Attributes:
        trace_id: The other span's trace, 32 hexadecimal digits.
        span_id: The other span, 16 hexadecimal digits.
        attributes: More about it.
    """

    trace_id: str
    span_id: str
    attributes: Attributes


@dataclass(frozen=True, slots=True)
class Span:
    """One span, whoever sent it. Nothing in it is to be trusted.

    Attributes:
        trace_id: 32 hexadecimal digits.
        span_id: 16 hexadecimal digits.
        parent_id: The parent's id, empty for a root.
        name: Its name.
        start_ns: When it began, in nanoseconds since the epoch.
        end_ns: When it ended, never before its start.
        kind: OpenTelemetry's kind, such as `SERVER`.
        failed: Whether its status is ERROR.
        message: What the status says.
        attributes: Its attributes.
        events: Its events.
        links: Its links.
        resource: The attributes of the process it comes from.
        scope: The instrumentation it comes from.
    """

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    start_ns: int
    end_ns: int
    kind: str = "INTERNAL"
    failed: bool = False
    message: str = ""
    attributes: Attributes = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    links: tuple[Link, ...] = ()
    resource: Attributes = field(default_factory=dict)
    scope: str = ""

    @property
    def took_ns(self) -> int:
        """How long it lasted, in nanoseconds."""
        return self.end_ns - self.start_ns

    @property
    def waited_ns(self) -> float:
        """How long something waited for reads in it, in nanoseconds.

        A step is long because of its forward, a hold because the decode engine has other work and
        a request because of its tokens: what they took says nothing about reads.
        """
        if self.name in {BARRIER, READ}:
            return self.took_ns
        blocked = self.attributes.get("moriio.blocked_s") if self.name == STEP else None
        return blocked * 1e9 if isinstance(blocked, int | float) else 0

    def is_slow(self, slow_s: float) -> bool:
        """Whether reads were waited for at least so long, in seconds."""
        return self.name.startswith(OURS) and self.waited_ns >= slow_s * 1e9

    @property
    def request_ids(self) -> frozenset[str]:
        """The requests it names."""
        named = (self.attributes.get(key) for key in REQUEST_IDS)
        return frozenset(value for value in named if isinstance(value, str) and value)
