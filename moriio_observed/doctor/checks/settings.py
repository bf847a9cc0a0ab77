"""Our own settings: misspelt, misplaced, or read by nobody."""

from __future__ import annotations

from collections.abc import Iterator

from moriio_observed.config import CONFIG_PATH, ENVIRON_PREFIX, SettingsError, of_connector, shown
from moriio_observed.doctor.engines import Connector, Engine
from moriio_observed.doctor.findings import Finding, Place, Severity

_PLUGIN = "moriio_observed"


def check(engine: Engine) -> Iterator[Finding]:
    """Whether every setting of ours is one, and our connector is there to read it."""
    yield from _way_in(engine)
    for connector in engine.connectors:
        if connector.is_ours:
            yield from _refused(connector)
        elif connector.observed:
            yield _unread(connector)


def _refused(connector: Connector) -> Iterator[Finding]:
    try:
        settings = of_connector(connector.extra, connector.engine.environ)
    except SettingsError as error:
        for problem in error.problems:
            place, _, reason = problem.partition(": ")
            key, _, value = place.partition(" = ")
            ours = key.startswith(ENVIRON_PREFIX)
            yield Finding(
                "refused-setting",
                Severity.CRITICAL,
                f"moriio_observed refuses {key}: {reason}",
                (Place(key if ours else connector.key(key), value),),
                "The engine does not start, rather than run with something else than you asked "
                "for.",
                "Correct it; the name and the right form stand there.",
                ("docs/settings.md",),
                connector.engine.name,
            )
        return
    if settings.barrier == "off":
        yield Finding(
            "barrier-off",
            Severity.CRITICAL,
            "barrier 'off' serves requests from memory that no read has filled",
            (Place(connector.key(CONFIG_PATH, "barrier"), "off"),),
            "It reproduces the fault for a demonstration.",
            "Remove it, or use 'auto'.",
            ("docs/settings.md#barriers",),
            connector.engine.name,
        )


def _unread(connector: Connector) -> Finding:
    return Finding(
        "settings-unread",
        Severity.WARNING,
        "our settings are given, and vLLM's own connector passes over them",
        (
            Place(connector.key("kv_connector"), connector.class_name),
            Place(connector.key(CONFIG_PATH), shown(dict(connector.observed))),
        ),
        "Neither the barrier nor the guard that stands there is in force.",
        "Use our connector, or set MORIIO_OBSERVED=1.",
        ("README.md",),
        connector.engine.name,
    )


def _way_in(engine: Engine) -> Iterator[Finding]:
    asked = engine.environ.get("MORIIO_OBSERVED", "0")
    plugins = engine.environ.get("VLLM_PLUGINS")
    if asked not in ("", "0", "1"):
        yield Finding(
            "bad-variable",
            Severity.CRITICAL,
            "MORIIO_OBSERVED is neither 0 nor 1",
            (Place("MORIIO_OBSERVED", asked),),
            "Our plugin raises when vLLM loads it.",
            "Set it to 1 to put our connector under MoRIIOConnector's name, else unset it.",
            ("README.md",),
            engine.name,
        )
    elif asked == "1" and plugins is not None and _PLUGIN not in plugins.split(","):
        yield Finding(
            "plugin-left-out",
            Severity.CRITICAL,
            "MORIIO_OBSERVED=1 does nothing: VLLM_PLUGINS leaves our plugin out",
            (Place("MORIIO_OBSERVED", asked), Place("VLLM_PLUGINS", plugins)),
            "vLLM loads only the plugins named there, so its own connector runs.",
            f"Add {_PLUGIN} to VLLM_PLUGINS, or unset it.",
            ("README.md",),
            engine.name,
        )
