"""A real Prometheus and a real Alertmanager on free loopback ports, ended with the block."""

import json
import os
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from moriio_observed.demo import web
from moriio_observed.demo.ports import HOST, free_ports
from moriio_observed.demo.process import Process, wait_ready

PROMETHEUS, ALERTMANAGER = "prometheus", "prometheus-alertmanager"
"""What Debian calls the programs."""
WAIT_S = 60.0

T = TypeVar("T")


@contextmanager
def prometheus(
    folder: Path, configuration: Mapping[str, Any], *flags: str, **env: str
) -> Iterator[str]:
    """A Prometheus with this configuration; its data, `folder/data`, may be there already."""
    with _serving(PROMETHEUS, folder, configuration, "--storage.tsdb.path", flags, env) as url:
        yield url


@contextmanager
def alertmanager(folder: Path, configuration: Mapping[str, Any]) -> Iterator[str]:
    """An Alertmanager with this configuration, alone."""
    alone = ("--cluster.listen-address=",)
    with _serving(ALERTMANAGER, folder, configuration, "--storage.path", alone, {}) as url:
        yield url


@contextmanager
def _serving(
    program: str,
    folder: Path,
    configuration: Mapping[str, Any],
    storage: str,
    flags: tuple[str, ...],
    env: Mapping[str, str],
) -> Iterator[str]:
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / f"{program}.yml"
    # JSON is YAML.
    config.write_text(json.dumps(configuration))
    address = f"{HOST}:{next(free_ports())}"
    command = [
        program,
        f"--config.file={config}",
        f"{storage}={folder / 'data'}",
        f"--web.listen-address={address}",
        *flags,
    ]
    url = f"http://{address}"
    log = folder / f"{program}.log"
    process = Process(program, command, {**os.environ, **env}, log, f"{url}/-/ready")
    try:
        wait_ready([process], WAIT_S)
        yield url
    finally:
        process.stop()


def query(url: str, expr: str) -> list[dict[str, Any]]:
    """What a Prometheus answers to a query now: label sets with values."""
    words = urllib.parse.urlencode({"query": expr})
    result: list[dict[str, Any]] = json.loads(web.get(f"{url}/api/v1/query?{words}"))["data"][
        "result"
    ]
    return result


def eventually(ask: Callable[[], T], what: str) -> T:
    """What `ask` answers once it is something.

    Raises:
        TimeoutError: It is not in time; the message says what was waited for.
    """
    deadline = time.monotonic() + WAIT_S
    while not (answer := ask()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not after {WAIT_S:.0f} s: {what}")
        time.sleep(0.1)
    return answer
