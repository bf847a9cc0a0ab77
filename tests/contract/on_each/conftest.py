"""The prefill engine of one version's run, and decode engines against it."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from moriio_observed import loopback
from moriio_observed.demo.faults import FaultFile
from moriio_observed.demo.model import write_model
from moriio_observed.demo.ports import HOST, free_ports

BUILD = Path(__file__).parents[3] / "build" / "contract"
PATIENT_S = 20
"""No healthy read is given up, however busy the machine."""
ABORT_AFTER_S = 2
"""How much later than the barrier upstream gives up itself."""

# Read when vLLM is imported, and again by the prefill engine's process.
os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_HOST_IP": HOST,
    # One for each version: they would overwrite what the others have found out of a model.
    "VLLM_CACHE_ROOT": str(BUILD / "vllm-cache" / os.environ.get("VLLM_UNDER_TEST", "installed")),
    # Up to 0.30 the abort limit comes from here, in whole seconds; decode engines set theirs.
    "VLLM_MORIIO_TRANSFER_TIMEOUT_S": "4",
    # MoRIIO takes recurrent state in this layout only.
    "VLLM_SSM_CONV_STATE_LAYOUT": "DS",
    "MORIIO_OBSERVED_LOOPBACK": "1",
    "MORIIO_OBSERVED_LOOPBACK_FAULTS": str(BUILD / f"faults-{os.getpid()}.json"),
}
loopback.activate()

from vllm.config import CUDAGraphMode  # noqa: E402

from moriio_observed.demo.server import OBSERVED, Ports, transfer_config, with_ports  # noqa: E402
from tests.contract.on_each.decode import Decode  # noqa: E402
from tests.contract.on_each.engine import Engine, take_ports  # noqa: E402
from tests.contract.on_each.prefill import Prefill  # noqa: E402


@pytest.fixture(scope="session")
def model() -> Path:
    """The tiny model's folder."""
    return write_model(BUILD / "model")


@pytest.fixture(scope="session")
def prefill(model: Path) -> Iterator[Prefill]:
    """A prefill engine in its own process."""
    with contextlib.closing(Prefill(model, take_ports())) as prefill:
        yield prefill


@pytest.fixture
def observed(record_property: Callable[[str, object], None]) -> Callable[..., None]:
    """Say what the version was seen to do: `observed(subject, …, seen)`, for the version matrix."""
    return lambda *said: record_property("observed", json.dumps(said))


@pytest.fixture
def faults() -> Iterator[FaultFile]:
    """What harms the reads of this test."""
    file = FaultFile(Path(os.environ["MORIIO_OBSERVED_LOOPBACK_FAULTS"]))
    yield file
    file.path.unlink()


def _among(ours: Mapping[str, Any], others: Sequence[str]) -> dict[str, Any]:
    """Ours as MultiConnector's first child, and others by name."""
    children = [ours, *({"kv_connector": name, "kv_role": "kv_both"} for name in others)]
    return {
        "kv_connector": "MultiConnector",
        "kv_role": ours["kv_role"],
        "kv_load_failure_policy": ours["kv_load_failure_policy"],
        "kv_connector_extra_config": {"connectors": children},
    }


@pytest.fixture
def decode(
    model: Path, prefill: Prefill, faults: FaultFile, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Decode]]:
    """Make a decode engine: `decode(barrier=…, deadline_s=…)`; one for each test."""
    built: list[Decode] = []
    free = free_ports()

    def make(
        *,
        barrier: str | None = None,
        guard: str | None = None,
        quarantine_limit_s: float | None = None,
        deadline_s: int = PATIENT_S,
        runner: str = "V1",
        graphs: CUDAGraphMode = CUDAGraphMode.NONE,
        ahead: bool = False,
        beside: Sequence[str] = (),
        connector: tuple[str, str | None] = OBSERVED,
        prefill: Prefill = prefill,
        **extra: Any,
    ) -> Decode:
        assert not built, "an engine is the only one in its process"
        ports = Ports.take(free)
        settings = {"barrier": barrier, "guard": guard, "quarantine_limit_s": quarantine_limit_s}
        observed: dict[str, Any] = {
            name: value for name, value in settings.items() if value is not None
        }
        if barrier == "off":
            observed["allow_unsafe"] = True
        limits = {
            "transfer_timeout": deadline_s,
            "recv_abort_timeout": deadline_s + ABORT_AFTER_S,
        } | extra
        monkeypatch.setenv("VLLM_MORIIO_TRANSFER_TIMEOUT_S", str(limits["recv_abort_timeout"]))
        transfer = transfer_config(
            "kv_consumer",
            connector=connector,
            observed=observed,
            load_failure_policy="fail" if guard == "fail" else "recompute",
            **limits,
        )
        if beside:
            transfer = _among(transfer, beside)
        engine = Engine(
            model,
            with_ports(transfer, ports),
            runner=runner,
            graphs=graphs,
            recurrent=prefill.recurrent,
            ahead=ahead,
        )
        built.append(Decode(engine, prefill, ports))
        return built[0]

    yield make
    for each in built:
        each.shutdown()
    free.close()


@pytest.fixture
def guarded(decode: Callable[..., Decode]) -> Iterator[Callable[..., Decode]]:
    """Make a decode engine with a guard; whatever a test does, nothing wrong was served."""
    built: list[Decode] = []

    def make(guard: str, **how: Any) -> Decode:
        built.append(decode(guard=guard, **how))
        return built[0]

    yield make
    for each in built:
        assert each.salad == set()
        assert each.total("unprotected_steps_total") == 0
