"""Ports on one host, and two sides that must fit each other."""

from __future__ import annotations

from typing import Any

import pytest

from moriio_observed.doctor.engines import Model
from moriio_observed.doctor.findings import Finding, Severity
from tests.unit.doctor.patients import config, engine, matters, only, told

CONFLICT = "ports-in-conflict"


def decode(**extra: Any) -> dict[str, Any]:
    return config(**extra)


def prefill(**extra: Any) -> dict[str, Any]:
    return config("kv_producer", **{"defer_timeout": 200, **extra})


def test_ranks_of_two_engines_that_reach_into_each_other_are_critical() -> None:
    findings = told(
        engine(decode(host_ip="10.0.0.7", handshake_port=6301), options={"port": "8000"}),
        engine(
            prefill(host_ip="10.0.0.7", handshake_port=6300, notify_port=62005, http_port=8001),
            options={"tensor-parallel-size": "2", "port": "8001"},
        ),
    )
    found = only(CONFLICT, findings)
    assert found.severity is Severity.CRITICAL
    assert {place.value for place in found.where} == {"6300 to 6301", "6301"}


def test_on_two_hosts_they_do_not_meet() -> None:
    assert matters(engine(decode()), engine(prefill())) == set()


def test_where_nobody_says_which_host_it_may_be_one_and_is_a_note() -> None:
    found = told(engine(decode(host_ip="")), engine(prefill(host_ip="")))
    conflicts = [each for each in found if each.name == CONFLICT]
    assert {each.severity for each in conflicts} == {Severity.NOTE}
    assert {each.what for each in conflicts} == {"two want the same ports, if they run on one host"}
    assert {each.subject for each in conflicts} == {"decode engine, prefill engine"}


def test_a_router_on_the_loopback_address_says_it_is_one_host() -> None:
    local = {"host_ip": "", "proxy_ip": "127.0.0.1"}
    found = told(engine(decode(**local)), engine(prefill(**local)))
    assert {each.severity for each in found if each.name == CONFLICT} == {Severity.CRITICAL}


def test_one_engines_own_ports_must_not_meet() -> None:
    alone = told(engine(decode(host_ip="", handshake_port=61000, notify_port=61000)))
    assert only(CONFLICT, alone).what == "two want the same ports of one host"
    assert only(CONFLICT, alone).subject == "decode engine"
    wide = engine(
        decode(handshake_port=61000, notify_port=61004),
        options={"tensor-parallel-size": "8", "port": "8000"},
    )
    assert CONFLICT in matters(wide)


def test_our_exporters_ports_count() -> None:
    exporter = {"exporter": {"enabled": True, "port": 6301}}
    assert CONFLICT in matters(engine(decode(observed=exporter)))


def test_tensor_and_data_parallel_ranks_on_one_host_share_ports_upstream() -> None:
    options = {"tensor-parallel-size": "2", "data-parallel-size": "2", "port": "8000"}
    found = only("ranks-share-ports", told(engine(decode(), options=options)))
    assert "both want 6302" in found.why
    one = {**options, "data-parallel-size-local": "1"}
    assert "ranks-share-ports" not in matters(engine(decode(), options=one))


def test_a_missing_http_port_ends_the_start() -> None:
    without = decode()
    del without["kv_connector_extra_config"]["http_port"]
    assert "missing-key" in matters(engine(without))


def test_0_27_wants_the_router_too() -> None:
    findings = told(engine(decode(), version="0.27.0"))
    missing = {found.where[0].key for found in findings if found.name == "missing-key"}
    prefix = "kv_connector_extra_config"
    assert missing == {f"{prefix}.proxy_ip", f"{prefix}.proxy_ping_port"}


@pytest.mark.parametrize("port", ["http", 70000, -1, 80.5, None, [8000]])
def test_what_is_no_port_is_named(port: object) -> None:
    assert "bad-port" in matters(engine(decode(http_port=port)))


def test_no_router_to_ping_is_port_0() -> None:
    assert matters(engine(decode(proxy_ping_port=0))) == set()
    assert "bad-port" in matters(engine(decode(http_port=0)))


def test_the_router_must_be_told_the_port_the_engine_listens_on() -> None:
    options = {"port": "9000"}
    assert "wrong-http-port" in matters(engine(decode(http_port=8000), options=options))
    assert "wrong-http-port" not in matters(engine(decode(http_port=9000), options=options))
    # A configuration alone does not tell --port.
    assert "wrong-http-port" not in matters(engine(decode(http_port=9000)))


def test_one_side_in_write_is_critical() -> None:
    found = only("modes-differ", told(engine(decode()), engine(prefill(read_mode=False))))
    assert [place.value for place in found.where] == ["WRITE", "READ"]


def sizes(small: int, large: int, model: Model | None = None) -> list[Finding]:
    return told(
        engine(decode(), options={"tensor-parallel-size": str(large)}, model=model),
        engine(prefill(), options={"tensor-parallel-size": str(small)}, model=model),
    )


@pytest.mark.parametrize(
    ("small", "large", "model", "severity"),
    [
        (4, 4, None, None),
        (4, 6, Model(latent=True), Severity.CRITICAL),
        (4, 8, Model(latent=True), None),
        (4, 8, Model(kv_heads=4), None),
        (4, 8, Model(kv_heads=8), Severity.CRITICAL),
        (4, 8, None, Severity.WARNING),
    ],
    ids=["equal", "no multiple", "MLA", "few heads", "many heads", "unknown model"],
)
def test_tensor_parallel_sizes_that_vllm_refuses(
    small: int, large: int, model: Model | None, severity: Severity | None
) -> None:
    found = [each for each in sizes(small, large, model) if each.name == "uneven-tp"]
    assert [each.severity for each in found] == ([] if severity is None else [severity])


def test_either_side_may_know_the_model() -> None:
    options = {"tensor-parallel-size": "8"}
    knows = engine(prefill(), options={"tensor-parallel-size": "4"}, model=Model(kv_heads=4))
    assert "uneven-tp" not in matters(engine(decode(), options=options), knows)
