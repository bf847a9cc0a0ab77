"""Guards: one that vLLM would not honour, and what happens where there is none."""

from __future__ import annotations

from collections.abc import Iterator

from moriio_observed.config import CONFIG_PATH, Settings, shown
from moriio_observed.doctor.engines import Connector, Engine
from moriio_observed.doctor.findings import Finding, Place, Severity, runbook
from moriio_observed.policy import Policy


def check(engine: Engine) -> Iterator[Finding]:
    """Whether the guard can be honoured, and whether vLLM's policy does what it promises."""
    for connector in engine.connectors:
        settings = connector.settings
        if settings is not None and connector.is_ours and settings.guard != "report":
            yield from _guarded(connector, settings)
        elif connector.reads:
            yield from _promised(connector)
            yield _unguarded(connector)


def _policy(connector: Connector) -> str:
    """What vLLM does: in MultiConnector the parent's policy holds for the engine."""
    return str(connector.engine.transfer.get("kv_load_failure_policy", "fail"))


def _guarded(connector: Connector, settings: Settings) -> Iterator[Finding]:
    engine = connector.engine
    place = Place(connector.key(CONFIG_PATH, "guard"), settings.guard)
    own = str(connector.config.get("kv_load_failure_policy", "fail"))
    if not connector.reads:
        yield Finding(
            "guard-without-reads",
            Severity.NOTE,
            "a guard means nothing on an engine that does not read",
            (place, Place("kv_role", connector.role)),
            "It is the decode engine in READ mode that it guards.",
            "Set it there.",
            ("docs/guard.md",),
            engine.name,
        )
        return
    context = ("decode-context-parallel-size", "prefill-context-parallel-size")
    policy = Policy(
        guard=settings.guard,
        load_failure=own,
        groups=1,
        partial=False,
        spread=any(engine.size(option) > 1 for option in context),
        repeats_ids=engine.environ.get("VLLM_DISABLE_REQUEST_ID_RANDOMIZATION", "0")
        not in ("", "0"),
    )
    refusal = policy.refusal
    if not refusal and _policy(connector) != own:
        refusal = (
            f"vLLM would do {_policy(connector)!r}, MultiConnector's kv_load_failure_policy, which "
            "holds for the whole engine; set it the same there"
        )
    if refusal:
        yield Finding(
            "guard-refused",
            Severity.CRITICAL,
            f"the guard {settings.guard!r} cannot be honoured: {refusal}",
            (place, Place(connector.key("kv_load_failure_policy"), shown(own))),
            "The engine does not start, rather than promise what vLLM would not do.",
            f"Set kv_load_failure_policy to {settings.guard!r} too, or take another guard.",
            ("docs/guard.md",),
            engine.name,
        )


def _promised(connector: Connector) -> Iterator[Finding]:
    engine, facts = connector.engine, connector.engine.facts
    if connector.config.get("kv_load_failure_policy") != "recompute":
        return
    silent = facts is not None and not facts.reports_failed_reads
    if not silent and engine.options.get("async-scheduling") == "false":
        return
    yield Finding(
        "recompute-not-kept",
        Severity.WARNING,
        "kv_load_failure_policy 'recompute' does not keep its promise here",
        (
            Place(connector.key("kv_load_failure_policy"), "recompute"),
            Place("vLLM", engine.version or "not known"),
        ),
        "Up to vLLM 0.30 MoRIIO reports no failed read at all. From 0.31 on, with asynchronous "
        "scheduling (the default on GPUs), vLLM throws one token away and serves the next, which "
        "follows on it. Either way a failed read is answered wrong.",
        "Set observed.guard to 'recompute' with our connector. Or, from 0.31 on, "
        "--no-async-scheduling.",
        ("docs/guard.md", runbook("MoriioReadsFailing")),
        engine.name,
    )


def _unguarded(connector: Connector) -> Finding:
    return Finding(
        "no-guard",
        Severity.NOTE,
        "there is no guard: what has not landed is "
        + ("told and answered all the same" if connector.is_ours else "answered all the same"),
        (Place(connector.key(CONFIG_PATH, "guard"), "report (by default)"),),
        "A read that fails, or hangs past transfer_timeout, is answered with garbage and HTTP 200.",
        "If a right answer matters more, set observed.guard and kv_load_failure_policy to "
        "'recompute' or 'fail'.",
        ("docs/guard.md",),
        connector.engine.name,
    )
