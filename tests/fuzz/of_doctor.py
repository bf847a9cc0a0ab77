"""Ways into the doctor, and to our settings."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from io import StringIO

from rich.console import Console

from moriio_observed.config import ENVIRON_PREFIX, KEYS, SettingsError, of_connector, variable
from moriio_observed.doctor import report
from moriio_observed.doctor.checks import log, of_engines, router, scrape
from moriio_observed.doctor.checks import server as of_server
from moriio_observed.doctor.command_line import split
from moriio_observed.doctor.engines import Engine
from moriio_observed.doctor.errors import InputError
from moriio_observed.doctor.exposition import NotMetricsError, parse
from moriio_observed.doctor.findings import Finding
from moriio_observed.doctor.incidents import group
from moriio_observed.doctor.inputs import (
    Given,
    compilation_of,
    engine_of_command,
    engine_of_config,
    environ_of,
    named,
    that_matters,
)
from moriio_observed.doctor.log_lines import events
from moriio_observed.doctor.messages import MESSAGES
from moriio_observed.doctor.prometheus import Stored
from moriio_observed.doctor.server import Server
from moriio_observed.doctor.versions import CONFIG_KEYS, EXTRA_KEYS, GRAPH_MODES, KNOWN
from moriio_observed.telemetry.catalog import CATALOG
from tests.fuzz.door import NEXT, Door, case, json_of, text_of

VERSIONS = (None, "0.99", *(f"{facts}.0" for facts in KNOWN))
DECODE = {
    "kv_connector": "ObservedMoRIIOConnector",
    "kv_role": "kv_consumer",
    "kv_connector_extra_config": {"read_mode": True, "http_port": 8000},
}
JSON_WORDS = ("true", "null", "1e999", "NaN", '":', '",', "[{", "}]", "\\ud800")
PAGE = b"""\
# HELP moriio_steps_total Forward steps
# TYPE moriio_steps_total counter
moriio_steps_total{engine="0",model_name="m",reads="true",runtime_mode="FULL"} 7.0
moriio_config_info{barrier="auto",guard="report",mode="read",role="kv_consumer"} 1.0
moriio_hook_installed{hook="start_load_kv"} 0.0
moriio_barrier_wait_seconds_bucket{le="+Inf",site="layer",tp_rank="0"} 3.0
moriio_recv_abort_timeout_seconds 120.0
vllm:num_requests_waiting 3.0
"""
PAGE_WORDS = (
    *(f"moriio_{name}" for name in CATALOG),
    *("vllm:num_requests_running", "process_start_time_seconds", "# TYPE ", "# HELP "),
    *(f'{label}="' for label in ("le", "cause", "action", "tp_rank", "engine", "mode", "hook")),
    *("{", "} ", "NaN", "+Inf", "-1e308", "_bucket", "_sum", "_count", " histogram\n"),
)


def shown(findings: Iterable[Finding]) -> None:
    """Findings can be shown in both forms."""
    found = list(findings)
    assert json.loads(report.as_json(found))["findings"] is not None
    console = Console(file=StringIO(), width=80, highlight=False)
    for line in report.lines(found, notes=True):
        console.print(line)


def _examined(read: Callable[[Given], Engine], text: str) -> None:
    """An engine of every age, on both sides of a deployment."""
    engine = read(Given({}, version=VERSIONS[len(text) % len(VERSIONS)]))
    shown(of_engines(named([engine, engine])))


def _settings(brought: bytes) -> None:
    head, *environ = text_of(brought).split(NEXT)
    extra = json_of(head)
    if isinstance(extra, dict):
        of_connector(extra, dict(pair.split("=", 1) for pair in environ if "=" in pair))


def _kv_transfer_config(brought: bytes) -> None:
    text = "{" + text_of(brought)  # in front of anything else it would be a file
    _examined(lambda given: engine_of_config(text, given), text)


def _command_line(brought: bytes) -> None:
    text = text_of(brought)
    words = split(text)
    shown(router.check(words, []))
    _examined(lambda given: engine_of_command(words, given), text)


def _compilation(brought: bytes) -> None:
    graphs = compilation_of(text_of(brought))
    shown(of_engines([engine_of_config(json.dumps(DECODE), Given({}, graphs, "0.32.0"))]))


def _environ(brought: bytes) -> None:
    environ = that_matters(environ_of(text_of(brought)))
    shown(of_engines([engine_of_config(json.dumps(DECODE), Given(environ, version="0.30.0"))]))


def _log(brought: bytes) -> None:
    shown(log.check("d.log", group(events(text_of(brought).splitlines()))))


def _page(brought: bytes) -> None:
    server = Server("http://d", parse(text_of(brought)))
    shown(of_server.check(server, []))
    shown(of_server.deadlines([server, server]))
    shown(scrape.check(Stored("http://p", server.page.names, vllm=True, targets=()), [server]))


SERVE = (
    b"export A=1\nMORIIO_OBSERVED=1 vllm serve m -tp 2 -dp 2 --port 8000 -cc.cudagraph_mode=FULL"
    b" -O3 --disable-log-stats --kv-transfer-config '" + json.dumps(DECODE).encode() + b"'"
)
OURS = NEXT.encode().join(
    (
        b'{"observed": {"guard": "fail", "otlp": {"traces": true}, "exporter": {"port": 1}}}',
        b"MORIIO_OBSERVED_GUARD=fail",
        b"MORIIO_OBSERVED_WAIT_BUCKETS=0.1,2",
        b"MORIIO_OBSERVED_PORT=tcp://1:2",
    )
)
CONFIGS = tuple(
    case(f"{name}.json")
    for name in ("misspelt", "nested-multi", "read-full-and-piecewise", "string-booleans")
)
KEY_WORDS = tuple(f'"{key}": ' for key in (*CONFIG_KEYS, *EXTRA_KEYS, "observed", "connectors"))

DOORS = {
    "settings": Door(
        _settings,
        (SettingsError,),
        (OURS, *CONFIGS),
        (
            *(f'"{part}": ' for key in KEYS for part in key.split(".")),
            *(f"{NEXT}{variable(key)}=" for key in KEYS),
            *("_SERVICE_HOST=", "tcp://", ENVIRON_PREFIX, *JSON_WORDS),
        ),
    ),
    "kv-transfer-config": Door(
        _kv_transfer_config,
        (InputError,),
        tuple(config.removeprefix(b"{") for config in CONFIGS),
        (*KEY_WORDS, "MultiConnector", "kv_producer", "kv_both", *JSON_WORDS),
    ),
    "command-line": Door(
        _command_line,
        (InputError,),
        (SERVE, b"vllm-router --kv-connector moriio"),
        (
            *("--kv-transfer-config ", "--compilation-config ", "-cc.", "-cc ", "--no-", " -- "),
            *("api_server", "serve ", "export ", "${A}", "'", "\\\n", "-O", "--model=", "=", "#"),
            *(*GRAPH_MODES, *KEY_WORDS),
        ),
    ),
    "compilation-config": Door(
        _compilation,
        (InputError,),
        (b'{"cudagraph_mode": "FULL_AND_PIECEWISE"}', b"PIECEWISE"),
        ('"cudagraph_mode": ', *GRAPH_MODES, *JSON_WORDS),
    ),
    "environ": Door(
        _environ,
        (InputError,),
        (b"declare -x VLLM_PLUGINS='a,b'\nexport MORIIO_OBSERVED=2", OURS),
        (
            *(f"\n{variable(key)}=" for key in KEYS),
            *("VLLM_USE_V2_MODEL_RUNNER=", "VLLM_MORIIO_TRANSFER_TIMEOUT_S=", "declare -x "),
        ),
    ),
    "log": Door(
        _log,
        seeds=(case("decode-stall.log"), b'moriio_exposure {"request_id": "r", "layers": [1]}'),
        words=(
            *(literal for message in MESSAGES for literal in message.literals if literal.strip()),
            *("WARNING 08-12 09:20:44 [m.py:1] ", "(Worker_DP0_TP3 pid=220) ", "\x1b[31m", "\n"),
            *('"action": ', '"cause": ', '"layers": ', *JSON_WORDS),
        ),
    ),
    "metrics": Door(_page, (NotMetricsError,), (PAGE,), PAGE_WORDS),
}
