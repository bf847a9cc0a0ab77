import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from moriio_observed.cli import main
from moriio_observed.traces.sink import Sink
from moriio_observed.traces.store import DEMO_FOLDER, NEWEST
from tests.unit.otel_spans import (
    EPOCH_NS,
    MS,
    OTHER_TRACE,
    TRACE,
    TRACEPARENT,
    line_of,
    send_llm_request,
)

TRACES = [
    sys.executable,
    "-c",
    "import sys; from moriio_observed.cli import main; sys.exit(main())",
    "traces",
]
THIRD_TRACE = "4bf92f35" + "0" * 23 + "1"
SLOW = {"endTimeUnixNano": str(EPOCH_NS + 200 * MS)}
LATER = {
    "startTimeUnixNano": str(EPOCH_NS + 900 * MS),
    "endTimeUnixNano": str(EPOCH_NS + 901 * MS),
}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Nothing of whoever runs the tests is looked at."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path / "state" / "moriio-observed" / "traces"


@pytest.fixture
def show(home, capsys):
    """Keep these lines, and return what the command prints and its status."""

    def run(*lines, options=(), folder=home):
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / NEWEST).open("a") as file:
            file.writelines(
                line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines
            )
        status = main(["traces", *options])
        out, err = capsys.readouterr()
        return status, out + err

    return run


def request(name: str, trace_id: str = TRACE, **more) -> dict:
    attributes = [{"key": "moriio.request_id", "value": {"stringValue": name}}]
    return line_of(trace_id, attributes=attributes, **more)


# Which trace


def test_the_last_trace_with_slow_reads_comes_before_later_ones(show):
    lines = line_of(**SLOW), line_of(OTHER_TRACE, **LATER)
    for options in ([], ["--last"]):
        status, text = show(*lines, options=options)
        assert status == 0
        assert text.startswith(
            f"the latest trace in which reads were slow or failed\ntrace {TRACE}\n"
        )


def test_without_slow_reads_the_last_trace_is_shown_and_it_says_so(show):
    _, text = show(line_of(), line_of(OTHER_TRACE, **LATER))
    assert text.startswith(
        f"the latest trace; none here has slow or failed reads\ntrace {OTHER_TRACE}"
    )


def test_what_is_slow_can_be_said(show):
    _, text = show(line_of(**SLOW), line_of(OTHER_TRACE, **LATER), options=["--slow", "0.5"])
    assert f"trace {OTHER_TRACE}" in text


@pytest.mark.parametrize("wanted", [TRACE, TRACE.upper(), TRACE[:9], TRACEPARENT])
def test_a_trace_is_found_by_its_id_its_beginning_or_a_traceparent(show, wanted):
    _, text = show(
        line_of(), line_of(OTHER_TRACE, **SLOW), line_of(THIRD_TRACE), options=["--trace", wanted]
    )
    assert text.startswith(f"the trace you asked for\ntrace {TRACE}\n")


def test_an_ambiguous_beginning_is_an_error_with_the_candidates(show):
    status, text = show(line_of(), line_of(THIRD_TRACE), options=["--trace", "4bf9"])
    assert status == 1
    assert TRACE in text
    assert THIRD_TRACE in text


@pytest.mark.parametrize("wanted", ["ffff", "", "\x1b[2J"])
def test_an_unknown_trace_is_an_error_that_says_what_to_do(show, wanted):
    status, text = show(line_of(), options=["--trace", wanted])
    assert status == 1
    assert "--list" in text
    assert "\x1b" not in text


@pytest.mark.parametrize("wanted", ["cmpl-7", "before-cmpl-7-behind"])
def test_a_trace_is_found_by_a_request_of_it(show, wanted):
    lines = request("cmpl-7"), request("cmpl-8", OTHER_TRACE, **SLOW)
    _, text = show(*lines, options=["--request", wanted])
    assert f"trace {TRACE}" in text


def test_an_unknown_request_is_an_error_that_says_what_may_be(show):
    for wanted in ("cmpl-9", ""):
        status, text = show(request("cmpl-7"), options=["--request", wanted])
        assert status == 1
        assert "otlp.hash_request_ids" in text


def test_the_step_that_waited_for_it_in_another_requests_trace_is_shown_with_its_barriers(show):
    step = line_of(OTHER_TRACE, "moriio.step", 5)
    barrier = line_of(OTHER_TRACE, "moriio.barrier", 6, parentSpanId=f"{5:016x}", **SLOW)
    stranger = line_of(OTHER_TRACE, "stranger", 7)
    read = line_of(links=[{"traceId": OTHER_TRACE, "spanId": f"{5:016x}"}])
    _, text = show(step, barrier, stranger, read, options=["--trace", TRACE])
    below = text.partition(f"linked from here, in trace {OTHER_TRACE}\n")[2]
    assert "moriio.step" in below
    assert "moriio.barrier" in below
    assert "stranger" not in text


# Where from


def test_no_traces_is_an_error_that_says_where_it_looked_and_what_to_do(home, capsys):
    assert main(["traces"]) == 1
    error = capsys.readouterr().err
    for told in (str(home), str(DEMO_FOLDER), "traces --serve", "make demo", "--from"):
        assert told in error


def test_a_place_that_is_not_there_is_an_error(capsys):
    assert main(["traces", "--from", "nowhere"]) == 1
    assert "nowhere does not exist" in capsys.readouterr().err


def test_a_file_that_is_no_otlp_is_an_error_that_says_so(tmp_path, capsys):
    (tmp_path / "notes").write_text("not\ntraces\n")
    assert main(["traces", "--from", "notes"]) == 1
    assert "2 lines there are not OTLP JSON" in capsys.readouterr().err


def test_the_demos_traces_are_found_where_the_demo_ran(show):
    _, text = show(line_of(), folder=Path(DEMO_FOLDER))
    assert f"trace {TRACE}" in text


def test_a_file_of_the_collectors_is_read(show, home):
    show(line_of(**SLOW))
    (home / NEWEST).rename("collector.json")
    _, text = show(line_of(OTHER_TRACE, **SLOW), options=["--from", "collector.json"])
    assert f"trace {TRACE}" in text


@pytest.mark.parametrize("options", [[], ["--list"]])
def test_what_could_not_be_read_is_counted(show, options):
    _, text = show(line_of(), "{torn " + TRACE + "\n", options=options)
    assert "left out, because unreadable (torn, or not OTLP JSON): 1" in text


# The list


def test_the_list_has_a_line_for_each_trace_the_latest_last(show):
    _, text = show(line_of(OTHER_TRACE, **LATER), line_of(**SLOW), options=["--list"])
    heading, first, second = text.splitlines()
    assert heading.split() == ["began", "(UTC)", "trace", "took", "spans", "fail", "slow"]
    assert first.split() == f"2026-09-21 14:13:20 {TRACE} 200.0 ms 1 - 1".split()
    assert second.split() == f"2026-09-21 14:13:20 {OTHER_TRACE} 1.0 ms 1 - -".split()
    assert max(map(len, text.splitlines())) <= 80


def test_a_long_list_is_of_the_latest_and_counts_the_others(show):
    lines = [line_of(f"{number:032x}") for number in range(1, 41)]
    _, text = show(*lines, options=["--list"])
    assert "and 10 earlier ones: --all" in text
    assert f"{40:032x}" in text
    _, text = show(options=["--list", "--all"])
    assert len(re.findall(r"[0-9a-f]{32}", text)) == 40


# The terminal


def test_a_pipe_gets_no_colors(show):
    _, text = show(line_of(**SLOW))
    assert "\x1b" not in text
    assert "▲" in text


def run_apart(*options: str, **environ: str) -> subprocess.CompletedProcess[bytes]:
    command = [*TRACES, *options]
    return subprocess.run(
        command, env={**os.environ, **environ}, capture_output=True, check=True, timeout=120
    )


def test_a_terminal_without_unicode_gets_ascii(show):
    show(line_of(name="ä", **SLOW))
    show(line_of(**SLOW))
    out = run_apart("--all", PYTHONIOENCODING="ascii").stdout.decode("ascii")
    assert " ! " in out
    assert "#" in out
    assert r"\xe4" in out


def test_verbose_and_all_and_whole_axis_reach_the_page(show):
    barriers = [line_of(name="moriio.barrier", span_id=number, **LATER) for number in range(1, 20)]
    _, text = show(*barriers, line_of(name="llm_request", span_id=99), options=["--all"])
    assert len(re.findall("moriio.barrier +", text)) == 19
    assert "bars show" in text
    _, text = show(options=["--verbose", "--whole-axis"])
    assert f"span {99:016x}" in text
    assert "bars show" not in text


# The sink


def test_serve_says_what_to_set_takes_spans_and_ends_well(home):
    with subprocess.Popen(
        [*TRACES, "--serve", "--port", "0"], stdout=subprocess.PIPE, text=True
    ) as child:
        told = "".join(
            iter(
                child.stdout.readline,
                "Then look: moriio-observed traces --last. Ctrl-C ends this.\n",
            )
        )
        assert str(home) in told
        assert "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf" in told
        url = re.search(r"OTEL_EXPORTER_OTLP_ENDPOINT=(\S+)", told)[1]
        assert f"--otlp-traces-endpoint {url}/v1/traces\n" in told
        send_llm_request(url)
        child.send_signal(signal.SIGINT)
        assert "1 spans received" in child.stdout.read()
    assert child.returncode == 0
    assert "llm_request" in (home / NEWEST).read_text()


def test_serve_on_another_folder_says_how_to_look_there(tmp_path):
    place = tmp_path / "spans of today"
    with subprocess.Popen(
        [*TRACES, "--serve", "--to", place, "--port", "0"], stdout=subprocess.PIPE, text=True
    ) as child:
        said = next(line for line in child.stdout if line.startswith("Then look"))
        child.send_signal(signal.SIGINT)
    assert f"traces --last --from '{place}'." in said


def test_serve_on_a_port_in_use_is_a_clear_error(tmp_path, capsys):
    with Sink(tmp_path / "other") as sink:
        port = sink.url.rpartition(":")[2]
        assert main(["traces", "--serve", "--port", port]) == 1
    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err


@pytest.mark.parametrize("port", ["-1", "70000"])
def test_serve_on_a_port_that_cannot_be_is_a_clear_error(port, capsys):
    assert main(["traces", "--serve", "--port", port]) == 1
    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err


def test_serve_keeps_the_spans_where_it_is_told(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main(["traces", "--serve", "--port", "0", "--to", "file/below"]) == 1
    assert "cannot keep traces in file/below" in capsys.readouterr().err
