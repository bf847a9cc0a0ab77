"""Which connector runs, in which role and mode, and whether it is ours."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from moriio_observed.config import shown
from moriio_observed.doctor.engines import EXTRA, MODULE_PATH, OURS, UPSTREAMS, Connector, Engine
from moriio_observed.doctor.findings import Finding, Place, Severity
from moriio_observed.doctor.versions import IGNORED_VARIABLES, SUPPORTED, span

ROLES = ("kv_producer", "kv_consumer", "kv_both")
_FALSE = ("", "false", "0", "no", "off", "none", "n", "f", "write")


def check(engine: Engine) -> Iterator[Finding]:
    """Whether the engine transfers KV by MoRIIO at all, in a mode it means, seen by us."""
    if not engine.connectors:
        yield _no_moriio(engine)
    for connector in engine.connectors:
        yield from _class_name(connector)
        yield from _role(connector)
        yield from _mode(connector)
        yield from _unobserved(connector)
    if engine.connectors:
        yield from _variables(engine)
        yield from _release(engine)


def _no_moriio(engine: Engine) -> Finding:
    name = engine.transfer.get("kv_connector")
    return Finding(
        "no-moriio-connector",
        Severity.WARNING,
        "no MoRIIO connector is configured",
        (Place("kv_connector", shown(name) if name is not None else "not given"),),
        "There is nothing here that moriio_observed could observe.",
        f'Set "kv_connector": "{OURS}" and "kv_connector_module_path": "{MODULE_PATH}".',
        ("README.md",),
        engine.name,
    )


def _class_name(connector: Connector) -> Iterator[Finding]:
    name, module = connector.class_name, connector.config.get("kv_connector_module_path")
    place = Place(connector.key("kv_connector"), name)
    path = Place(connector.key("kv_connector_module_path"), shown(module))
    subject = connector.engine.name
    if name not in (OURS, UPSTREAMS):
        near = difflib.get_close_matches(name, (OURS, UPSTREAMS), n=1)
        yield Finding(
            "unknown-connector",
            Severity.CRITICAL,
            f"{name} is no connector of vLLM's or ours"
            + (f"; did you mean {near[0]}?" if near else ""),
            (place,),
            "vLLM does not start with a connector it cannot find.",
            f"Write {OURS} with kv_connector_module_path {MODULE_PATH}.",
            ("README.md",),
            subject,
        )
    elif name == OURS and module is None:
        yield Finding(
            "no-module-path",
            Severity.WARNING,
            f"{OURS} is named without kv_connector_module_path",
            (place, Place(path.key, "not given")),
            "vLLM then finds it only through its plugins: where they are not loaded, or "
            "VLLM_PLUGINS leaves ours out, it does not start ('Unsupported connector type').",
            f'Add "kv_connector_module_path": "{MODULE_PATH}".',
            ("README.md",),
            subject,
        )
    elif module is not None and (name, module) != (OURS, MODULE_PATH):
        right = MODULE_PATH if name == OURS else "no kv_connector_module_path"
        yield Finding(
            "wrong-module-path",
            Severity.CRITICAL if name == OURS else Severity.WARNING,
            f"{name} is not loaded from where it is",
            (place, path),
            "vLLM imports that module before it looks at the name, and does not start if it or the "
            "class in it does not exist.",
            f"{name} wants {right}.",
            ("README.md",),
            subject,
        )


def _role(connector: Connector) -> Iterator[Finding]:
    place = Place(connector.key("kv_role"), shown(connector.config.get("kv_role")))
    if connector.role not in ROLES:
        yield Finding(
            "bad-role",
            Severity.CRITICAL,
            "kv_role does not say on which side the engine is",
            (place,),
            "vLLM does not start.",
            "Set kv_role to kv_producer (prefill) or kv_consumer (decode).",
            ("README.md",),
            connector.engine.name,
        )
    elif connector.role == "kv_both":
        yield Finding(
            "both-roles",
            Severity.WARNING,
            "MoRIIO takes kv_both for a prefill engine",
            (place,),
            "Its workers never read, and its scheduler half behaves like a decode engine's: no KV "
            "arrives here.",
            "Set kv_role to kv_producer (prefill) or kv_consumer (decode).",
            ("README.md",),
            connector.engine.name,
        )


def _mode(connector: Connector) -> Iterator[Finding]:
    value = connector.extra.get("read_mode")
    place = Place(connector.key(EXTRA, "read_mode"), shown(value))
    if connector.read_mode or str(value).lower().strip() in _FALSE:
        return
    yield Finding(
        "read-mode-is-write",
        Severity.CRITICAL,
        "upstream reads this read_mode as WRITE",
        (place,),
        "Only true and 1 (as text or not) mean READ. Everything else is WRITE, without a word: the "
        "decode engine waits to be written to, and with the other side in READ no KV passes.",
        'Write "read_mode": true, or false if WRITE is meant.',
        ("docs/doctor.md",),
        connector.engine.name,
    )


def _unobserved(connector: Connector) -> Iterator[Finding]:
    if connector.class_name != UPSTREAMS or connector.is_ours:
        return
    yield Finding(
        "not-observed",
        Severity.WARNING,
        "vLLM's own connector runs: nothing is observed here",
        (Place(connector.key("kv_connector"), connector.class_name),),
        "No moriio_ series, no exposure is told, no guard can be had.",
        f'Set "kv_connector": "{OURS}" and "kv_connector_module_path": "{MODULE_PATH}"; or, with '
        "the "
        "configuration as it is, MORIIO_OBSERVED=1 in the environment.",
        ("README.md",),
        connector.engine.name,
    )


def _variables(engine: Engine) -> Iterator[Finding]:
    for name, key in IGNORED_VARIABLES.items():
        if name not in engine.environ:
            continue
        value = engine.environ[name]
        unset = not any(key in connector.extra for connector in engine.connectors)
        asks_for_read = key == "read_mode" and value.lower().strip() in ("1", "true")
        yield Finding(
            "ignored-variable",
            Severity.CRITICAL if unset and asks_for_read else Severity.WARNING,
            f"{name} is ignored by vLLM 0.27 and newer"
            + (": the mode is WRITE" if unset and key == "read_mode" else ""),
            (Place(name, value), Place(f"{EXTRA}.{key}", "not given" if unset else "given")),
            "It has done nothing since vLLM took the setting from the configuration instead.",
            f"Remove the variable; set {EXTRA}.{key}"
            + (" = true for READ." if key == "read_mode" else "."),
            ("docs/doctor.md",),
            engine.name,
        )


def _release(engine: Engine) -> Iterator[Finding]:
    facts = engine.facts
    if engine.version is None or (facts is not None and facts.observed):
        return
    yield Finding(
        "unknown-release",
        Severity.WARNING,
        f"vLLM {engine.version} is not one that moriio_observed is held against",
        (Place("vLLM", engine.version),),
        "If its MoRIIO connector is as we know it, it is observed like the others; if not, it runs "
        "as vLLM wrote it, and a barrier or guard that was given refuses to start.",
        f"Use vLLM {span(SUPPORTED)}, or look for moriio_hook_installed 0 on its /metrics.",
        ("docs/versions.md",),
        engine.name,
    )
