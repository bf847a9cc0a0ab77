"""The ways out of one connector besides vLLM's statistics: spans, OTLP metrics, its own endpoint.

None of them is there unless the user asked for it, and then all they do happens on threads of their
own. What they import is imported only then.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moriio_observed.config import Settings
from moriio_observed.containment import Containment
from moriio_observed.telemetry.aggregate import Aggregate
from moriio_observed.telemetry.catalog import Scope
from moriio_observed.telemetry.destination import Destination, Identity
from moriio_observed.telemetry.exposition import Exposition
from moriio_observed.telemetry.hold_recorder import HoldRecorder
from moriio_observed.telemetry.readings import Readings
from moriio_observed.telemetry.recorder import StepRecorder
from moriio_observed.telemetry.sender import Outlet, Sender
from moriio_observed.telemetry.span_queue import Sampler, SpanQueue

if TYPE_CHECKING:
    from moriio_observed.telemetry.exporter import OwnEndpoint

__all__ = ["Source", "WaysOut"]

SHUTDOWN_S = 1.0
"""How long one connector may hold up a shutdown, seconds: an engine's process can have two."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """Who counts.

    Attributes:
        aggregate: What is counted.
        identity: Who that is.
        scopes: Whose series it is that stand at 0 from the start.
        static: Gauges set once at start, by payload key.
        labels: vLLM's own labels, on every series.
        layers: How many layers the model has.
        tp_rank: The TP rank; 0 for a scheduler.
        number: The worker's among all of the deployment; None for a scheduler.
    """

    aggregate: Aggregate
    identity: Identity
    scopes: Collection[Scope]
    static: Mapping[str, float]
    labels: Mapping[str, str]
    layers: int
    tp_rank: int
    number: int | None


class WaysOut:
    """Opens what the user asked for, and closes it.

    Args:
        settings: What the user set.
        there: Where OTLP goes; None: nowhere.
    """

    def __init__(self, settings: Settings, there: Destination | None) -> None:
        self._settings = settings
        self._there = there
        self._queue: SpanQueue | None = None
        self._sender: Sender | None = None
        self._endpoint: OwnEndpoint | None = None
        self._aggregate: Aggregate | None = None

    @property
    def traces(self) -> bool:
        """Whether spans are sent."""
        return self._there is not None and self._there.traces is not None

    def steps(self, aggregate: Aggregate) -> StepRecorder | None:
        """The recorder of a decode worker's steps, None where nothing is traced."""
        if not self.traces:
            return None
        return StepRecorder(
            self._open_queue(aggregate),
            Sampler(self._settings.otlp.sample_ratio),
            slow_wait_s=self._settings.otlp.slow_wait_s,
            containment=_contained(aggregate),
        )

    def holds(self, aggregate: Aggregate) -> HoldRecorder | None:
        """The recorder of what a prefill engine's scheduler side holds, None likewise."""
        if not self.traces:
            return None
        return HoldRecorder(
            self._open_queue(aggregate),
            Sampler(self._settings.otlp.sample_ratio),
            containment=_contained(aggregate),
        )

    def open(self, source: Source) -> None:
        """Start what was asked for; to be called after the recorders are made."""
        self._aggregate = source.aggregate
        readings = Readings(
            [source.aggregate],
            Exposition(self._settings),
            static=source.static,
            scopes=source.scopes,
            layers=source.layers,
            tp_ranks=[source.tp_rank],
        )
        if self._there is not None:
            self._open_otlp(source, readings, self._there)
        if self._settings.exporter.enabled and source.number is not None:
            self._open_endpoint(source, readings, source.number)

    def count_losses(self) -> None:
        """Count what was lost and went wrong on the way, on the thread that counts."""
        aggregate, sender = self._aggregate, self._sender
        if aggregate is None:
            return
        if sender is not None:
            for signal in ("traces", "metrics"):
                _add(aggregate, "telemetry_dropped_total", signal, sender.take_lost(signal))
                _add(aggregate, "telemetry_errors_total", signal, sender.take_errors(signal))
        if self._endpoint is not None:
            errors = self._endpoint.take_errors()
            _add(aggregate, "telemetry_errors_total", "metrics", errors)

    def close(self) -> None:
        """Send what waits, for `SHUTDOWN_S` at most, and stop."""
        if self._endpoint is not None:
            self._endpoint.shutdown()
        if self._sender is not None:
            self._sender.shutdown(SHUTDOWN_S)

    def _open_queue(self, aggregate: Aggregate) -> SpanQueue:
        assert self._there is not None  # noqa: S101  (only called where spans are sent)
        self._queue = SpanQueue(
            self._there.span_queue,
            aggregate.counter("telemetry_dropped_total", signal="traces"),
            self._wake,
        )
        return self._queue

    def _wake(self) -> None:
        if self._sender is not None:
            self._sender.wake("traces")

    def _open_otlp(self, source: Source, readings: Readings, there: Destination) -> None:
        from moriio_observed.telemetry.destination import resource

        who = resource(source.identity)
        outlets: list[Outlet] = []
        if self._queue is not None:
            from moriio_observed.telemetry.tracing import SpanBuilder, TraceOutlet

            otlp = self._settings.otlp
            builder = SpanBuilder(
                who, hash_ids=otlp.hash_request_ids, sampler=Sampler(otlp.sample_ratio)
            )
            outlets.append(
                TraceOutlet(
                    self._queue,
                    builder,
                    there.span_exporter,
                    interval_s=there.span_interval_s,
                    batch=there.span_batch,
                )
            )
        if there.metrics is not None:
            from moriio_observed.telemetry.otlp import MetricOutlet

            outlets.append(
                MetricOutlet(
                    readings,
                    there.metric_exporter,
                    who,
                    labels=source.labels,
                    interval_s=there.metric_interval_s,
                    delta=there.delta,
                    exponential=there.exponential,
                )
            )
        if outlets:
            self._sender = Sender(outlets, rejected=there.take_rejected)
            self._sender.start()

    def _open_endpoint(self, source: Source, readings: Readings, number: int) -> None:
        from moriio_observed.telemetry.exporter import OwnEndpoint
        from moriio_observed.telemetry.page import Page

        self._endpoint = OwnEndpoint(
            Page(readings, source.labels),
            self._settings.exporter,
            rank=number,
            target_labels={"moriio_role": source.identity.role, "moriio_rank": str(number)},
        )
        self._endpoint.start()


def _contained(aggregate: Aggregate) -> Containment:
    return Containment(aggregate, "no more spans are made.", signal="traces")


def _add(aggregate: Aggregate, name: str, signal: str, n: int) -> None:
    if n:
        aggregate.counter(name, signal=signal).inc(n)
