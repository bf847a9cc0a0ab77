"""Keys that vLLM refuses, or that MoRIIO passes over in silence."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from moriio_observed.config import shown
from moriio_observed.doctor.engines import EXTRA, Connector, Engine, number
from moriio_observed.doctor.findings import Finding, Place, Severity
from moriio_observed.doctor.versions import CONFIG_KEYS, EXTRA_KEYS, LEGACY_CONFIG_KEYS

BACKENDS = ("rdma", "xgmi")
POLICIES = ("recompute", "fail")
_WHOLE = ("qp_per_transfer", "post_batch_size", "num_workers")
_DEADLINES = ("transfer_timeout", "recv_abort_timeout", "defer_timeout")
# Ours go to another check, which knows them better.
_OURS = "observed"


def check(engine: Engine) -> Iterator[Finding]:
    """Whether every key is one that somebody reads, and its value one they take."""
    yield from _top(engine)
    for connector in engine.connectors:
        yield from _extra_kind(connector)
        yield from _misspelt(connector)
        yield from _values(connector)


def _top(engine: Engine) -> Iterator[Finding]:
    facts = engine.facts
    legacy = facts is None or facts.legacy_keys
    known = CONFIG_KEYS | (LEGACY_CONFIG_KEYS if legacy else frozenset())
    for key in sorted(engine.transfer.keys() - known):
        belongs = key in EXTRA_KEYS or key == _OURS
        near = difflib.get_close_matches(key, sorted(known), n=1)
        if belongs:
            do = f"Move it into {EXTRA}."
        elif near:
            do = f"Did you mean {near[0]}?"
        else:
            do = "Remove it."
        yield Finding(
            "refused-key",
            Severity.CRITICAL,
            f"vLLM{f' {engine.version}' if engine.version else ''} takes no {shown(key)} in its "
            "--kv-transfer-config",
            (Place(key, shown(engine.transfer[key])),),
            "It does not start.",
            do,
            ("docs/doctor.md",),
            engine.name,
        )
    policy = engine.transfer.get("kv_load_failure_policy", "fail")
    if policy not in POLICIES:
        yield _bad_value(
            engine, Place("kv_load_failure_policy", shown(policy)), "recompute or fail"
        )


def _extra_kind(connector: Connector) -> Iterator[Finding]:
    extra = connector.config.get(EXTRA)
    if extra is not None and extra is not connector.extra:
        yield _bad_value(
            connector.engine, Place(connector.key(EXTRA), shown(extra)), "a JSON object"
        )


def _misspelt(connector: Connector) -> Iterator[Finding]:
    for key, value in connector.extra.items():
        if key in EXTRA_KEYS or key == _OURS:
            continue
        near = difflib.get_close_matches(key.lower(), sorted(EXTRA_KEYS), n=1, cutoff=0.8)
        if near:
            yield Finding(
                "ignored-key",
                Severity.WARNING,
                f"MoRIIO passes over {shown(key)} in silence; did you mean {near[0]}?",
                (Place(connector.key(EXTRA, key), shown(value)),),
                f"{near[0]} has its default instead.",
                f"Rename it to {near[0]}.",
                ("docs/doctor.md",),
                connector.engine.name,
            )


def _values(connector: Connector) -> Iterator[Finding]:
    engine, extra, facts = connector.engine, connector.extra, connector.engine.facts
    backend = extra.get("backend", "rdma")
    if str(backend).lower() not in BACKENDS:
        place = Place(connector.key(EXTRA, "backend"), shown(backend))
        yield _bad_value(engine, place, "rdma or xgmi")
    for key in _WHOLE:
        value = number(extra.get(key, 1))
        if value is None or value != int(value):
            place = Place(connector.key(EXTRA, key), shown(extra[key]))
            yield _bad_value(engine, place, "a whole number")
    for key in _DEADLINES:
        seconds = connector.seconds(key)
        positive = facts is None or facts.checks_deadlines
        if seconds is None or (positive and seconds <= 0):
            place = Place(connector.key(EXTRA, key), shown(extra.get(key)))
            yield _bad_value(engine, place, "seconds above 0")


def _bad_value(engine: Engine, place: Place, right: str) -> Finding:
    return Finding(
        "bad-value",
        Severity.CRITICAL,
        f"{place.key} must be {right}",
        (place,),
        "The engine does not start.",
        f"Set it to {right}.",
        ("docs/doctor.md",),
        engine.name,
    )
