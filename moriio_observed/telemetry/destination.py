"""Where telemetry goes over OTLP: our settings, and the standard `OTEL_*` variables under them.

Which signals are sent, how, and how often is read here. TLS, headers and compression are left to
OpenTelemetry's exporters, which read their variables themselves. OpenTelemetry is imported only
where an exporter or a resource is made, because that takes a while.
"""

from __future__ import annotations

import math
import os
import socket
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from moriio_observed.config import Otlp, SettingsError, shown
from moriio_observed.telemetry.aggregate import Counter

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace.export import SpanExporter

_T = TypeVar("_T")

TIMEOUT_S = 2.0
"""How long an export may take, unless `OTEL_EXPORTER_OTLP_TIMEOUT` or its like say otherwise.

OpenTelemetry's own default, 10 s, would leave a shutdown little hope of a last export.
"""

_DEFAULT_BASES = {"grpc": "http://localhost:4317", "http/protobuf": "http://localhost:4318"}
_PROTOCOLS = tuple(_DEFAULT_BASES)


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """How one signal travels.

    Attributes:
        protocol: ``grpc`` or ``http/protobuf``.
        endpoint: Where to; over HTTP with the signal's path.
        timeout_s: How long one export may take, seconds.
    """

    protocol: str
    endpoint: str
    timeout_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Destination:
    """Where telemetry goes, and how often.

    Attributes:
        traces: The route of spans; None: they are not sent.
        metrics: The route of metrics; None: they are not sent.
        span_interval_s: How long a span may wait, seconds.
        span_queue: How many spans may wait.
        span_batch: How many spans one export may hold.
        metric_interval_s: Between two exports of metrics, seconds.
        delta: Whether counters and histograms are sent as what was added since the last export.
        exponential: Whether histograms are sent in exponential buckets.
        rejected: Counts, by signal, what a collector took in but refused.
    """

    traces: Route | None
    metrics: Route | None
    span_interval_s: float
    span_queue: int
    span_batch: int
    metric_interval_s: float
    delta: bool
    exponential: bool
    rejected: Mapping[str, Counter] = field(
        default_factory=lambda: {"traces": Counter(), "metrics": Counter()}
    )

    def span_exporter(self) -> SpanExporter:
        """Make the exporter of spans.

        Raises:
            Exception: Whatever OpenTelemetry finds wrong with the variables it reads itself.
            LookupError: Spans are not sent.
        """
        from moriio_observed.telemetry import otlp_exporters

        return otlp_exporters.spans(_existing(self.traces), self.rejected["traces"].inc)

    def metric_exporter(self) -> MetricExporter:
        """Make the exporter of metrics; errors as `span_exporter`."""
        from moriio_observed.telemetry import otlp_exporters

        return otlp_exporters.metrics(_existing(self.metrics), self.rejected["metrics"].inc)

    def take_rejected(self, signal: str) -> int:
        """Return how much collectors took in but refused, since last asked; from one thread."""
        return int(self.rejected[signal].take())


def _existing(route: Route | None) -> Route:
    if route is None:
        raise LookupError("this signal is not sent")
    return route


def destination(settings: Otlp, environ: Mapping[str, str]) -> Destination | None:
    """Read where telemetry goes; None where nothing is sent.

    A setting of ours wins over the `OTEL_*` variable, also one that turns a signal on over one that
    turns it off. Variables set to nothing count as not set, and those of a signal that is not sent
    are not looked at.

    Args:
        settings: Ours.
        environ: The environment.

    Raises:
        SettingsError: A variable that matters is bad; it names all of them.
    """
    variables = _Variables(environ)
    traces = variables.route("traces", settings, wanted=settings.traces)
    metrics = variables.route("metrics", settings, wanted=settings.metrics)
    if traces is None and metrics is None and not variables.problems:
        return None
    queue, batch, delay_ms = 2048, 512, 5000
    if traces is not None:
        queue = variables.count("OTEL_BSP_MAX_QUEUE_SIZE", queue)
        batch = variables.count("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", min(batch, queue), most=queue)
        delay_ms = variables.count("OTEL_BSP_SCHEDULE_DELAY", delay_ms)
    interval_ms, temporality, aggregation = 60_000, "cumulative", "explicit_bucket_histogram"
    if metrics is not None:
        interval_ms = variables.count("OTEL_METRIC_EXPORT_INTERVAL", interval_ms)
        temporality = variables.choice(
            ["OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE"],
            ("cumulative", "delta", "lowmemory"),
        )
        aggregation = variables.choice(
            ["OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION"],
            ("explicit_bucket_histogram", "base2_exponential_bucket_histogram"),
        )
    if variables.problems:
        raise SettingsError(variables.problems)
    return Destination(
        traces=traces,
        metrics=metrics,
        span_interval_s=delay_ms / 1e3,
        span_queue=queue,
        span_batch=batch,
        metric_interval_s=interval_ms / 1e3,
        # Low memory differs from delta only for kinds of instruments we do not have.
        delta=temporality != "cumulative",
        exponential=aggregation == "base2_exponential_bucket_histogram",
    )


class _Variables:
    """Reads variables, and collects what is wrong with them."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.problems: list[str] = []
        self._environ = environ

    def route(self, signal: str, settings: Otlp, *, wanted: bool | None) -> Route | None:
        """Return how a signal travels, None if it does not."""
        own = f"OTEL_EXPORTER_OTLP_{signal.upper()}"
        if wanted is None:
            wanted = self._is_on(signal, settings.endpoint, f"{own}_ENDPOINT")
        if not wanted:
            return None
        protocol = settings.protocol or self.choice(
            [f"{own}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"], _PROTOCOLS
        )
        return Route(
            protocol=protocol,
            endpoint=self._endpoint(signal, settings.endpoint, f"{own}_ENDPOINT", protocol),
            timeout_s=self._read(
                [f"{own}_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT"],
                "seconds above 0",
                _positive_seconds,
                TIMEOUT_S,
            ),
        )

    def choice(self, names: list[str], allowed: tuple[str, ...]) -> str:
        """Return the value of the first variable that is set; without one the first allowed."""
        return self._read(
            names,
            f"one of {', '.join(allowed)}",
            lambda text: allowed[allowed.index(text.strip().lower())],
            allowed[0],
        )

    def count(self, name: str, default: int, *, most: int | None = None) -> int:
        """Return a whole number above 0."""
        limit = "" if most is None else f" and at most the queue's {most}"
        return self._read(
            [name], f"a whole number above 0{limit}", lambda text: _positive(text, most), default
        )

    def _is_on(self, signal: str, ours: str | None, own_endpoint: str) -> bool:
        if self._first(["OTEL_SDK_DISABLED"])[1].strip().lower() == "true":
            return False
        chosen = self._first([f"OTEL_{signal.upper()}_EXPORTER"])[1]
        # What is chosen may be a list, and "otlp_proto_grpc" is Python's name for a part of it.
        if chosen and not any(name.strip().startswith("otlp") for name in chosen.split(",")):
            return False
        return bool(ours or self._first([own_endpoint, "OTEL_EXPORTER_OTLP_ENDPOINT"])[1])

    def _endpoint(self, signal: str, ours: str | None, own: str, protocol: str) -> str:
        name, verbatim = ("otlp.endpoint", "") if ours else self._first([own])
        base_name, base = self._first(["OTEL_EXPORTER_OTLP_ENDPOINT"])
        base = ours or base or _DEFAULT_BASES[protocol]
        endpoint = verbatim or base
        if protocol == "grpc":
            return endpoint
        if not endpoint.startswith(("http://", "https://")):
            self.problems.append(
                f"{name or base_name} = {shown(endpoint)}: allowed is a URL that begins with"
                " http:// or https://, since the protocol is http/protobuf"
            )
        return verbatim or f"{base.rstrip('/')}/v1/{signal}"

    def _read(self, names: list[str], allowed: str, parse: Callable[[str], _T], default: _T) -> _T:
        name, text = self._first(names)
        if not text:
            return default
        try:
            return parse(text)
        except ValueError:
            self.problems.append(f"{name} = {shown(text)}: allowed is {allowed}")
            return default

    def _first(self, names: list[str]) -> tuple[str, str]:
        return next(((name, text) for name in names if (text := self._environ.get(name))), ("", ""))


def _positive(text: str, most: int | None) -> int:
    number = int(text)
    if number < 1 or (most is not None and number > most):
        raise ValueError(text)
    return number


def _positive_seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < math.inf:
        raise ValueError(text)
    return seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """Who sends.

    Attributes:
        role: What the engine's ``kv_role`` says.
        tp_rank: The TP rank; empty where there is none, as in a scheduler.
        engine: The engine's index in its data-parallel deployment.
        model: The model's name.
        vllm_version: Version of vLLM.
        mori_version: Version of mori; empty where it has none.
        version: Version of this package.
    """

    role: str
    tp_rank: str
    engine: str
    model: str
    vllm_version: str
    mori_version: str
    version: str


def resource(identity: Identity) -> Resource:
    """Return what tells one that sends from others.

    `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` win over what we know. Only a
    ``service.instance.id`` given there gets the process id and the rank added: ranks share an
    environment, a scheduler and a rank may share a process, and their series would be taken for
    one.
    """
    from opentelemetry.sdk.resources import OTELResourceDetector
    from opentelemetry.sdk.resources import Resource as OTelResource

    host, pid = socket.gethostname(), os.getpid()
    ours = {
        "service.name": "vllm",
        "service.version": identity.vllm_version,
        "host.name": host,
        "moriio.role": identity.role,
        "moriio.tp_rank": identity.tp_rank,
        "moriio.engine": identity.engine,
        "moriio.model": identity.model,
        "moriio.mori.version": identity.mori_version,
        "moriio.version": identity.version,
    }
    given = OTELResourceDetector().detect().attributes
    part = f"{pid}.{identity.tp_rank or 'scheduler'}"
    given_id = given.get("service.instance.id")
    return OTelResource(
        {
            **{name: value for name, value in ours.items() if value},
            "process.pid": pid,
            **given,
            # Containers on one host's network have its name, and likely the same process ids.
            "service.instance.id": f"{given_id}.{part}" if given_id else str(uuid.uuid4()),
        }
    )
