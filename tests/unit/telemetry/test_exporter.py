"""The endpoint of a rank's own, by real sockets on the loopback address."""

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import Metric

from moriio_observed.config import Exporter, Settings
from moriio_observed.demo import web
from moriio_observed.demo.ports import HOST, free_ports
from moriio_observed.telemetry import exporter
from moriio_observed.telemetry.aggregate import Aggregate
from moriio_observed.telemetry.exporter import OwnEndpoint
from moriio_observed.telemetry.exposition import OF_A_RANK, Exposition
from moriio_observed.telemetry.page import Page
from moriio_observed.telemetry.readings import Readings
from moriio_observed.telemetry.scrape_server import (
    MOST_CLIENTS,
    PAUSE_S,
    THREAD,
    ScrapeServer,
)

WAIT_S = 30.0
GetEndpoint = Callable[..., OwnEndpoint]

HAS_IPV6 = pytest.mark.skipif(
    not Path("/proc/net/if_inet6").exists(), reason="this machine has no IPv6"
)


def some_page() -> Page:
    ours = Aggregate(source="rank 0")
    waits = ours.histogram("barrier_wait_seconds", site="step")
    waits.observe(0.3)
    waits.exemplify(0.3, 10.0, 1, 2)
    exposition = Exposition(Settings())
    readings = Readings([ours], exposition, static={}, scopes=OF_A_RANK, layers=4, tp_ranks=[0])
    return Page(readings, {"model_name": "m", "engine": "0"})


@pytest.fixture
def endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GetEndpoint]:
    """Start an endpoint with these settings: `endpoint(host=..., port=...)`."""
    # Whoever is cut off here shall not owe it to this.
    monkeypatch.setattr(exporter, "CLIENT_TIMEOUT_S", 10 * WAIT_S)
    started = []

    def start(
        page: Any = None, rank: int = 0, labels: dict[str, str] | None = None, **settings: Any
    ) -> OwnEndpoint:
        given = Exporter(**{"enabled": True, "discovery_dir": str(tmp_path), **settings})
        made = OwnEndpoint(page or some_page(), given, rank=rank, target_labels=labels)
        made.start()
        started.append(made)
        return made

    yield start
    for each in started:
        each.shutdown()


def targets(folder: Path) -> list[str]:
    return [json.loads(path.read_text())[0]["targets"][0] for path in folder.glob("*.json")]


def scrape(address: str | None) -> str:
    return web.get(f"http://{address}/metrics", WAIT_S)


def port_of(endpoint: OwnEndpoint) -> int:
    return int(str(endpoint.address).rpartition(":")[2])


def connect(endpoint: OwnEndpoint) -> socket.socket:
    return socket.create_connection((HOST, port_of(endpoint)), WAIT_S)


def serving_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == THREAD]


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]


# --- where it is -----------------------------------------------------------------------------


def test_it_serves_on_the_loopback_address_and_a_free_port_unless_told_otherwise(
    endpoint: GetEndpoint,
) -> None:
    running = endpoint()
    assert str(running.address).startswith(f"{HOST}:")
    assert "moriio_barrier_wait_seconds_count" in scrape(running.address)


def test_its_address_is_in_the_log_and_in_the_file_with_the_labels_given(
    endpoint: GetEndpoint, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="vllm.moriio_observed"):
        address = endpoint(labels={"moriio_role": "kv_consumer"}).address
    [path] = tmp_path.iterdir()
    assert json.loads(path.read_text()) == [
        {"targets": [address], "labels": {"moriio_role": "kv_consumer"}}
    ]
    assert f"http://{address}/metrics" in caplog.text
    assert str(path) in caplog.text


def test_every_rank_has_an_address_of_its_own(endpoint: GetEndpoint, tmp_path: Path) -> None:
    addresses = [endpoint(rank=rank).address for rank in range(3)]
    assert len(set(addresses)) == 3
    assert sorted(targets(tmp_path)) == sorted(map(str, addresses))


def test_with_a_fixed_port_rank_n_listens_on_the_nth_above(endpoint: GetEndpoint) -> None:
    port = next(free_ports())
    addresses = [endpoint(port=port, rank=rank).address for rank in range(2)]
    assert addresses == [f"{HOST}:{port}", f"{HOST}:{port + 1}"]


def test_of_a_name_with_both_the_ipv4_address_is_taken(
    endpoint: GetEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = [
        (family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", address)
        for family, address in (
            (socket.AF_INET6, ("::1", 0, 0, 0)),
            (socket.AF_INET, (HOST, 0)),
        )
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both)
    assert str(endpoint(host="localhost").address).startswith(f"{HOST}:")


@HAS_IPV6
def test_an_ipv6_address_is_served_and_shown_in_brackets(
    endpoint: GetEndpoint, tmp_path: Path
) -> None:
    running = endpoint(host="::1")
    assert targets(tmp_path) == [f"[::1]:{port_of(running)}"]
    assert scrape(running.address)


@pytest.mark.parametrize("host", ["0.0.0.0", pytest.param("::", marks=HAS_IPV6)])  # noqa: S104
def test_where_it_listens_on_all_addresses_the_file_names_one_that_answers(
    host: str, endpoint: GetEndpoint, tmp_path: Path
) -> None:
    running = endpoint(host=host)
    [shown] = targets(tmp_path)
    assert host not in shown.strip("[]").split("]:")
    assert scrape(shown)
    assert scrape(f"{HOST}:{port_of(running)}")


# --- what it says ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("accept", "kind", "has_exemplars"),
    [
        ("application/openmetrics-text;version=1.0.0", "application/openmetrics-text", True),
        ("text/plain;version=0.0.4", "text/plain", False),
        ("*/*", "text/plain", False),
    ],
)
def test_the_client_chooses_the_format_and_exemplars_are_in_openmetrics_only(
    accept: str, kind: str, has_exemplars: bool, endpoint: GetEndpoint
) -> None:
    url = f"http://{endpoint().address}/metrics"
    request = urllib.request.Request(url, headers={"Accept": accept})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=WAIT_S) as answer:
        assert answer.headers["Content-Type"].startswith(kind)
        text = answer.read().decode()
    assert ("trace_id" in text) is has_exemplars


def test_a_client_may_ask_for_some_names_only(endpoint: GetEndpoint) -> None:
    url = f"http://{endpoint().address}/metrics?name[]=moriio_reads_posted_total"
    lines = web.get(url, WAIT_S).splitlines()
    assert [line for line in lines if not line.startswith("#")] == [
        'moriio_reads_posted_total{engine="0",model_name="m"} 0.0'
    ]


# --- what goes wrong at the start ------------------------------------------------------------


def test_a_port_in_use_is_one_clear_error_and_nothing_else(
    endpoint: GetEndpoint, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = endpoint()
    port = port_of(first)
    second = endpoint(port=port)
    assert second.address is None
    [error] = errors(caplog)
    assert f"host {HOST}, port {port}: " in error
    assert "Address already in use" in error
    assert "exporter.host and exporter.port" in error
    assert (first.take_errors(), second.take_errors(), second.take_errors()) == (0, 1, 0)
    second.shutdown()
    assert scrape(first.address)
    assert targets(tmp_path) == [first.address]


def test_a_rank_above_the_highest_port_is_an_error_that_says_so(
    endpoint: GetEndpoint, caplog: pytest.LogCaptureFixture
) -> None:
    assert endpoint(port=65535, rank=1).address is None
    [error] = errors(caplog)
    assert "port 65536: there is no port above 65535" in error


def test_a_host_nobody_knows_is_an_error(
    endpoint: GetEndpoint, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: Any, **__: Any) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert endpoint(host="nowhere").address is None
    assert "host nowhere, port 0: " in errors(caplog)[0]


def test_without_its_file_it_serves_all_the_same(
    endpoint: GetEndpoint, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    running = endpoint(discovery_dir=str(tmp_path / "file"))
    assert scrape(running.address)
    [error] = errors(caplog)
    assert str(tmp_path / "file") in error
    assert "exporter.discovery_dir" in error
    assert running.take_errors() == 1


# --- what clients do -------------------------------------------------------------------------


def test_a_client_that_says_nothing_holds_up_neither_others_nor_the_end(
    endpoint: GetEndpoint,
) -> None:
    running = endpoint()
    with connect(running) as silent:
        assert scrape(running.address)
        running.shutdown()
        assert silent.recv(1) == b""


class Large:
    """A page that fits into no buffer on the way to a client."""

    def collect(self) -> Iterator[Metric]:
        yield Metric("moriio_x", "x" * 20_000_000, "gauge")


def test_a_silent_client_is_cut_off_in_time(
    endpoint: GetEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter, "CLIENT_TIMEOUT_S", 0.001)
    with connect(endpoint()) as silent:
        assert silent.recv(1) == b""


def test_a_client_that_does_not_take_its_answer_holds_up_neither_others_nor_the_end(
    endpoint: GetEndpoint,
) -> None:
    running = endpoint(Large())
    with connect(running) as stuck:
        stuck.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert stuck.recv(4) == b"HTTP"
        assert "moriio_x" in scrape(running.address)
        running.shutdown()
        assert serving_threads() == []


def test_one_client_too_many_and_the_oldest_is_cut_off(endpoint: GetEndpoint) -> None:
    running = endpoint()
    silent = [connect(running) for _ in range(MOST_CLIENTS)]
    try:
        assert scrape(running.address)
        assert silent[0].recv(1) == b""
        silent[-1].sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert silent[-1].recv(15) == b"HTTP/1.0 200 OK"
    finally:
        for each in silent:
            each.close()


class Hanging:
    """A page whose first scrape hangs until it is released."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.release = threading.Event()

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        if not self.asked.is_set():
            self.asked.set()
            self.release.wait(WAIT_S)
        yield Metric("moriio_x", "X.", "gauge")


def test_a_scrape_that_hangs_holds_up_neither_others_nor_the_end(endpoint: GetEndpoint) -> None:
    page = Hanging()
    running = endpoint(page)
    with connect(running) as hanging:
        hanging.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert page.asked.wait(WAIT_S)
        assert "moriio_x" in scrape(running.address)
        running.shutdown()
        assert not page.release.is_set()
        page.release.set()


class Broken:
    """A page that cannot be made, or whose client has gone when it is."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        raise self.error


def get_no_answer(endpoint: OwnEndpoint) -> None:
    with connect(endpoint) as client:
        client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert client.recv(1) == b""


def test_a_page_that_cannot_be_made_is_counted_and_said_once(
    endpoint: GetEndpoint, caplog: pytest.LogCaptureFixture
) -> None:
    running = endpoint(Broken(RuntimeError("broken page")))
    get_no_answer(running)
    get_no_answer(running)
    assert running.take_errors() == 2
    assert errors(caplog) == ["moriio_observed could not answer a scrape: broken page"]


@pytest.mark.parametrize("error", [ConnectionResetError(), BrokenPipeError(), TimeoutError()])
def test_a_client_that_goes_away_is_no_error_of_ours(
    error: OSError, endpoint: GetEndpoint, caplog: pytest.LogCaptureFixture
) -> None:
    running = endpoint(Broken(error))
    get_no_answer(running)
    assert running.take_errors() == 0
    assert errors(caplog) == []


class Pauses:
    """Records the pauses of a server that cannot accept a client."""

    def __init__(self) -> None:
        self.taken: list[float] = []

    def wait(self, seconds: float) -> None:
        self.taken.append(seconds)


def test_when_no_client_can_be_accepted_it_tries_again_after_a_pause() -> None:
    server = ScrapeServer(HOST, 0, BaseHTTPRequestHandler, lambda _: None)
    pauses = server._stopped = Pauses()
    # As with too many open files.
    server.server_close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        server.get_request()
    assert pauses.taken == [PAUSE_S]


# --- its end ---------------------------------------------------------------------------------


def test_shutdown_frees_the_port_and_removes_file_and_thread(
    endpoint: GetEndpoint, tmp_path: Path
) -> None:
    port = next(free_ports())
    running = endpoint(port=port)
    assert len(serving_threads()) == 1
    running.shutdown()
    running.shutdown()
    with socket.socket() as next_one:
        next_one.bind((HOST, port))
    assert list(tmp_path.iterdir()) == []
    assert serving_threads() == []
    assert running.address is None


def test_shutdown_before_the_start_does_nothing() -> None:
    OwnEndpoint(some_page(), Exporter()).shutdown()


def test_started_twice_it_is_one(endpoint: GetEndpoint, tmp_path: Path) -> None:
    running = endpoint()
    address = running.address
    running.start()
    assert running.address == address
    assert targets(tmp_path) == [address]
    assert len(serving_threads()) == 1


def test_a_port_is_free_for_the_next_start_at_once(endpoint: GetEndpoint) -> None:
    port = next(free_ports())
    for _ in range(2):
        running = endpoint(port=port)
        assert scrape(running.address)
        running.shutdown()


# --- other processes -------------------------------------------------------------------------


def test_a_forked_child_cannot_end_its_parents_endpoint(
    endpoint: GetEndpoint, tmp_path: Path
) -> None:
    running = endpoint()
    ready, say_ready = os.pipe()
    leave, say_leave = os.pipe()
    # As if another thread were just counting an error.
    running._lock.acquire()
    child = os.fork()
    if child == 0:
        os.close(say_leave)
        try:
            running.take_errors()
            running.shutdown()
            os.write(say_ready, b"1" if running.address is None else b"0")
            os.read(leave, 1)
        finally:
            os._exit(0)
    running._lock.release()
    try:
        assert os.read(ready, 1) == b"1"
        assert scrape(running.address)
        assert targets(tmp_path) == [running.address]
    finally:
        os.close(say_leave)
        os.waitpid(child, 0)
        for each in (ready, say_ready, leave):
            os.close(each)


def test_a_forked_child_may_serve_by_itself(endpoint: GetEndpoint, tmp_path: Path) -> None:
    running = endpoint()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            running.start()
            os.write(write, scrape(running.address)[:6].encode())
            running.shutdown()
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as told:
        assert told.read() == "# HELP"
    os.waitpid(child, 0)
    assert targets(tmp_path) == [running.address]


KILLED = """
import os, sys
sys.path[:0] = [sys.argv[1]]
import test_exporter as t
running = t.OwnEndpoint(t.some_page(), t.Exporter(discovery_dir=sys.argv[2]))
running.start()
address = running.address
if os.fork() == 0:
    print(address, flush=True)
os.read(0, 1)
"""


def test_after_a_kill_the_next_start_has_the_port_and_removes_the_file_though_a_child_lives(
    endpoint: GetEndpoint, tmp_path: Path
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(Path(__file__).parent), str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as killed:
        assert killed.stdout is not None
        address = killed.stdout.readline().strip()
        assert targets(tmp_path) == [address]
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert targets(tmp_path) == [address]
        port = int(address.rpartition(":")[2])
        assert endpoint(port=port).address == address
        assert len(list(tmp_path.iterdir())) == 1
