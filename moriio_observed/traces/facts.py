"""What a line says about a span: its name and the few attributes that matter at night."""

from __future__ import annotations

from collections.abc import Callable

from moriio_observed.traces.spans import BARRIER, HOLD, READ, STEP, Span
from moriio_observed.traces.text import duration, safe

LONGEST_NAME, LONGEST_FACT = 60, 80

GOOD_OUTCOMES = ("landed", "released", "superseded")


def label(span: Span, *, with_rank: bool) -> str:
    """The span's name, and which of its kind it is."""
    parts = [safe(span.name, LONGEST_NAME)]
    if span.name == STEP:
        parts.append(_plain(span, "moriio.step.number"))
    elif span.name == BARRIER:
        at_layer = span.attributes.get("moriio.site") == "layer"
        layer = _plain(span, "moriio.layer")
        parts.append(f"layer {layer}" if at_layer or layer else _plain(span, "moriio.site"))
    if with_rank and "moriio.tp_rank" in span.resource:
        parts.append(f"rank {safe(span.resource['moriio.tp_rank'], LONGEST_FACT)}")
    return " ".join(filter(None, parts))


def facts(span: Span) -> list[str]:
    """What else is worth a line; of a span of others only what its status says."""
    told = [_outcome(span)]
    told += (say(span) for say in _FACTS.get(span.name, ()))
    return [fact for fact in told if fact]


def _outcome(span: Span) -> str:
    """What became of it, each word once: our status says what `error.type` says."""
    outcome = _plain(span, "moriio.outcome")
    bad = "" if outcome in GOOD_OUTCOMES else outcome
    told = dict.fromkeys((bad, _plain(span, "error.type"), safe(span.message, LONGEST_FACT)))
    return " ".join(filter(None, told)) or ("status ERROR" if span.failed else outcome)


def _plain(span: Span, key: str) -> str:
    value = span.attributes.get(key, "")
    return safe(value, LONGEST_FACT)


def _fact(template: str, *keys: str, unless: tuple[object, ...] = ()) -> Callable[[Span], str]:
    """A fact that is told when the span has all of these attributes."""

    def say(span: Span) -> str:
        values = [span.attributes.get(key) for key in keys]
        if None in values or any(value in unless for value in values):
            return ""
        return template.format(*(safe(value, LONGEST_FACT) for value in values))

    return say


def _count(noun: str, key: str) -> Callable[[Span], str]:
    """How many, in words."""

    def say(span: Span) -> str:
        value = span.attributes.get(key)
        return "" if value is None else f"{safe(value, LONGEST_FACT)} {noun}{'s' * (value != 1)}"

    return say


def _time(template: str, key: str) -> Callable[[Span], str]:
    def say(span: Span) -> str:
        value = span.attributes.get(key)
        return template.format(duration(value * 1e9)) if isinstance(value, int | float) else ""

    return say


def _size(span: Span) -> str:
    value = span.attributes.get("moriio.bytes")
    return f"{value / 2**20:.1f} MiB" if isinstance(value, int | float) else ""


def _role(span: Span) -> str:
    return safe(span.resource.get("moriio.role", ""), LONGEST_FACT)


_FACTS: dict[str, tuple[Callable[[Span], str], ...]] = {
    STEP: (
        _time("blocked {}", "moriio.blocked_s"),
        _fact("{} exposed", "moriio.exposed", unless=(0, False)),
        _fact("unprotected: {}", "moriio.unprotected.cause"),
        _count("read", "moriio.reads"),
        _count("request", "moriio.requests"),
        _fact("mode {}", "moriio.runtime_mode"),
        _role,
    ),
    BARRIER: (
        _count("read", "moriio.reads"),
        _fact("{} failed", "moriio.reads.failed", unless=(0,)),
        _fact("{} in flight", "moriio.reads.in_flight", unless=(0,)),
    ),
    READ: (
        _fact(
            "exposed: {} ({}), {}",
            "moriio.exposure.cause",
            "moriio.exposure.certainty",
            "moriio.exposure.action",
        ),
        _fact("layers {} did not land", "moriio.layers.missing"),
        _fact("{}", "moriio.request_id"),
        _size,
        _count("layer", "moriio.layers"),
        _fact("from {}", "moriio.remote"),
    ),
    HOLD: (_fact("{}", "moriio.request_id"), _count("block", "moriio.blocks"), _role),
    "llm_request": (
        _fact("{}", "gen_ai.request.id"),
        _time("first token {}", "gen_ai.latency.time_to_first_token"),
        _fact(
            "{} tokens in, {} out", "gen_ai.usage.prompt_tokens", "gen_ai.usage.completion_tokens"
        ),
    ),
}
