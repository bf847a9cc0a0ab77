"""Where telemetry goes: which signals, to where, how, how often, and as whom."""

import os
from collections.abc import Mapping
from dataclasses import replace

import pytest

from moriio_observed.config import Otlp, SettingsError
from moriio_observed.telemetry.destination import (
    Destination,
    Identity,
    Route,
    destination,
    resource,
)

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317"}
HTTP = {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
IDENTITY = Identity(
    role="kv_consumer",
    tp_rank="3",
    engine="e-7",
    model="m",
    vllm_version="0.32.0",
    mori_version="",
    version="0.1.0",
)


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


def found(environ: Mapping[str, str], settings: Otlp | None = None) -> Destination:
    there = destination(settings or Otlp(), environ)
    assert there is not None
    return there


def on(environ: Mapping[str, str], settings: Otlp | None = None) -> tuple[bool, bool]:
    there = destination(settings or Otlp(), environ)
    return (False, False) if there is None else (bool(there.traces), bool(there.metrics))


@pytest.mark.parametrize(
    ("environ", "traces", "metrics"),
    [
        ({}, False, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False, False),
        (ENDPOINT, True, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4317"}, True, False),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://c:4317"}, False, True),
        ({**ENDPOINT, "OTEL_SDK_DISABLED": "True"}, False, False),
        ({**ENDPOINT, "OTEL_SDK_DISABLED": "yes"}, True, True),
        ({**ENDPOINT, "OTEL_TRACES_EXPORTER": "none"}, False, True),
        ({**ENDPOINT, "OTEL_METRICS_EXPORTER": "none"}, True, False),
        ({**ENDPOINT, "OTEL_METRICS_EXPORTER": "prometheus"}, True, False),
        ({**ENDPOINT, "OTEL_METRICS_EXPORTER": "console, otlp"}, True, True),
        ({**ENDPOINT, "OTEL_TRACES_EXPORTER": "otlp_proto_http"}, True, True),
    ],
)
def test_a_signal_is_sent_when_it_has_an_endpoint_and_is_not_turned_off(
    environ: Mapping[str, str], traces: bool, metrics: bool
) -> None:
    assert on(environ) == (traces, metrics)


def test_our_endpoint_turns_both_signals_on() -> None:
    assert on({}, Otlp(endpoint="http://c:4317")) == (True, True)


@pytest.mark.parametrize(
    "environ", [{}, {**ENDPOINT, "OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none"}]
)
def test_a_setting_of_ours_wins_over_the_variables(environ: Mapping[str, str]) -> None:
    assert on(environ, Otlp(traces=True, metrics=False)) == (True, False)


def test_what_is_turned_on_without_an_endpoint_goes_to_the_standard_one() -> None:
    assert found({}, Otlp(traces=True)).traces == Route(
        protocol="grpc", endpoint="http://localhost:4317", timeout_s=2.0
    )
    there = found({}, Otlp(metrics=True, protocol="http/protobuf"))
    assert there.metrics is not None
    assert there.metrics.endpoint == "http://localhost:4318/v1/metrics"


@pytest.mark.parametrize(
    ("environ", "settings", "traces", "metrics"),
    [
        (ENDPOINT, Otlp(), "grpc", "grpc"),
        ({**ENDPOINT, **HTTP}, Otlp(), "http/protobuf", "http/protobuf"),
        (
            {**ENDPOINT, **HTTP, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"},
            Otlp(),
            "grpc",
            "http/protobuf",
        ),
        ({**ENDPOINT, **HTTP}, Otlp(protocol="grpc"), "grpc", "grpc"),
    ],
)
def test_the_nearest_word_on_the_protocol_wins(
    environ: Mapping[str, str], settings: Otlp, traces: str, metrics: str
) -> None:
    there = found(environ, settings)
    assert there.traces is not None
    assert there.metrics is not None
    assert (there.traces.protocol, there.metrics.protocol) == (traces, metrics)


@pytest.mark.parametrize(
    ("environ", "ours", "endpoint"),
    [
        (ENDPOINT, None, "http://c:4317"),
        (ENDPOINT, "http://ours:1", "http://ours:1"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "grpc://t:1", **ENDPOINT}, None, "grpc://t:1"),
        ({**ENDPOINT, **HTTP}, None, "http://c:4317/v1/traces"),
        ({**HTTP}, "https://ours:1/base/", "https://ours:1/base/v1/traces"),
        ({**HTTP, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://t/x"}, None, "http://t/x"),
        (
            {**HTTP, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://t/x"},
            "http://ours:1",
            "http://ours:1/v1/traces",
        ),
    ],
)
def test_http_adds_the_signals_path_to_a_base_and_to_nothing_else(
    environ: Mapping[str, str], ours: str | None, endpoint: str
) -> None:
    there = found(environ, Otlp(endpoint=ours))
    assert there.traces is not None
    assert there.traces.endpoint == endpoint


def test_an_export_may_take_two_seconds_unless_the_variables_say_otherwise() -> None:
    there = found(
        {
            **ENDPOINT,
            "OTEL_EXPORTER_OTLP_TIMEOUT": "7",
            "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "0.5",
        }
    )
    assert there.traces is not None
    assert there.metrics is not None
    assert (there.traces.timeout_s, there.metrics.timeout_s) == (0.5, 7.0)


def test_without_a_word_everything_is_opentelemetrys_default() -> None:
    there = found(ENDPOINT)
    assert (there.span_interval_s, there.metric_interval_s) == (5.0, 60.0)
    assert (there.span_queue, there.span_batch) == (2048, 512)
    assert (there.delta, there.exponential) == (False, False)


def test_the_standard_variables_say_how_often_how_much_and_in_which_form() -> None:
    there = found(
        {
            **ENDPOINT,
            "OTEL_BSP_SCHEDULE_DELAY": "200",
            "OTEL_METRIC_EXPORT_INTERVAL": "1500",
            "OTEL_BSP_MAX_QUEUE_SIZE": "64",
            "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "16",
            "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": "Delta",
            "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION": (
                "base2_exponential_bucket_histogram"
            ),
        }
    )
    assert (there.span_interval_s, there.metric_interval_s) == (0.2, 1.5)
    assert (there.span_queue, there.span_batch) == (64, 16)
    assert (there.delta, there.exponential) == (True, True)


def test_low_memory_is_delta_for_what_we_send() -> None:
    variable = "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE"
    assert found({**ENDPOINT, variable: "lowmemory"}).delta


def test_a_batch_is_no_larger_than_a_short_queue() -> None:
    assert found({**ENDPOINT, "OTEL_BSP_MAX_QUEUE_SIZE": "100"}).span_batch == 100


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", "one of grpc, http/protobuf"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "udp", "one of grpc, http/protobuf"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon", "seconds above 0"),
        ("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "0", "seconds above 0"),
        ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "nan", "seconds above 0"),
        ("OTEL_BSP_SCHEDULE_DELAY", "5s", "a whole number above 0"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "0", "a whole number above 0"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4096", "at most the queue's 2048"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "-1", "a whole number above 0"),
        (
            "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE",
            "both",
            "one of cumulative, delta, lowmemory",
        ),
        (
            "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION",
            "summary",
            "one of explicit_bucket_histogram, base2_exponential_bucket_histogram",
        ),
    ],
)
def test_a_bad_variable_is_named_with_its_value_and_what_is_allowed(
    name: str, value: str, allowed: str
) -> None:
    with pytest.raises(SettingsError) as error:
        destination(Otlp(), {**ENDPOINT, name: value})
    for problem in error.value.problems:
        assert problem.startswith(f"{name} = {value!r}: allowed is ")
        assert allowed in problem


def test_every_bad_variable_is_named_at_once() -> None:
    with pytest.raises(SettingsError) as error:
        destination(
            Otlp(),
            {**ENDPOINT, "OTEL_BSP_SCHEDULE_DELAY": "x", "OTEL_METRIC_EXPORT_INTERVAL": "y"},
        )
    assert len(error.value.problems) == 2


def test_variables_of_a_signal_that_is_not_sent_do_not_matter() -> None:
    assert destination(Otlp(), {"OTEL_METRIC_EXPORT_INTERVAL": "x"}) is None
    assert on({**ENDPOINT, "OTEL_BSP_SCHEDULE_DELAY": "x"}, Otlp(traces=False)) == (False, True)


@pytest.mark.parametrize(
    ("environ", "ours", "place"),
    [
        ({}, "c:4318", "otlp.endpoint"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "c:4318"}, None, "OTEL_EXPORTER_OTLP_ENDPOINT"),
        (
            {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "c:4318"},
            None,
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
        ),
    ],
)
def test_http_needs_a_url(environ: Mapping[str, str], ours: str | None, place: str) -> None:
    with pytest.raises(SettingsError, match=f"{place} = 'c:4318': .*http://"):
        destination(Otlp(endpoint=ours, metrics=False), {**HTTP, **environ})


def test_what_is_not_sent_has_no_exporter() -> None:
    there = found(ENDPOINT, Otlp(metrics=False))
    with pytest.raises(LookupError):
        there.metric_exporter()


def test_the_resource_tells_this_process_from_others() -> None:
    attributes = dict(resource(IDENTITY).attributes)
    assert attributes.pop("service.instance.id")
    assert attributes.pop("host.name")
    assert attributes == {
        "service.name": "vllm",
        "service.version": "0.32.0",
        "process.pid": os.getpid(),
        "moriio.role": "kv_consumer",
        "moriio.tp_rank": "3",
        "moriio.engine": "e-7",
        "moriio.model": "m",
        "moriio.version": "0.1.0",
    }


def test_two_that_send_from_one_host_and_process_id_are_two_instances() -> None:
    ours, others = (resource(IDENTITY).attributes for _ in range(2))
    assert ours["service.instance.id"] != others["service.instance.id"]


def test_the_users_resource_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=a,k8s.pod.name=p,host.name=h")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "b")
    attributes = resource(IDENTITY).attributes
    assert [attributes[name] for name in ("service.name", "k8s.pod.name", "host.name")] == [
        "b",
        "p",
        "h",
    ]


def test_an_instance_given_to_all_ranks_is_told_apart_by_process_and_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.instance.id=pod-1")
    assert resource(IDENTITY).attributes["service.instance.id"] == f"pod-1.{os.getpid()}.3"


def test_a_scheduler_is_told_apart_from_a_rank_of_its_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.instance.id=pod-1")
    scheduler = resource(replace(IDENTITY, tp_rank="")).attributes
    assert scheduler["service.instance.id"] == f"pod-1.{os.getpid()}.scheduler"


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_headers_are_left_to_the_exporters(monkeypatch: pytest.MonkeyPatch, protocol: str) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20x")
    there = found({}, Otlp(traces=True, protocol=protocol))
    exporter = there.span_exporter()
    holder = getattr(exporter, "_client", exporter) if protocol != "grpc" else exporter
    assert dict(holder._headers)["authorization"] == "Bearer x"
    exporter.shutdown()


def test_a_credential_provider_of_the_users_is_not_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    variable = "OTEL_PYTHON_EXPORTER_OTLP_HTTP_TRACES_CREDENTIAL_PROVIDER"
    monkeypatch.setenv(variable, "not-installed")
    with pytest.raises(RuntimeError, match="not-installed"):
        found({}, Otlp(traces=True, protocol="http/protobuf")).span_exporter()
