"""OTLP's two encodings of spans: protobuf to JSON, and JSON to `Span`.

The JSON is OTLP's own, one `TracesData` object, so a file that the OpenTelemetry Collector's file
exporter wrote can be read as well.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf.json_format import MessageToDict, MessageToJson
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from moriio_observed.traces.spans import Event, Link, Span

KINDS = ("INTERNAL", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER")
ERRORS = (2, "STATUS_CODE_ERROR")
LATEST_NS = 2**64 - 1
IDS = ("traceId", "spanId", "parentSpanId")
_NO_SPAN = (AttributeError, LookupError, TypeError, ValueError, OverflowError, RecursionError)
"""How reading one fails that is none by OTLP's rules."""
HEX = re.compile("[0-9a-fA-F]+")

Json = dict[str, Any]


class MalformedError(ValueError):
    """The bytes are not OTLP."""


def from_protobuf(body: bytes) -> Json:
    """An `ExportTraceServiceRequest` as OTLP JSON, whose ids are hexadecimal.

    Raises:
        MalformedError: When it is something else.
    """
    request = ExportTraceServiceRequest()
    try:
        request.ParseFromString(body)
    except DecodeError as error:
        raise MalformedError(f"not an OTLP trace request: {error}") from None
    data: Json = MessageToDict(request, use_integers_for_enums=True)
    for _, _, span in _raw_spans(data):
        for holder in (span, *span.get("links", ())):
            for key in holder.keys() & set(IDS):
                holder[key] = base64.b64decode(holder[key]).hex()
    return data


def from_json(body: bytes) -> Json:
    """OTLP JSON, decoded.

    Raises:
        MalformedError: When it is something else.
    """
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"not JSON: {error}") from None
    if not isinstance(data, dict):
        raise MalformedError("not a JSON object")
    return data


def answer(rejected: int, *, is_json: bool) -> bytes:
    """What a receiver answers that could not use so many of the spans."""
    answer = ExportTraceServiceResponse()
    if rejected:
        answer.partial_success.rejected_spans = rejected
        answer.partial_success.error_message = "these are no spans by OTLP's rules"
    body: bytes = MessageToJson(answer).encode() if is_json else answer.SerializeToString()
    return body


def spans_of(data: Mapping[str, Any]) -> tuple[list[Span], int]:
    """The spans of a `TracesData` object.

    Returns:
        The spans, and how many entries are none by OTLP's rules.

    Raises:
        MalformedError: When it is not such an object at all.
    """
    spans, rejected = [], 0
    for resource, scope, raw in _raw_spans(data):
        try:
            spans.append(_span(resource, scope, raw))
        except _NO_SPAN:
            rejected += 1
    return spans, rejected


def _raw_spans(data: Mapping[str, Any]) -> Iterator[tuple[Any, Any, Any]]:
    """Each span with its resource and its scope, as they stand in the JSON."""
    try:
        for of_resource in data.get("resourceSpans") or ():
            for of_scope in of_resource.get("scopeSpans") or ():
                for span in of_scope.get("spans") or ():
                    yield of_resource.get("resource") or {}, of_scope.get("scope") or {}, span
    except (AttributeError, TypeError):
        raise MalformedError("not OTLP: no resourceSpans of scopeSpans of spans") from None


def _span(resource: Json, scope: Json, raw: Json) -> Span:
    start = _time(raw.get("startTimeUnixNano", 0))
    parent = raw.get("parentSpanId") or ""
    status = raw.get("status") or {}
    return Span(
        trace_id=_id(raw["traceId"], 32),
        span_id=_id(raw["spanId"], 16),
        parent_id=_id(parent, 16) if parent.strip("0") else "",
        name=_text(raw.get("name", "")),
        start_ns=start,
        # Clocks go backwards, and what never ended has no end: neither is a reason to lose it.
        end_ns=max(start, _time(raw.get("endTimeUnixNano", 0))),
        kind=_kind(raw.get("kind", 1)),
        failed=status.get("code") in ERRORS,
        message=_text(status.get("message", "")),
        attributes=_attributes(raw),
        events=tuple(
            Event(
                _text(event.get("name", "")),
                _time(event.get("timeUnixNano", 0)),
                _attributes(event),
            )
            for event in raw.get("events") or ()
        ),
        links=tuple(
            Link(_id(link["traceId"], 32), _id(link["spanId"], 16), _attributes(link))
            for link in raw.get("links") or ()
        ),
        resource=_attributes(resource),
        scope=_text(scope.get("name", "")),
    )


def _id(value: str, digits: int) -> str:
    if len(value) != digits or not HEX.fullmatch(value) or not value.strip("0"):
        raise ValueError(value)
    return value.lower()


def _time(value: int | str) -> int:
    time = int(value)
    if not 0 <= time <= LATEST_NS:
        raise ValueError(value)
    return time


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _kind(value: object) -> str:
    if isinstance(value, str):
        return value.removeprefix("SPAN_KIND_")
    return KINDS[value] if isinstance(value, int) and 0 <= value < len(KINDS) else str(value)


def _attributes(holder: Json) -> dict[str, object]:
    return _pairs(holder.get("attributes") or ())


def _pairs(pairs: Any) -> dict[str, object]:
    return {_text(pair["key"]): _value(pair.get("value") or {}) for pair in pairs}


def _value(value: Json) -> object:
    """An `AnyValue` as Python's; what is unknown stays as it came."""
    for kind, content in value.items():
        match kind:
            case "stringValue" | "boolValue" | "bytesValue":
                return content
            case "intValue":
                return int(content)
            case "doubleValue":
                return float(content)
            case "arrayValue":
                return [_value(item) for item in content.get("values") or ()]
            case "kvlistValue":
                return _pairs(content.get("values") or ())
    return value or None
