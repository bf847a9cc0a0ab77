"""READ with FULL CUDA graphs: does anything wait for the reads of such a step?"""

from __future__ import annotations

from collections.abc import Iterator

from moriio_observed.barrier import Era
from moriio_observed.config import CONFIG_PATH, shown
from moriio_observed.doctor.engines import Connector, Engine
from moriio_observed.doctor.findings import Finding, Place, Severity, runbook
from moriio_observed.doctor.versions import GRAPH_MODES, KNOWN, SUPPORTED, Facts, span

_SEE = ("docs/versions.md", runbook("MoriioFullGraphUnprotected"), "docs/settings.md#barriers")
_HOLE = (
    "A FULL replay runs no Python between layers, so no layer barrier can wait in it: attention "
    "reads KV that may not have landed and the answer is fluent nonsense with HTTP 200, more often "
    "the higher the concurrency."
)
_CLOSE = (
    "our connector with kv_connector_extra_config.observed.barrier 'auto' (its default) waits "
    "before the forward on every one of them and leaves the graph mode as it is"
)


def check(engine: Engine) -> Iterator[Finding]:
    """Whether FULL graph steps of a decode engine wait for their reads."""
    if engine.facts is not None and engine.facts.era is None:
        for connector in engine.connectors:
            if connector.reads:
                yield _no_barrier(engine)
        return
    mode, whence = engine.graph_mode
    if mode not in GRAPH_MODES:
        yield Finding(
            "bad-graph-mode",
            Severity.CRITICAL,
            f"{shown(mode)} is no CUDA graph mode",
            (Place(whence, shown(mode)),),
            "vLLM does not start.",
            "Use one of " + ", ".join(GRAPH_MODES) + ".",
            ("docs/doctor.md",),
            engine.name,
        )
        return
    if not GRAPH_MODES[mode] or (engine.version and not engine.facts):
        return  # no FULL graphs, or a release that nobody can tell of
    for connector in engine.connectors:
        if connector.reads and (not connector.is_ours or connector.settings is not None):
            yield _judge(connector)


def _no_barrier(engine: Engine) -> Finding:
    return Finding(
        "no-barrier",
        Severity.CRITICAL,
        f"vLLM {engine.version} waits for no read at all, whatever its CUDA graphs are",
        (Place("read_mode", "true"), Place("vLLM", str(engine.version))),
        "Its layer barrier is empty: attention reads KV that may not have landed, and the answer "
        "is fluent nonsense with HTTP 200, more often the higher the concurrency. That release is "
        "not supported: do not count on our connector there.",
        f"Use vLLM {span(SUPPORTED)} with our connector, or WRITE mode.",
        _SEE[:1],
        engine.name,
    )


def _judge(connector: Connector) -> Finding:
    engine = connector.engine
    setting = _setting(connector)
    runner_v2, why_runner = engine.runner_v2
    mode, whence = engine.graph_mode
    where = (
        Place(whence, mode),
        Place("read_mode", "true"),
        Place("vLLM", engine.version or "not known"),
        _barrier(connector, setting),
        Place("model runner", f"{'V2' if runner_v2 else 'V1'} ({why_runner})"),
    )
    releases = [engine.facts] if engine.facts else _possible(setting)
    safe = [facts for facts in releases if facts.protects_full(setting, runner_v2=runner_v2)]
    if len(safe) == len(releases):
        return _protected(connector, setting, where)
    return Finding(
        "full-graphs-unprotected",
        Severity.CRITICAL,
        f"READ with {mode} CUDA graphs, and nothing waits for the reads of a FULL step"
        + _on(engine, releases, safe),
        where,
        _HOLE,
        f"{_fixed_by()} On your release: {_CLOSE}. Without it: cudagraph_mode PIECEWISE, which is "
        "slower.",
        _SEE,
        engine.name,
    )


def _protected(connector: Connector, setting: str | None, where: tuple[Place, ...]) -> Finding:
    guarded = connector.settings is not None and connector.settings.guard != "report"
    if setting is None or setting == "upstream":
        by = "vLLM's own barrier"
    elif guarded:
        by = "the guard: a request is run only once its reads have landed"
    else:
        by = f"our barrier ({setting!r})"
    alone = [
        facts
        for facts in (KNOWN if connector.engine.facts is None else (connector.engine.facts,))
        if not facts.protects_full(None, runner_v2=connector.engine.runner_v2[0])
    ]
    without = (
        f"Without it nothing would wait there on vLLM {span(alone)}. {_fixed_by()}" if alone else ""
    )
    return Finding(
        "full-graphs-protected",
        Severity.NOTE,
        f"READ with {connector.engine.graph_mode[0]} CUDA graphs: FULL steps are protected by {by}",
        where,
        f"{_HOLE} {without}".strip(),
        "Nothing; keep the barrier as it is.",
        _SEE[:1],
        connector.engine.name,
    )


def _fixed_by() -> str:
    visible = [facts for facts in KNOWN if facts.era is Era.LAYER_AND_STEP]
    always = [facts for facts in KNOWN if facts.era is Era.STEP]
    return (
        f"vLLM itself closes the hole in {span(visible)} on Model Runner V1 only, and from "
        f"{always[0]} on in every runner."
    )


def _setting(connector: Connector) -> str | None:
    """Our barrier in force; a guard leaves nothing to wait for, as ``step`` would."""
    settings = connector.settings
    if not connector.is_ours or settings is None:
        return None
    return settings.barrier if settings.guard == "report" else "step"


def _barrier(connector: Connector, setting: str | None) -> Place:
    if setting is None:
        return Place(connector.key("kv_connector"), connector.class_name)
    settings = connector.settings
    if settings is not None and settings.guard != "report":
        return Place(connector.key(CONFIG_PATH, "guard"), settings.guard)
    given = settings is not None and "barrier" in settings.given
    return Place(
        connector.key(CONFIG_PATH, "barrier"), setting if given else f"{setting} (by default)"
    )


def _possible(setting: str | None) -> list[Facts]:
    """The releases it may be where nobody says which."""
    return list(KNOWN if setting is None else SUPPORTED)


def _on(engine: Engine, releases: list[Facts], safe: list[Facts]) -> str:
    if engine.facts is not None:
        runner = "Model Runner V2" if engine.runner_v2[0] else "Model Runner V1"
        return f" on vLLM {engine.version} ({runner})"
    unsafe = [facts for facts in releases if facts not in safe]
    return f" on vLLM {span(unsafe)} (say --vllm-version)"
