"""An engine as its configuration describes it, and the MoRIIO connectors in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from moriio_observed.config import Settings, SettingsError, of_connector
from moriio_observed.doctor.versions import (
    DEADLINES,
    DEFAULT_LEVEL,
    GRAPH_MODE_OF_LEVEL,
    NUMBERED_GRAPH_MODES,
    PORTS,
    Facts,
    facts_of,
)

OURS = "ObservedMoRIIOConnector"
UPSTREAMS = "MoRIIOConnector"
MODULE_PATH = "moriio_observed.connector"
EXTRA = "kv_connector_extra_config"


@dataclass(frozen=True, slots=True)
class Model:
    """What of a model decides how its KV cache can be transferred.

    Attributes:
        kv_heads: Its KV heads; None if unknown.
        latent: Whether its attention is multi-head latent (MLA), which every rank holds whole.
    """

    kv_heads: int | None = None
    latent: bool = False


@dataclass(frozen=True)
class Engine:
    """One vLLM engine, as far as it was told.

    Attributes:
        name: How findings call it.
        transfer: Its ``--kv-transfer-config``.
        compilation: Its ``--compilation-config``.
        options: Its other options, by name without dashes in front; None where it is a bare flag.
        environ: Its environment.
        version: Its vLLM; None if unknown.
        model: Its model.
        whole_command: Whether `options` is all there is, so that what is not in it is not set.
        unread: Why the file of its ``--config`` was not read; empty if it was, or there is none.
    """

    name: str
    transfer: Mapping[str, Any]
    compilation: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, str | None] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    version: str | None = None
    model: Model = field(default_factory=Model)
    whole_command: bool = False
    unread: str = ""

    @property
    def facts(self) -> Facts | None:
        """What is known of its vLLM; None for one that is not known."""
        return facts_of(self.version)

    @property
    def connectors(self) -> tuple[Connector, ...]:
        """Its MoRIIO connectors, in MultiConnector too."""
        return tuple(_moriio(Connector(self, self.transfer, "")))

    def size(self, option: str) -> int:
        """A size among its options; 1 where it is not given, or is not a number."""
        text = self.options.get(option) or ""
        return int(text) if text.isascii() and text.isdigit() and len(text) < 7 else 1

    @property
    def tensor_parallel(self) -> int:
        """Its tensor-parallel ranks."""
        return self.size("tensor-parallel-size")

    @property
    def local_data_parallel(self) -> int:
        """Its data-parallel ranks on one host, as far as its options say."""
        if "data-parallel-size-local" in self.options:
            return self.size("data-parallel-size-local")
        return self.size("data-parallel-size")

    def has(self, flag: str) -> bool:
        """Whether a flag is on."""
        value = self.options.get(flag, "false")
        return value is None or value.lower() not in ("false", "0", "no", "off")

    @property
    def graph_mode(self) -> tuple[str, str]:
        """The CUDA graph mode it will have, and where that comes from; as vLLM decides it."""
        if self.has("enforce-eager"):
            return "NONE", "--enforce-eager"
        given = self.compilation.get("cudagraph_mode")
        if given is not None:
            return graph_mode_named(given), "compilation_config.cudagraph_mode"
        level = self.options.get("optimization-level")
        if level is not None and level.isascii() and level.isdigit():
            mode = GRAPH_MODE_OF_LEVEL.get(int(level), GRAPH_MODE_OF_LEVEL[DEFAULT_LEVEL])
            return mode, f"--optimization-level {level}"
        return GRAPH_MODE_OF_LEVEL[DEFAULT_LEVEL], "vLLM's default"

    @property
    def runner_v2(self) -> tuple[bool, str]:
        """Whether it runs on Model Runner V2, and where that comes from."""
        chosen = self.environ.get("VLLM_USE_V2_MODEL_RUNNER", "").strip()
        if chosen in ("0", "1"):
            return chosen == "1", f"VLLM_USE_V2_MODEL_RUNNER={chosen}"
        facts = self.facts
        return facts is None or facts.runner_v2, "vLLM's default for most models"


@dataclass(frozen=True, slots=True)
class Connector:
    """One MoRIIO connector of an engine.

    Attributes:
        engine: Whose it is.
        config: Its own configuration; in MultiConnector a part of the engine's.
        path: Where that stands in the engine's; empty where it is the engine's.
    """

    engine: Engine
    config: Mapping[str, Any]
    path: str

    def key(self, *parts: str) -> str:
        """The path of one of its keys."""
        return ".".join(filter(None, (self.path, *parts)))

    @property
    def class_name(self) -> str:
        """The connector's name in the configuration."""
        return str(self.config.get("kv_connector", ""))

    @property
    def is_ours(self) -> bool:
        """Whether our class is what runs, by either way in."""
        return self.class_name == OURS or (self.class_name == UPSTREAMS and self.replaced)

    @property
    def replaced(self) -> bool:
        """Whether our class stands under the name of vLLM's."""
        return self.engine.environ.get("MORIIO_OBSERVED") == "1"

    @property
    def extra(self) -> Mapping[str, Any]:
        """Its ``kv_connector_extra_config``; empty where that is no mapping."""
        extra = self.config.get(EXTRA)
        return extra if isinstance(extra, Mapping) else {}

    @property
    def observed(self) -> Mapping[str, Any]:
        """Our settings in it; empty where there are none."""
        observed = self.extra.get("observed")
        return observed if isinstance(observed, Mapping) else {}

    @property
    def settings(self) -> Settings | None:
        """Our settings in force; None where they are refused."""
        try:
            return of_connector(self.extra, self.engine.environ)
        except SettingsError:
            return None

    @property
    def role(self) -> str:
        """Its ``kv_role``."""
        return str(self.config.get("kv_role") or self.engine.transfer.get("kv_role") or "")

    @property
    def reads(self) -> bool:
        """Whether it is on the side that reads, as upstream understands its configuration."""
        return self.read_mode and self.role == "kv_consumer"

    @property
    def sends(self) -> bool:
        """Whether it is on the side that is read from."""
        return self.read_mode and self.role in ("kv_producer", "kv_both")

    @property
    def read_mode(self) -> bool:
        """Whether upstream takes it as READ: only ``true`` and ``1`` in any form are."""
        return str(self.extra.get("read_mode", "false")).lower().strip() in ("true", "1")

    def seconds(self, key: str) -> float | None:
        """A deadline, its default where it is not given; None where it is no number."""
        return number(self.extra.get(key, DEADLINES[key]))

    def port(self, key: str) -> int | None:
        """A port, its default where it has one and is not given; None where it is no number."""
        value = number(self.extra.get(key) or PORTS.get(key))
        return None if value is None or value != int(value) else int(value)

    @property
    def host(self) -> str:
        """The address of its host; empty where nothing tells."""
        host, proxy = (str(self.extra.get(key) or "") for key in ("host_ip", "proxy_ip"))
        # A router on the loopback address is on the engine's own host.
        return host or (proxy if proxy in ("localhost", "::1") or proxy[:4] == "127." else "")


def graph_mode_named(given: object) -> str:
    """A CUDA graph mode by its name; those of a single kind vLLM takes by number too."""
    if type(given) is int and 0 <= given < len(NUMBERED_GRAPH_MODES):
        return NUMBERED_GRAPH_MODES[given]
    return str(given).upper()


def number(value: object) -> float | None:
    """A value as upstream's ``float()`` takes it, if it is a finite number; else None."""
    if not isinstance(value, str | int | float):
        return None
    try:
        result = float(value)
    except (ValueError, OverflowError):
        return None
    return result if abs(result) < float("inf") else None


def _moriio(root: Connector) -> Iterator[Connector]:
    """The MoRIIO connectors that a connector is, or holds."""
    waiting = [root]
    while waiting:
        connector = waiting.pop(0)
        if connector.class_name == "MultiConnector":
            children = connector.extra.get("connectors")
            waiting += [
                Connector(connector.engine, child, connector.key(f"{EXTRA}.connectors[{index}]"))
                for index, child in enumerate(children if isinstance(children, list) else ())
                if isinstance(child, Mapping)
            ]
        elif "moriio" in connector.class_name.lower():
            yield connector
