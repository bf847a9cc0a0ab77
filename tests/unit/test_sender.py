"""Whatever a collector does, only the sending thread feels it, and what is lost is counted."""

import importlib
import logging
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from http import HTTPStatus
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import SpanContext

from moriio_observed.config import Otlp, Settings
from moriio_observed.telemetry import sender as sender_module
from moriio_observed.telemetry.aggregate import Aggregate
from moriio_observed.telemetry.destination import Destination, destination
from moriio_observed.telemetry.exposition import Exposition
from moriio_observed.telemetry.otlp import MetricOutlet
from moriio_observed.telemetry.readings import Readings
from moriio_observed.telemetry.sender import Sender
from tests.unit.collectors import COLLECTORS, Manner, free_port, raw_server

PROTOCOLS = list(COLLECTORS)
NEVER_S = 3600.0
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NO_PROXY", "*")


class Script:
    """An outlet that does, flush by flush, as told; without a word it has nothing to send."""

    def __init__(self, *results: int | Exception | None, signal: str = "traces") -> None:
        self.signal = signal
        self.interval_s = NEVER_S
        self.flushed: SimpleQueue[threading.Thread] = SimpleQueue()
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.closed = threading.Event()
        self._results = list(results)

    def flush(self) -> int | None:
        self.flushed.put(threading.current_thread())
        self.may_go_on.wait()
        result = self._results.pop(0) if self._results else None
        if isinstance(result, Exception):
            raise result
        return result

    def close(self, timeout_s: float) -> None:
        self.closed.set()


class Spans:
    """An outlet of spans put by a test."""

    signal = "traces"
    interval_s = NEVER_S

    def __init__(self, make: Callable[[], SpanExporter]) -> None:
        self._make = make
        self._exporter: SpanExporter | None = None
        self._waiting: SimpleQueue[ReadableSpan] = SimpleQueue()
        self.tried: SimpleQueue[int] = SimpleQueue()
        self.failed = 0

    def put(self, spans: int = 1) -> None:
        for _ in range(spans):
            self._waiting.put(ReadableSpan("test", context=SpanContext(1, 2, is_remote=False)))

    def flush(self) -> int | None:
        if self._exporter is None:
            self._exporter = self._make()
        spans = [self._waiting.get() for _ in range(self._waiting.qsize())]
        if not spans:
            return None
        sent = self._exporter.export(spans) is SpanExportResult.SUCCESS
        lost = 0 if sent else len(spans)
        self.failed += lost
        self.tried.put(lost)
        return lost

    def close(self, timeout_s: float) -> None:
        exporter, self._exporter = self._exporter, None
        if exporter is not None:
            exporter.shutdown()


def to(endpoint: str, protocol: str, timeout_s: float = 0.5) -> Destination:
    found = destination(
        Otlp(endpoint=endpoint, protocol=protocol),
        {"OTEL_EXPORTER_OTLP_TIMEOUT": str(timeout_s)},
    )
    assert found is not None
    return found


class Metrics(MetricOutlet):
    """An outlet of metrics that tells when it has tried."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.tried: SimpleQueue[None] = SimpleQueue()

    def flush(self) -> int:
        try:
            return super().flush()
        finally:
            self.tried.put(None)


def metrics_to(there: Destination) -> Metrics:
    aggregate = Aggregate(source="w0")
    aggregate.counter("requests_total").inc(3)
    readings = Readings(
        [aggregate], Exposition(Settings()), static={}, scopes=(), layers=0, tp_ranks=[0]
    )
    return Metrics(readings, there.metric_exporter, Resource({}), labels={}, interval_s=NEVER_S)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has failed is tried again soon."""
    monkeypatch.setattr(sender_module, "FIRST_WAIT_S", 0.01)


@pytest.fixture
def sender() -> Iterator[Callable[..., Sender]]:
    made: list[Sender] = []

    def make(*outlets: Script | Spans | MetricOutlet, **kwargs: Callable[[str], int]) -> Sender:
        made.append(Sender(outlets, **kwargs))
        made[-1].start()
        return made[-1]

    yield make
    for each in made:
        each.shutdown(0)


def wait_for(flushes: SimpleQueue[threading.Thread], n: int = 1) -> threading.Thread:
    return [flushes.get() for _ in range(n)][-1]


# The thread.


def test_outlets_are_flushed_at_once_on_a_daemon_thread(sender: Callable[..., Sender]) -> None:
    outlet = Script()
    sender(outlet)
    thread = wait_for(outlet.flushed)
    assert thread is not threading.current_thread()
    assert thread.daemon


def test_an_outlet_is_flushed_again_after_every_interval(sender: Callable[..., Sender]) -> None:
    outlet = Script()
    outlet.interval_s = 0.001
    sender(outlet)
    wait_for(outlet.flushed, 3)


def test_a_call_has_its_signal_flushed_before_the_interval_ends(
    sender: Callable[..., Sender],
) -> None:
    traces, metrics = Script(), Script(signal="metrics")
    ours = sender(traces, metrics)
    wait_for(traces.flushed)
    wait_for(metrics.flushed)
    ours.wake("traces")
    wait_for(traces.flushed)
    assert metrics.flushed.empty()


def test_any_number_of_calls_ask_for_one_flush(sender: Callable[..., Sender]) -> None:
    outlet = Script()
    outlet.may_go_on.clear()
    ours = sender(outlet)
    wait_for(outlet.flushed)
    for _ in range(1000):
        ours.wake("traces")
    outlet.may_go_on.set()
    wait_for(outlet.flushed)
    ours.shutdown()
    # At shutdown, one more.
    wait_for(outlet.flushed)
    assert outlet.flushed.empty()


def test_a_call_during_a_flush_is_answered_by_the_next(sender: Callable[..., Sender]) -> None:
    outlet = Script()
    ours = sender(outlet)
    wait_for(outlet.flushed)
    outlet.may_go_on.clear()
    ours.wake("traces")
    wait_for(outlet.flushed)
    ours.wake("traces")
    outlet.may_go_on.set()
    wait_for(outlet.flushed)


def test_a_signal_that_is_always_called_for_keeps_no_other_back(
    sender: Callable[..., Sender],
) -> None:
    class Insatiable(Script):
        def flush(self) -> None:
            ours.wake("traces")

    metrics = Script(signal="metrics")
    metrics.interval_s = 0.001
    ours = Sender([Insatiable(), metrics])
    ours.start()
    wait_for(metrics.flushed, 3)
    ours.shutdown(NEVER_S)


def test_a_signal_that_has_failed_is_not_tried_again_at_every_call(
    sender: Callable[..., Sender], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender_module, "FIRST_WAIT_S", NEVER_S)
    traces, metrics = Script(1), Script(signal="metrics")
    ours = sender(traces, metrics)
    wait_for(traces.flushed)
    wait_for(metrics.flushed)
    ours.wake("traces")
    ours.wake("metrics")
    wait_for(metrics.flushed)
    assert traces.flushed.empty()


def test_what_goes_on_failing_is_tried_ever_more_seldom(
    sender: Callable[..., Sender], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender_module, "FIRST_WAIT_S", 0.001)
    outlet = Script(1, 1, 1, 1, 1, 0)
    ours = sender(outlet)
    for failures in range(5):
        wait_for(outlet.flushed)
        assert ours._failures["traces"] >= failures
        ours.wake("traces")
    wait_for(outlet.flushed)
    ours.shutdown(NEVER_S)
    assert ours._failures["traces"] == 0


def test_a_signal_that_is_not_sent_may_be_called_and_asked_for(
    sender: Callable[..., Sender],
) -> None:
    ours = sender(Script())
    ours.wake("metrics")
    assert (ours.take_lost("metrics"), ours.take_errors("metrics")) == (0, 0)


def test_starting_twice_is_starting_once(sender: Callable[..., Sender]) -> None:
    outlet = Script()
    ours = sender(outlet)
    ours.start()
    first = wait_for(outlet.flushed)
    ours.shutdown(NEVER_S)
    assert wait_for(outlet.flushed) is first
    assert outlet.flushed.empty()


def test_one_that_was_never_started_is_shut_down_at_once() -> None:
    outlet = Script()
    Sender([outlet]).shutdown()
    assert outlet.flushed.empty()


# What is counted.


def test_losses_and_errors_are_counted_by_signal_and_each_taken_once(
    sender: Callable[..., Sender],
) -> None:
    traces, metrics = Script(3, 4), Script(RuntimeError("no"), signal="metrics")
    ours = sender(traces, metrics)
    wait_for(traces.flushed)
    ours.wake("traces")
    wait_for(traces.flushed)
    wait_for(metrics.flushed)
    ours.shutdown()
    assert (ours.take_lost("traces"), ours.take_errors("traces")) == (7, 0)
    assert (ours.take_lost("metrics"), ours.take_errors("metrics")) == (0, 1)
    assert ours.take_lost("traces") == ours.take_errors("metrics") == 0


def test_what_a_collector_refused_is_lost(sender: Callable[..., Sender]) -> None:
    outlet = Script(0)
    ours = sender(outlet, rejected={"traces": 5}.__getitem__)
    wait_for(outlet.flushed)
    ours.shutdown(0)
    ours._thread.join()
    assert ours.take_lost("traces") == 5


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "OTLP" in record.getMessage()]


def test_a_failure_is_said_once_until_something_went_out_again(
    sender: Callable[..., Sender], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    no = RuntimeError("no route")
    outlet = Script(no, None, no, 1, 0, 0, no)
    ours = sender(outlet)
    for _ in range(7):
        wait_for(outlet.flushed)
        ours.wake("traces")
    ours.shutdown()
    first, again, second = said(caplog)
    assert "no route" in first
    assert again == "OTLP traces go out again"
    assert second == first


@pytest.mark.parametrize(
    "name",
    [
        "opentelemetry.exporter.otlp.proto.grpc.exporter",
        "opentelemetry.exporter.otlp.proto.http.trace_exporter",
        "opentelemetry.exporter.otlp.proto.http.metric_exporter",
    ],
)
def test_what_exporters_log_meanwhile_goes_into_our_line_and_others_lines_stay(
    sender: Callable[..., Sender], caplog: pytest.LogCaptureFixture, name: str
) -> None:
    class Complaining(Script):
        def flush(self) -> int:
            elsewhere = threading.Thread(target=logging.getLogger(name).error, args=("theirs",))
            elsewhere.start()
            elsewhere.join()
            logging.getLogger(name).error("collector is %s", "away")
            super().flush()
            return 1

    outlet = Complaining()
    ours = sender(outlet)
    wait_for(outlet.flushed)
    ours.shutdown()
    lines = [record.getMessage() for record in caplog.records]
    assert "collector is away" not in lines
    assert "theirs" in lines
    assert "collector is away" in said(caplog)[0]


def test_a_reason_is_given_again_though_the_exporter_says_a_thing_once_a_minute(
    sender: Callable[..., Sender], caplog: pytest.LogCaptureFixture
) -> None:
    # Importing it gives its logger the filter that does so.
    importlib.import_module("opentelemetry.exporter.otlp.proto.grpc.exporter")

    class Complaining(Script):
        def flush(self) -> int | None:
            logging.getLogger("opentelemetry.exporter.otlp.proto.grpc.exporter").error("away")
            return super().flush()

    outlet = Complaining(1, 0, 1)
    ours = sender(outlet)
    for _ in range(3):
        wait_for(outlet.flushed)
        ours.wake("traces")
    ours.shutdown()
    first, second = (line for line in said(caplog) if "do not go out" in line)
    assert "away" in first
    assert second == first


@pytest.mark.parametrize("result", [1, OSError("away")])
def test_a_connection_that_has_failed_is_given_up_at_once(
    sender: Callable[..., Sender], result: int | Exception
) -> None:
    outlet = Script(result)
    sender(outlet)
    wait_for(outlet.flushed)
    assert outlet.closed.wait(NEVER_S)


def test_a_connection_that_works_is_kept(sender: Callable[..., Sender]) -> None:
    outlet = Script(0, 0)
    ours = sender(outlet)
    wait_for(outlet.flushed)
    ours.wake("traces")
    wait_for(outlet.flushed)
    assert not outlet.closed.is_set()


# Shutdown.


def test_shutdown_flushes_once_more_and_closes(sender: Callable[..., Sender]) -> None:
    outlet = Script()
    ours = sender(outlet)
    thread = wait_for(outlet.flushed)
    ours.shutdown(NEVER_S)
    wait_for(outlet.flushed)
    assert outlet.closed.is_set()
    assert not thread.is_alive()


def test_shutdown_leaves_an_outlet_behind_that_does_not_come_back(
    sender: Callable[..., Sender],
) -> None:
    outlet = Script()
    outlet.may_go_on.clear()
    ours = sender(outlet)
    thread = wait_for(outlet.flushed)
    ours.shutdown(0.01)
    assert thread.is_alive()
    outlet.may_go_on.set()
    thread.join()
    # Too late for another flush, but not for giving up the connection.
    assert outlet.flushed.empty()
    assert outlet.closed.is_set()


def test_an_outlet_that_cannot_be_closed_does_not_keep_the_others_open(
    sender: Callable[..., Sender],
) -> None:
    class Stuck(Script):
        def close(self, timeout_s: float) -> None:
            raise OSError("busy")

    other = Script(signal="metrics")
    sender(Stuck(), other).shutdown(NEVER_S)
    assert other.closed.is_set()


# Real exporters and collectors.

Fault = Callable[[str, int], AbstractContextManager[object]]


def behaving(**manner: object) -> Fault:
    return lambda protocol, port: COLLECTORS[protocol](Manner(**manner), port)


UNAVAILABLE = {"status": HTTPStatus.SERVICE_UNAVAILABLE, "code": grpc.StatusCode.UNAVAILABLE}
EXHAUSTED = {
    "status": HTTPStatus.TOO_MANY_REQUESTS,
    "code": grpc.StatusCode.RESOURCE_EXHAUSTED,
}
FAULTS: dict[str, Fault] = {
    "absent": lambda protocol, port: nullcontext(),
    "refusing": lambda protocol, port: raw_server(b"", port),
    "no collector": lambda protocol, port: raw_server(b"220 smtp ready\r\n", port),
    "slow": behaving(holds=True),
    "closing in mid-call": behaving(closes=True),
    "bad request": behaving(status=HTTPStatus.BAD_REQUEST, code=grpc.StatusCode.INVALID_ARGUMENT),
    "broken": behaving(status=HTTPStatus.INTERNAL_SERVER_ERROR, code=grpc.StatusCode.INTERNAL),
    "unavailable": behaving(**UNAVAILABLE),
    "unavailable for long": behaving(**UNAVAILABLE, retry_after_s=3600),
    "exhausted": behaving(**EXHAUSTED),
    "exhausted, again at once": behaving(**EXHAUSTED, retry_after_s=0),
    "exhausted for long": behaving(**EXHAUSTED, retry_after_s=3600),
    "garbage": behaving(garbage=True),
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_collector_costs_the_spans_sent_to_it_and_a_good_one_gets_the_next(
    sender: Callable[..., Sender], fault: str, protocol: str
) -> None:
    port = free_port()
    outlet = Spans(to(f"http://127.0.0.1:{port}", protocol).span_exporter)
    outlet.put(3)
    with FAULTS[fault](protocol, port):
        ours = sender(outlet)
        assert outlet.tried.get() == 3
    with COLLECTORS[protocol](port=port) as collector:
        # The exporters take a moment to notice; nothing of ours is needed for it.
        while not collector.called.acquire(timeout=0.05):
            outlet.put()
            ours.wake("traces")
        assert collector.taken("traces")
        ours.shutdown(NEVER_S)
    assert ours.take_lost("traces") == outlet.failed


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_collector_costs_no_metrics(
    sender: Callable[..., Sender], fault: str, protocol: str
) -> None:
    port = free_port()
    with FAULTS[fault](protocol, port):
        outlet = metrics_to(to(f"http://127.0.0.1:{port}", protocol))
        ours = sender(outlet)
        outlet.tried.get()
    with COLLECTORS[protocol](port=port) as collector:
        while not collector.called.acquire(timeout=0.05):
            ours.wake("metrics")
        (metric,) = collector.taken("metrics")[0].resource_metrics[0].scope_metrics[0].metrics
        ours.shutdown(NEVER_S)
    assert metric.sum.data_points[0].as_int == 3
    assert ours.take_errors("metrics") > 0
    assert ours.take_lost("metrics") == 0


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_name_that_does_not_resolve_costs_the_spans(
    sender: Callable[..., Sender], protocol: str
) -> None:
    host = "collector.invalid"
    outlet = Spans(to(f"http://{host}:4317", protocol).span_exporter)
    outlet.put(2)
    ours = sender(outlet)
    assert outlet.tried.get() == 2
    ours.shutdown()
    assert ours.take_lost("traces") == 2


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_partial_success_costs_what_was_refused(
    sender: Callable[..., Sender], protocol: str
) -> None:
    with COLLECTORS[protocol](Manner(rejects=2)) as collector:
        there = to(collector.endpoint, protocol, timeout_s=30)
        outlet = Spans(there.span_exporter)
        outlet.put(5)
        ours = sender(outlet, metrics_to(there), rejected=there.take_rejected)
        collector.taken("traces")
        collector.taken("metrics")
        ours.shutdown(NEVER_S)
    assert (ours.take_lost("traces"), ours.take_errors("traces")) == (2, 0)
    # Of the first export, and of the last.
    assert (ours.take_lost("metrics"), ours.take_errors("metrics")) == (4, 0)


def test_an_answer_that_cannot_be_read_speaks_of_no_refusal(
    sender: Callable[..., Sender],
) -> None:
    with COLLECTORS["http/protobuf"](Manner(unreadable=True)) as collector:
        there = to(collector.endpoint, "http/protobuf", timeout_s=30)
        outlet = Spans(there.span_exporter)
        outlet.put()
        sender(outlet, rejected=there.take_rejected)
        assert outlet.tried.get() == 0
    assert there.take_rejected("traces") == 0


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_nothing_of_the_hot_path_waits_for_a_collector_that_holds_a_call(
    sender: Callable[..., Sender], protocol: str
) -> None:
    with COLLECTORS[protocol](Manner(holds=True)) as collector:
        outlet = Spans(to(collector.endpoint, protocol, timeout_s=600).span_exporter)
        outlet.put()
        ours = sender(outlet)
        collector.called.acquire()
        for _ in range(1000):
            ours.wake("traces")
        assert ours.take_lost("traces") == ours.take_errors("traces") == 0
        ours.shutdown(0.01)
        assert collector.in_call == 1


ENDING = """
import sys
from moriio_observed.telemetry.sender import Sender
from tests.unit.test_sender import Spans, to
outlet = Spans(to(*sys.argv[1:], timeout_s=600).span_exporter)
sender = Sender([outlet])
outlet.put()
sender.start()
sys.stdin.readline()
sender.shutdown(0.01)
"""


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_process_ends_cleanly_while_a_collector_holds_its_call(protocol: str) -> None:
    with (
        COLLECTORS[protocol](Manner(holds=True)) as collector,
        subprocess.Popen(
            [sys.executable, "-c", ENDING, collector.endpoint, protocol],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
        ) as process,
    ):
        collector.called.acquire()
        _, errors = process.communicate(b"\n")
        assert collector.in_call == 1
    assert process.returncode == 0, errors
    assert b"Traceback" not in errors


def test_settings_and_thread_import_no_opentelemetry_until_something_is_sent() -> None:
    script = (
        "import sys; from moriio_observed.config import Otlp;"
        "from moriio_observed.telemetry import destination, sender;"
        "destination.destination(Otlp(traces=True), {});"
        "print([name for name in sys.modules if name in ('opentelemetry', 'grpc', 'requests')])"
    )
    listed = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert listed.stdout == b"[]\n"


# Processes.


def test_in_a_forked_child_a_started_one_does_nothing(sender: Callable[..., Sender]) -> None:
    outlet = Script()
    ours = sender(outlet)
    wait_for(outlet.flushed)
    if (child := os.fork()) == 0:
        try:
            ours.wake("traces")
            ours.start()
            ours.shutdown()
            ours.take_lost("traces")
            os._exit(0 if threading.active_count() == 1 and outlet.flushed.empty() else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    ours.wake("traces")
    wait_for(outlet.flushed)


def test_one_that_was_not_started_before_a_fork_works_in_the_child() -> None:
    outlet = Script()
    ours = Sender([outlet])
    if (child := os.fork()) == 0:
        try:
            ours.start()
            wait_for(outlet.flushed)
            ours.shutdown(NEVER_S)
            os._exit(0 if outlet.closed.is_set() else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0


def send_one(endpoint: str, protocol: str) -> None:
    outlet = Spans(to(endpoint, protocol, timeout_s=30).span_exporter)
    ours = Sender([outlet])
    outlet.put()
    ours.start()
    ours.shutdown(NEVER_S)
    os._exit(ours.take_lost("traces"))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_process_sends_by_one_of_its_own(
    sender: Callable[..., Sender], method: str, protocol: str
) -> None:
    with COLLECTORS[protocol]() as collector:
        context = multiprocessing.get_context(method)
        child = context.Process(target=send_one, args=(collector.endpoint, protocol))
        child.start()
        collector.taken("traces")
        child.join()
    assert child.exitcode == 0
