"""The doctor's front door: routers, exit codes, JSON, and what a person reads."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from moriio_observed.cli import main
from moriio_observed.doctor.checks import router
from moriio_observed.doctor.findings import Severity
from moriio_observed.doctor.inputs import named
from moriio_observed.doctor.troubles import TROUBLES
from tests.unit.doctor.patients import CASES, ROOT, config, engine, serving

SOUND = json.dumps(config())


def router_says(command: str, *configs: dict[str, object]) -> list[tuple[str, Severity]]:
    engines = named(engine(each) for each in configs)
    return [(found.name, found.severity) for found in router.check(command.split(), engines)]


def test_vllms_moriio_proxy_does_read() -> None:
    assert router_says("python /opt/moriio_toy_proxy_server.py --port 1", config()) == []


@pytest.mark.parametrize(
    "command", ["python3 disagg_proxy_demo.py", "vllm-router --vllm-pd-disaggregation"]
)
def test_a_router_for_other_connectors_does_not(command: str) -> None:
    assert router_says(command, config()) == [("router-does-not-read", Severity.CRITICAL)]


@pytest.mark.parametrize(
    "command",
    ["vllm-router --kv-connector=moriio", "vllm-router --kv-connector moriio", "./our-router"],
)
def test_a_router_that_may_is_a_note_that_says_how_to_find_out(command: str) -> None:
    assert router_says(command, config()) == [("router-unproven", Severity.NOTE)]


def test_in_write_mode_the_router_does_not_matter() -> None:
    assert router_says("disagg_proxy_demo.py", config(read_mode=False)) == []


def test_vllms_own_defaults_on_both_sides_are_nothing_that_matters() -> None:
    sides = []
    for role in ("kv_producer", "kv_consumer"):
        extra = {"read_mode": True, "http_port": 8000, "proxy_ip": "10.0.0.1"}
        plain = {**config(role), "kv_connector_extra_config": extra}
        sides += ["--command", f"vllm serve m --kv-transfer-config '{json.dumps(plain)}'"]
    assert main(["doctor", "--vllm-version", "0.30.0", *sides]) == 0


def test_nothing_that_matters_is_exit_status_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--vllm-version", "0.32.0", "--kv-transfer-config", SOUND]) == 0
    assert capsys.readouterr().out.startswith("Nothing found that matters. (--notes shows 2 more")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--kv-transfer-config", "{"],
        ["--kv-transfer-config", SOUND, "--compilation-config", "{"],
        ["--kv-transfer-config", SOUND, "--vllm-version", "x"],
        ["--kv-transfer-config", SOUND, "--environ", "/nonexistent"],
        ["--kv-transfer-config", SOUND, "--kv-heads", "0"],
        ["--kv-transfer-config", "{}", "--kv-transfer-config", '{"kv_transfer_config": 3}'],
        ["--command", "vllm serve m"],
        ["--url", "localhost:8000"],
        ["--url", "http://[::1"],
        ["--url", "http://x/metrics?a=1"],
        ["--prometheus", "ftp://me:secret@x"],
        ["--kv-transfer-config", "nosuch.json"],
        ["--prometheus", "ftp://x"],
        ["--log", "/nonexistent"],
        ["--router", "'"],
    ],
    ids=str,
)
def test_bad_input_is_exit_status_2_and_one_clear_error(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", *arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("moriio-observed doctor: ")
    assert "Traceback" not in shown.err
    assert "secret" not in shown.err


def test_a_command_line_goes_behind_two_dashes_as_it_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["vllm", "serve", "m", "-tp", "2", "--disable-log-stats"]
    assert main(["doctor", "--", *words, "--kv-transfer-config", SOUND]) == 1
    assert "--disable-log-stats drops every number" in capsys.readouterr().out


def test_the_worst_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    log = str(CASES / "decode-stall.log")
    words = ["vllm", "serve", "m", "--disable-log-stats", "--kv-transfer-config", SOUND]
    main(["doctor", "--json", "--log", log, "--", *words])
    severities = [
        finding["severity"] for finding in json.loads(capsys.readouterr().out)["findings"]
    ]
    assert severities == sorted(severities, key=["critical", "warning", "note"].index)
    assert severities[:2] == ["critical", "warning"]


def test_every_finding_says_where_why_what_to_do_and_where_to_read_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    broken = config(read_mode="yes", handshake_port=1, notify_port=1, observed={"guard": "x"})
    main(["doctor", "--json", "--kv-transfer-config", json.dumps(broken)])
    for finding in json.loads(capsys.readouterr().out)["findings"]:
        assert all(finding[part] for part in ("what", "where", "why", "do", "see"))


def test_what_others_have_written_cannot_steer_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "d.log"
    log.write_text("Handshake with \x1b]0;owned\x07 failed\n")
    for form in ([], ["--json"]):
        main(["doctor", "--log", str(log), *form])
        assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize("text", [b"", b"\x1f\x8b\x08 packed", b"nginx: 200 OK\n"])
def test_a_log_of_somebody_elses_is_no_all_clear(
    text: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "d.log"
    log.write_bytes(text)
    assert main(["doctor", "--log", str(log)]) == 1
    assert "no line of the log is as vLLM writes it" in capsys.readouterr().out


def test_a_quiet_log_of_vllms_is_one_also_with_colours_and_a_prefix(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "d.log"
    log.write_text("pod-1 | \x1b[32mINFO\x1b[0m 08-12 09:20:44 [loggers.py:257] Engine 000\n")
    assert main(["doctor", "--log", str(log)]) == 0
    assert capsys.readouterr().out == "Nothing found that matters.\n"


def test_options_in_a_file_of_vllms_are_said_to_be_unread(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["vllm", "serve", "--config", "vllm.yaml", "--kv-transfer-config", SOUND]
    assert main(["doctor", "--notes", "--", *words]) == 0
    assert "options stand in a file that was not read" in capsys.readouterr().out


def test_the_version_of_a_running_server_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    bare = json.dumps(
        {
            "kv_connector": "MoRIIOConnector",
            "kv_role": "kv_consumer",
            "kv_connector_extra_config": {"read_mode": True, "http_port": 8000},
        }
    )
    pages = {"metrics": "vllm:x 1\n", "version": '{"version": "0.30.1"}'}
    with serving(**pages) as url:
        main(["doctor", "--url", url, "--kv-transfer-config", bare])
    assert "FULL step on vLLM 0.30.1" in " ".join(capsys.readouterr().out.split())


def test_an_environment_file_takes_the_place_of_this_process_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MORIIO_OBSERVED_BARRIER", "bad")
    file = tmp_path / "environ"
    file.write_bytes(b"PATH=/bin\0VLLM_USE_RUST_FRONTEND=1\0")
    main(["doctor", "--environ", str(file), "--kv-transfer-config", SOUND])
    out = capsys.readouterr().out
    assert "Rust front end" in out
    assert "MORIIO_OBSERVED_BARRIER" not in out


def test_every_document_and_heading_that_is_linked_exists() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "moriio_observed/doctor").rglob("*.py"))
    links = set(re.findall(r'"((?:docs/|README)[\w./#-]+)"', sources))
    links |= {f"alerts/runbooks/{alert}.md" for alert in re.findall(r'runbook\("(\w+)"\)', sources)}
    links |= {link for trouble in TROUBLES.values() for link in trouble.see}
    assert len(links) > 20
    for link in links:
        file, _, heading = link.partition("#")
        text = (ROOT / file).read_text()
        headings = {
            re.sub(r"[^\w\- ]", "", line.lstrip("# ")).strip().lower().replace(" ", "-")
            for line in text.splitlines()
            if line.startswith("#")
        }
        assert not heading or heading in headings, link
