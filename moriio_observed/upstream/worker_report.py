"""What the workers tell the scheduler side of their engine, with the output of a step."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorWorkerMetadata


@dataclass(slots=True)
class WorkerReport(KVConnectorWorkerMetadata):
    """One step of one worker, or of all of them.

    Attributes:
        settled: For each request, how many workers have no read of it in flight any more.
        exposed: Requests that were answered from KV that had not landed, why, and whether that is
            certain.
        overdue: Requests whose reads had not all ended when P's lease did.
        broken: Whether one of them no longer watches its reads.
    """

    settled: Counter[str] = field(default_factory=Counter)
    exposed: dict[str, tuple[str, bool]] = field(default_factory=dict)
    overdue: set[str] = field(default_factory=set)
    broken: bool = False

    def __bool__(self) -> bool:
        return bool(self.settled or self.exposed or self.overdue or self.broken)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        """Add what another worker tells of the same step."""
        if isinstance(other, WorkerReport):
            self.settled += other.settled
            for request_id, (cause, certain) in other.exposed.items():
                if certain or request_id not in self.exposed:
                    self.exposed[request_id] = (cause, certain)
            self.overdue |= other.overdue
            self.broken = self.broken or other.broken
        return self
