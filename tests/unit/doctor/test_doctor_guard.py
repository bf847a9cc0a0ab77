"""Guards that vLLM would not honour, and promises it does not keep."""

from __future__ import annotations

from typing import Any

import pytest

from moriio_observed.doctor.findings import Severity
from tests.unit.doctor.patients import bare, config, engine, matters, only, told


def guarded(guard: str, policy: str | None, **extra: Any) -> dict[str, Any]:
    whole = config(observed={"guard": guard}, **extra)
    return whole if policy is None else whole | {"kv_load_failure_policy": policy}


@pytest.mark.parametrize(
    ("guard", "policy", "refused"),
    [
        ("recompute", None, True),
        ("recompute", "fail", True),
        ("recompute", "recompute", False),
        ("fail", None, False),
        ("fail", "recompute", True),
    ],
)
def test_a_guard_must_equal_vllms_policy(guard: str, policy: str | None, refused: bool) -> None:
    assert ("guard-refused" in matters(engine(guarded(guard, policy)))) is refused


def test_context_parallelism_refuses_a_guard() -> None:
    options = {"decode-context-parallel-size": "2", "port": "8000"}
    assert "guard-refused" in matters(engine(guarded("fail", "fail"), options=options))


def test_request_ids_as_clients_send_them_refuse_a_guard() -> None:
    unsafe = engine(guarded("fail", "fail"), VLLM_DISABLE_REQUEST_ID_RANDOMIZATION="1")
    assert "guard-refused" in matters(unsafe)


def test_in_multi_connector_the_parents_policy_must_be_the_same() -> None:
    parent = {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_consumer",
        "kv_connector_extra_config": {"connectors": [guarded("recompute", "recompute")]},
    }
    assert "guard-refused" in matters(engine(parent))
    assert "guard-refused" not in matters(engine(parent | {"kv_load_failure_policy": "recompute"}))


def test_a_guard_on_a_prefill_engine_means_nothing() -> None:
    prefill = config("kv_producer", observed={"guard": "fail"}, defer_timeout=200)
    assert only("guard-without-reads", told(engine(prefill))).severity is Severity.NOTE


def test_vllms_recompute_without_a_guard_is_told_where_it_is_wrong() -> None:
    policy = {"kv_load_failure_policy": "recompute"}
    assert "recompute-not-kept" in matters(engine(bare() | policy))
    synchronous = {"async-scheduling": "false", "port": "8000"}
    assert "recompute-not-kept" not in matters(engine(bare() | policy, options=synchronous))
    old = engine(bare() | policy, options=synchronous, version="0.30.0")
    assert "recompute-not-kept" in matters(old)
    assert "recompute-not-kept" not in matters(engine(guarded("recompute", "recompute")))


def test_that_there_is_no_guard_is_a_note() -> None:
    found = only("no-guard", told(engine(config())))
    assert found.severity is Severity.NOTE
    assert "is told and answered" in found.what
    assert "told" not in only("no-guard", told(engine(bare()))).what
