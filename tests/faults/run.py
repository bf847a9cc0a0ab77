"""Plays faults on real pairs, mode after mode, and gives their rows as they come."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from moriio_observed.demo.pair import Fleet
from tests.faults.modes import (
    BARE,
    INSTALLED,
    MODES,
    decode_settings,
    prefill_settings,
    short_settings,
)
from tests.faults.rows import Fault
from tests.faults.scene import Scene
from tests.faults.servers import Servers
from tests.faults.verdict import Row, judge


def servers_for(fleet: Fleet, faults: Sequence[Fault], vllm: str = INSTALLED) -> Servers:
    """Start the prefill engines that these faults need, without waiting for them."""
    short = any(fault.short_lease for fault in faults)
    return Servers(fleet, vllm, prefill_settings(vllm), short_settings(vllm) if short else None)


def play_all(
    servers: Servers,
    faults: Sequence[Fault],
    vllm: str = INSTALLED,
    modes: Sequence[str] = MODES,
) -> Iterator[Row]:
    """Play each fault in each mode on one version.

    Args:
        servers: That version's.
        faults: In this order; neighbours that need the same decode engine share it.
        vllm: The version.
        modes: In this order.
    """
    plays = [(mode, fault) for mode in modes for fault in faults]
    needed = [decode_settings(mode, vllm, fault.decode) for mode, fault in plays]
    for place, (mode, fault) in enumerate(plays):
        servers.decode_as(needed[place], prefill=not fault.revives_prefill)
        others = (settings for settings in needed[place:] if settings != needed[place])
        if following := next(others, None):
            servers.boot_ahead(following)
        yield play(servers, fault, vllm, mode)


def play(servers: Servers, fault: Fault, vllm: str, mode: str) -> Row:
    """Play one fault on a decode engine of its mode."""
    scene = Scene(fault.name, servers)
    asked = fault.play(scene)
    return judge(fault.name, vllm, mode, asked, scene.settle(fault.lingers_s))


def wrong_when_bare(rows: Sequence[Row], faults: Sequence[Fault]) -> list[Fault]:
    """The faults that bare upstream answered wrong."""
    wrong = {row.fault for row in rows if row.mode == BARE and row.wrong_200}
    return [fault for fault in faults if fault.name in wrong]
