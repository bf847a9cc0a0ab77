"""Engines for the doctor to look at, and what it says of them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from moriio_observed.doctor.checks import of_engines
from moriio_observed.doctor.engines import Engine, Model
from moriio_observed.doctor.findings import Finding
from moriio_observed.doctor.incidents import Incident, group
from moriio_observed.doctor.inputs import named
from moriio_observed.doctor.log_lines import events

CASES = Path(__file__).parents[2] / "cases"
ROOT = Path(__file__).parents[3]


def config(role: str = "kv_consumer", /, **extra: Any) -> dict[str, Any]:
    """A configuration in READ mode that nothing is wrong with, but for what is given."""
    wanted = {
        "read_mode": True,
        "host_ip": "10.0.0.7" if role == "kv_consumer" else "10.0.0.8",
        "http_port": 8000,
        "recv_abort_timeout": 50,
    }
    return {
        "kv_connector": "ObservedMoRIIOConnector",
        "kv_connector_module_path": "moriio_observed.connector",
        "kv_role": role,
        "kv_connector_extra_config": {**wanted, **extra},
    }


def bare(role: str = "kv_consumer", /, **extra: Any) -> dict[str, Any]:
    """The same with vLLM's own connector."""
    return {
        **config(role, **extra),
        "kv_connector": "MoRIIOConnector",
        "kv_connector_module_path": None,
    }


def engine(
    transfer: Mapping[str, Any],
    *,
    version: str | None = "0.32.0",
    graphs: str | None = None,
    options: Mapping[str, str | None] | None = None,
    model: Model | None = None,
    **environ: str,
) -> Engine:
    """An engine with a configuration."""
    return Engine(
        "",
        {key: value for key, value in transfer.items() if value is not None},
        compilation={} if graphs is None else {"cudagraph_mode": graphs},
        options=options or {},
        environ=environ,
        version=version,
        model=model or Model(),
        whole_command=options is not None,
    )


def told(*engines: Engine) -> list[Finding]:
    """What the doctor says of engines."""
    return list(of_engines(named(engines)))


def matters(*engines: Engine) -> set[str]:
    """The names of the findings that matter."""
    return {finding.name for finding in told(*engines) if finding.severity.matters}


def only(name: str, findings: Sequence[Finding]) -> Finding:
    """The one finding of a name."""
    [found] = [finding for finding in findings if finding.name == name]
    return found


def incidents(text: str) -> list[Incident]:
    """The incidents in a log."""
    return group(events(text.splitlines()))


class Quiet(BaseHTTPRequestHandler):
    """Answers without a word on standard error."""

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def answering(handler: type[Quiet]) -> Iterator[str]:
    """The address of a server that answers so, while in it."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def serving(**pages: str | tuple[int, str]) -> Iterator[str]:
    """A server whose pages are these, by path without the slash; all else is an empty 404."""

    class Handler(Quiet):
        def do_GET(self) -> None:
            page = pages.get(self.path.partition("?")[0].strip("/").replace("/", "_"), (404, ""))
            status, text = (200, page) if isinstance(page, str) else page
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

    with answering(Handler) as url:
        yield url


def case(name: str) -> Any:
    """What a case file holds."""
    return json.loads((CASES / name).read_text())
