"""Spans for the tests of traces, by OpenTelemetry's own SDK and exporters or by hand."""

from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Link, SpanContext, SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from moriio_observed.traces.spans import Span

TRACE, OTHER_TRACE = "4bf92f3577b34da6a3ce929d0e0e4736", "0af7651916cd43dd8448eb211c80319c"
CLIENT = "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{CLIENT}-01"
EPOCH_NS = 1_790_000_000_000_000_000
MS = 1_000_000


def send_llm_request(url: str, compression: Compression = Compression.NoCompression) -> None:
    """One span, made and sent as vLLM does for a request with a `traceparent`."""
    provider = TracerProvider(resource=Resource({"service.name": "vllm", "vllm.process_id": "7"}))
    exporter = OTLPSpanExporter(endpoint=f"{url}/v1/traces", compression=compression)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    other = SpanContext(int(OTHER_TRACE, 16), 5, is_remote=True)
    context = TraceContextTextMapPropagator().extract({"traceparent": TRACEPARENT})
    span = provider.get_tracer("vllm.llm_engine").start_span(
        "llm_request",
        context=context,
        kind=SpanKind.SERVER,
        start_time=EPOCH_NS,
        links=[Link(other)],
    )
    span.set_attributes({"gen_ai.request.id": "cmpl-7", "gen_ai.usage.prompt_tokens": 384})
    span.end(EPOCH_NS + 1520 * MS)
    provider.shutdown()


def line_of(trace_id: str = TRACE, name: str = "moriio.read", span_id: int = 1, **more) -> dict:
    """A `TracesData` object with one span of one millisecond."""
    raw = {
        "traceId": trace_id,
        "spanId": f"{span_id:016x}",
        "name": name,
        "startTimeUnixNano": str(EPOCH_NS),
        "endTimeUnixNano": str(EPOCH_NS + MS),
        **more,
    }
    return {"resourceSpans": [{"scopeSpans": [{"spans": [raw]}]}]}


def a_span(
    name: str,
    span_id: int,
    start: float = 0,
    took: float = 1,
    *,
    parent: int | str = "",
    trace_id: str = TRACE,
    **more,
) -> Span:
    """A span whose times are milliseconds after the test's epoch."""
    start_ns = EPOCH_NS + round(start * MS)
    return Span(
        trace_id=trace_id,
        span_id=f"{span_id:016x}",
        parent_id=f"{parent:016x}" if isinstance(parent, int) else parent,
        name=name,
        start_ns=start_ns,
        end_ns=start_ns + round(took * MS),
        **more,
    )
