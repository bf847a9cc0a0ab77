"""Deadlines that undo each other."""

from __future__ import annotations

from typing import Any

import pytest

from moriio_observed.doctor.findings import Severity
from tests.unit.doctor.patients import bare, config, engine, matters, only, told

LEASE = "lease-shorter-than-reads"


def decode(**extra: Any) -> dict[str, Any]:
    return config(**{"recv_abort_timeout": 120, **extra})


def test_a_lease_that_ends_before_the_reads_may_is_told() -> None:
    found = only(LEASE, told(engine(decode()), engine(config("kv_producer", defer_timeout=90))))
    assert found.severity is Severity.WARNING
    assert "after 90 s, the decode side may read them for 120 s" in found.what
    assert "(prefill engine)" in found.where[0].key


def test_a_lease_that_outlasts_them_is_not() -> None:
    assert matters(engine(decode()), engine(config("kv_producer", defer_timeout=150))) == set()


def test_vllms_defaults_are_a_note() -> None:
    defaults = config()
    del defaults["kv_connector_extra_config"]["recv_abort_timeout"]
    found = only(LEASE, told(engine(defaults)))
    assert found.severity is Severity.NOTE
    assert "vLLM's defaults" in found.why
    assert "60 (by default)" in str(found.where[0])
    assert "was not given" in found.why


def test_with_a_guard_and_our_connector_on_both_sides_it_is_a_note() -> None:
    guarded = decode(observed={"guard": "fail"})
    prefill = config("kv_producer", defer_timeout=90)
    covered = only(LEASE, told(engine(guarded), engine(prefill)))
    assert covered.severity is Severity.NOTE
    assert "it is not trusted" in covered.why
    # A bare prefill engine tells no lease.
    assert LEASE in matters(engine(guarded), engine(bare("kv_producer", defer_timeout=90)))


def test_up_to_0_30_the_limit_is_the_variables() -> None:
    old = engine(decode(), version="0.30.0", VLLM_MORIIO_TRANSFER_TIMEOUT_S="40")
    findings = told(old)
    assert LEASE not in {found.name for found in findings}
    ignored = only("ignored-key", findings)
    assert "passes over recv_abort_timeout" in ignored.what
    assert "VLLM_MORIIO_TRANSFER_TIMEOUT_S" in ignored.do


def test_with_a_variable_in_place_of_the_key_it_is_no_default_any_more() -> None:
    old = engine(decode(), version="0.30.0", VLLM_MORIIO_TRANSFER_TIMEOUT_S="300")
    assert LEASE in matters(old)


def test_0_27_never_gives_up_a_read() -> None:
    names = matters(
        engine(config(proxy_ip="10.0.0.1"), version="0.27.0", VLLM_MORIIO_TRANSFER_TIMEOUT_S="40")
    )
    assert LEASE not in names
    assert {"ignored-key"} <= names
    ignored = only("ignored-key", told(engine(config(), version="0.27.0")))
    assert ignored.do == "Upgrade."


def test_from_0_31_on_the_variable_is_deprecated_and_overruled() -> None:
    found = only("deprecated-variable", told(engine(decode(), VLLM_MORIIO_TRANSFER_TIMEOUT_S="40")))
    assert "overruled" in found.what


@pytest.mark.parametrize("text", ["soon", "12.5", ""])
def test_up_to_0_30_the_variable_must_be_whole_seconds(text: str) -> None:
    names = matters(engine(config(), version="0.30.0", VLLM_MORIIO_TRANSFER_TIMEOUT_S=text))
    plain = config()
    del plain["kv_connector_extra_config"]["recv_abort_timeout"]
    assert "bad-value" in names | matters(
        engine(plain, version="0.30.0", VLLM_MORIIO_TRANSFER_TIMEOUT_S=text)
    )


def test_a_barrier_that_outlasts_the_abort_limit_is_told() -> None:
    assert "barrier-outlasts-reads" in matters(engine(config(transfer_timeout=50)))
    assert "barrier-outlasts-reads" not in matters(engine(config(transfer_timeout=49)))


def test_a_prefill_engine_alone_is_measured_by_its_own_values() -> None:
    alone = config("kv_producer", recv_abort_timeout=120, defer_timeout=90)
    assert LEASE in matters(engine(alone))


def test_write_mode_has_no_lease() -> None:
    assert LEASE not in matters(engine(decode(read_mode=False)))
