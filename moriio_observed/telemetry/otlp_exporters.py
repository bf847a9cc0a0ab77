"""OpenTelemetry's OTLP exporters, made so that what a collector refuses does not go unseen.

A collector may answer that all is well and yet have refused a part ("partial success"), which
the exporters do not look at. The rest is theirs: from OpenTelemetry 1.36 on an export with all its
attempts ends within its timeout, before that each attempt does.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from importlib import import_module
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.metrics.export import MetricExporter
from opentelemetry.sdk.trace.export import SpanExporter

from moriio_observed.telemetry.destination import Route

Hear = Callable[[Any], None]
"""Told each answer of a collector, decoded."""

_PACKAGES = {
    "grpc": "opentelemetry.exporter.otlp.proto.grpc",
    "http/protobuf": "opentelemetry.exporter.otlp.proto.http",
}
_CREDENTIAL_PROVIDER = re.compile(r"OTEL_PYTHON_EXPORTER_OTLP_HTTP_(\w+_)?CREDENTIAL_PROVIDER")


def spans(route: Route, refused: Callable[[int], None]) -> SpanExporter:
    """Make an exporter of spans; `refused` is told how many of them a collector has refused."""

    def hear(response: ExportTraceServiceResponse) -> None:
        refused(response.partial_success.rejected_spans)

    made: SpanExporter = _made(
        route, "trace_exporter", "OTLPSpanExporter", ExportTraceServiceResponse, hear
    )
    return made


def metrics(route: Route, refused: Callable[[int], None]) -> MetricExporter:
    """Make an exporter of metrics; `refused` is told how many data points were refused."""

    def hear(response: ExportMetricsServiceResponse) -> None:
        refused(response.partial_success.rejected_data_points)

    made: MetricExporter = _made(
        route, "metric_exporter", "OTLPMetricExporter", ExportMetricsServiceResponse, hear
    )
    return made


def _made(route: Route, module: str, name: str, response: Any, hear: Hear) -> Any:
    exporter_class = getattr(import_module(f"{_PACKAGES[route.protocol]}.{module}"), name)
    if route.protocol == "grpc":
        exporter = exporter_class(endpoint=route.endpoint, timeout=route.timeout_s)
        _listen(exporter, hear)
        return exporter
    return exporter_class(
        endpoint=route.endpoint,
        timeout=route.timeout_s,
        session=_session(response.FromString, hear),
    )


def _session(decode: Callable[[bytes], Any], hear: Hear) -> Any:
    """Return the HTTP session to send by, or None where the user has named one of his own."""
    import requests

    if any(map(_CREDENTIAL_PROVIDER.fullmatch, os.environ)):
        return None

    def answered(response: requests.Response, **_: object) -> None:
        # Whatever else it may be, an answer that cannot be read does not speak of refusals.
        with contextlib.suppress(Exception):
            hear(decode(response.content))

    session = requests.Session()
    session.hooks["response"].append(answered)
    return session


def _listen(exporter: Any, hear: Hear) -> None:
    """Hear the answers to a gRPC exporter, which throws them away.

    It makes its stub anew after a lost connection, so that is where to listen. The names are not
    public: with an OpenTelemetry that has others nothing is heard.
    """
    make, channel = getattr(exporter, "_stub", None), getattr(exporter, "_channel", None)
    if make is not None and channel is not None:
        exporter._stub = lambda channel: _Heard(make(channel), hear)
        exporter._client = exporter._stub(channel)


class _Heard:
    """A stub whose answers are heard."""

    def __init__(self, stub: Any, hear: Hear) -> None:
        self._stub = stub
        self._hear = hear

    def Export(self, **call: Any) -> Any:  # noqa: N802 - the service's own name
        """Export, and hear the answer."""
        response = self._stub.Export(**call)
        self._hear(response)
        return response
