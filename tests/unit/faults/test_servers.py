from dataclasses import dataclass, field
from itertools import count

import pytest

from moriio_observed.demo.errors import DemoError
from moriio_observed.demo.server import Ports, ServerSettings
from tests.faults.servers import Servers

PREFILL, SHORT, DECODE, OTHER = (ServerSettings(flags=(f"--{n}",)) for n in range(4))


@dataclass(eq=False)
class FakeServer:
    name: str
    settings: ServerSettings
    ports: Ports
    running: bool = True
    killed: bool = False

    def kill(self):
        self.running, self.killed = False, True


@dataclass
class FakeFleet:
    """Starts servers that run until they are stopped or killed."""

    started: list = field(default_factory=list)
    waited: list = field(default_factory=list)
    faults: None = None
    free: count = field(default_factory=lambda: count(20000))

    def start(self, name, settings, ports, core):
        server = FakeServer(name, settings, ports or Ports.take(self.free))
        self.started.append(server)
        return server

    def wait_ready(self, *servers):
        self.waited.append(servers)

    def stop(self, *servers):
        for server in servers:
            server.running = False


@pytest.fixture
def fleet():
    return FakeFleet()


@pytest.fixture
def servers(fleet):
    servers = Servers(fleet, "x", PREFILL, None)
    servers.decode_as(DECODE)
    return servers


def test_the_first_decode_engine_is_waited_for_together_with_the_prefill_engines(fleet):
    Servers(fleet, "x", PREFILL, SHORT).decode_as(DECODE)
    assert fleet.waited == [tuple(fleet.started)]
    assert [server.settings for server in fleet.started] == [PREFILL, SHORT, DECODE]


def test_a_decode_engine_with_the_same_settings_stays(fleet, servers):
    servers.decode_as(DECODE)
    assert len(fleet.started) == 2


def test_a_decode_engine_with_other_settings_is_stopped_and_started_elsewhere(fleet, servers):
    before = servers.decode
    servers.decode_as(OTHER)
    assert not before.running
    assert servers.decode.settings == OTHER
    assert servers.decode.ports != before.ports


def test_a_decode_engine_booted_ahead_is_taken_when_it_is_needed_and_waited_for(fleet, servers):
    servers.boot_ahead(OTHER)
    servers.boot_ahead(OTHER)
    ahead = fleet.started[-1]
    assert servers.decode is not ahead
    servers.decode_as(OTHER)
    assert servers.decode is ahead
    assert fleet.waited[-1] == (ahead,)
    assert len(fleet.started) == 3


def test_a_decode_engine_booted_ahead_and_not_needed_is_stopped(fleet, servers):
    servers.boot_ahead(OTHER)
    unneeded = fleet.started[-1]
    servers.boot_ahead(SHORT)
    assert not unneeded.running


def test_a_decode_engine_that_died_is_started_anew(servers):
    dead = servers.decode
    dead.running = False
    servers.decode_as(DECODE)
    assert servers.decode is not dead


def test_a_killed_prefill_engine_comes_back_on_its_ports_with_the_next_decode_engine(servers):
    killed = servers.prefill
    servers.kill_prefill()
    assert killed.killed
    servers.decode_as(DECODE)
    assert servers.prefill.running
    assert servers.prefill.ports == killed.ports


def test_a_fault_can_find_the_prefill_engine_as_dead_as_it_was_left(servers):
    servers.kill_prefill()
    servers.decode_as(DECODE, prefill=False)
    assert not servers.prefill.running


@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_a_restarted_engine_was_killed_and_has_the_ports_and_settings_it_had(servers, side):
    killed = getattr(servers, side)
    getattr(servers, f"restart_{side}")()
    again = getattr(servers, side)
    assert killed.killed
    assert (again.ports, again.settings) == (killed.ports, killed.settings)
    assert again.running


def test_stopping_ends_every_server(fleet, servers):
    servers.boot_ahead(OTHER)
    servers.stop()
    assert not any(server.running for server in fleet.started)


def test_no_boot_writes_over_the_log_of_another(fleet, servers):
    servers.restart_prefill()
    servers.decode_as(OTHER)
    names = [server.name for server in fleet.started]
    assert len(set(names)) == len(names)


def test_without_a_short_lease_nobody_can_be_asked_for_one(servers):
    with pytest.raises(DemoError, match="short lease"):
        _ = servers.short_client
