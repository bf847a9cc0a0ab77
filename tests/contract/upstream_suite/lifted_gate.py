"""A pytest plugin that runs upstream's MoRIIO unit tests on a CPU, with our class or without.

Upstream runs these tests on AMD machines only. Three things are told to a test module while it is
imported, since there it decides whether to skip: that the platform is ROCm, and that `mori` and
`aiter` are installed. The loopback stands in for mori; nothing of aiter is used.

The environment says what to do: `UPSTREAM_SUITE_REPORT` names the file that the outcomes go to,
and `UPSTREAM_SUITE_OBSERVED=1` puts our class in the place of upstream's.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from moriio_observed import loopback

outcomes: dict[str, str] = {}
ours: Counter[str] = Counter()


def pytest_configure() -> None:
    # Before upstream's module is imported: it looks for mori once, when it is.
    loopback.activate()
    from vllm.distributed.kv_transfer.kv_connector.v1.moriio import moriio_connector

    if os.environ.get("UPSTREAM_SUITE_OBSERVED") == "1":
        from moriio_observed import connector, upstream

        _count(connector.ObservedMoRIIOConnector, "__init__", "connectors")
        _count(upstream.Hooks, "install", "hook installations")
        moriio_connector.MoRIIOConnector = connector.ObservedMoRIIOConnector


def _count(owner: type, name: str, what: str) -> None:
    method = getattr(owner, name)

    def counted(*args: Any, **kwargs: Any) -> Any:
        result = method(*args, **kwargs)
        ours[what] += 1
        return result

    setattr(owner, name, counted)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    if not isinstance(collector, pytest.Module):
        return (yield)
    from vllm.platforms import current_platform

    def asked_by_the_test_module() -> bool:
        # Not by what it imports, which would go and look for the device.
        asker = sys._getframe(2).f_code
        return (asker.co_name, asker.co_filename) == ("<module>", str(collector.path))

    is_rocm, find_spec = current_platform.is_rocm, importlib.util.find_spec

    def is_rocm_to_the_test(_: Any) -> bool:
        return asked_by_the_test_module() or is_rocm()

    def find_aiter_for_the_test(name: str, package: str | None = None) -> ModuleSpec | None:
        if name == "aiter" and asked_by_the_test_module():
            return ModuleSpec(name, None)
        return find_spec(name, package)

    with pytest.MonkeyPatch.context() as gate:
        gate.setattr(type(current_platform), "is_rocm", is_rocm_to_the_test)
        gate.setattr(importlib.util, "find_spec", find_aiter_for_the_test)
        return (yield)


@pytest.fixture(autouse=True)
def _small_blocks_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Upstream's own fixture for CPU machines; 0.28 and 0.29 do not have it yet."""
    from vllm.v1.attention.backend import MultipleOf
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    monkeypatch.setattr(
        CPUAttentionBackend,
        "get_supported_kernel_block_sizes",
        staticmethod(lambda *_, **__: [MultipleOf(16)]),
    )


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if not report.passed:
        outcomes[report.nodeid] = report.outcome


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    # The first phase that does not pass decides.
    if outcomes.get(report.nodeid, "passed") == "passed":
        outcomes[report.nodeid] = report.outcome


def pytest_sessionfinish() -> None:
    report = {"outcomes": outcomes, "ours": ours}
    Path(os.environ["UPSTREAM_SUITE_REPORT"]).write_text(json.dumps(report))
