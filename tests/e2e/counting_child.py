"""A connector that stores KV cache on disk and has statistics of its own: a sibling for ours."""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.example_connector import ExampleConnector
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)


class StepStats(KVConnectorStats):
    def reset(self) -> None:
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        self.data = {"steps": self.data.get("steps", 0) + other.data.get("steps", 0)}
        return self

    def reduce(self) -> dict[str, int | float]:
        return self.data

    def is_empty(self) -> bool:
        return not self.data


class StepMetrics(KVConnectorPromMetrics):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        steps = self._counter_cls(
            name="sibling_steps_total",
            documentation="Steps the sibling saw.",
            labelnames=self._labelnames,
        )
        self._steps = {
            engine: steps.labels(*values) for engine, values in self.per_engine_labelvalues.items()
        }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        self._steps[engine_idx].inc(transfer_stats_data["steps"])


class CountingConnector(ExampleConnector):
    def get_kv_connector_stats(self) -> KVConnectorStats:
        return StepStats(data={"steps": 1})

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KVConnectorStats:
        return StepStats(data=data or {})

    @classmethod
    def build_prom_metrics(cls, *args: Any) -> KVConnectorPromMetrics:
        return StepMetrics(*args)


# vLLM looks classes with statistics up by name.
if CountingConnector.__name__ not in KVConnectorFactory._registry:
    KVConnectorFactory.register_connector(
        CountingConnector.__name__, __name__, CountingConnector.__name__
    )
