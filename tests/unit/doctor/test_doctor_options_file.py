"""`vllm serve --config FILE`: the doctor reads the file as vLLM does."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from moriio_observed.doctor.command_line import split
from moriio_observed.doctor.engines import Engine
from moriio_observed.doctor.errors import InputError
from moriio_observed.doctor.findings import Severity
from moriio_observed.doctor.inputs import Given, engine_of_command, named
from tests.unit.doctor.patients import config, only, told

NESTED = f"""\
port: 9000
tensor_parallel_size: 8
disable-log-stats: true
enforce-eager: false
no-async-scheduling: true
lora-modules: [a=b, c=d]
compilation-config: {{cudagraph_mode: PIECEWISE}}
kv-transfer-config: {json.dumps(config())}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "vllm.yaml"
    path.write_text(NESTED)
    return path


def command(text: str) -> Engine:
    [engine] = named([engine_of_command(split(text), Given({}, version="0.32.0"))])
    return engine


def test_what_stands_in_the_file_holds_as_if_it_were_on_the_command_line(file: Path) -> None:
    engine = command(f"vllm serve m --config {file}")
    assert engine.transfer == config()
    assert engine.tensor_parallel == 8
    assert engine.options["port"] == "9000"
    assert engine.options["async-scheduling"] == "false"
    assert engine.has("disable-log-stats")
    assert engine.graph_mode == ("PIECEWISE", "compilation_config.cudagraph_mode")
    assert not engine.unread


def test_the_command_line_overrules_the_file_wherever_it_stands(file: Path) -> None:
    engine = command(f"vllm serve m --port 1 --config {file} -tp 2 -cc.cudagraph_mode=FULL")
    assert (engine.options["port"], engine.tensor_parallel) == ("1", 2)
    assert engine.graph_mode[0] == "FULL"


def test_a_configuration_may_stand_there_as_json_too(file: Path) -> None:
    file.write_text(f"kv-transfer-config: '{json.dumps(config())}'\n")
    assert command(f"vllm serve m --config {file}").transfer == config()


@pytest.mark.parametrize(
    ("words", "heads"), [("", 4), ("{other} ", 2)], ids=["from the file", "of the command line"]
)
def test_the_model_is_the_command_lines_else_the_files(
    file: Path, tmp_path: Path, words: str, heads: int
) -> None:
    for name, count in (("in-file", 4), ("other", 2)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(f'{{"num_key_value_heads": {count}}}')
    file.write_text(NESTED + f"model: {tmp_path / 'in-file'}\n")
    engine = command(f"vllm serve {words.format(other=tmp_path / 'other')}--config {file}")
    assert engine.model.kv_heads == heads


def test_a_file_that_is_elsewhere_is_a_note(tmp_path: Path) -> None:
    text = f"vllm serve m --config {tmp_path}/no.yaml --kv-transfer-config '{json.dumps(config())}'"
    found = only("config-file-unread", told(command(text)))
    assert found.severity is Severity.NOTE
    assert found.what.endswith("not read: there is no such file here")


def test_without_a_reader_of_yaml_it_is_a_note(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "moriio_observed.alerting.yaml_text", raising=False)
    monkeypatch.setitem(sys.modules, "yaml", None)
    text = f"vllm serve m --config {file} --kv-transfer-config '{json.dumps(config())}'"
    assert command(text).unread == "the module yaml is not installed here"


def test_a_file_behind_an_equals_sign_is_passed_over_by_vllm(file: Path) -> None:
    text = f"vllm serve m --config={file} --kv-transfer-config '{json.dumps(config())}'"
    engine = command(text)
    found = only("config-file-ignored", told(engine))
    assert found.severity is Severity.WARNING
    assert "in two words" in found.do
    assert "port" not in engine.options


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("vllm.yaml", "a: [", "is no YAML"),
        ("vllm.yaml", "a: 2001-99-99", "'2001-99-99' is no timestamp"),
        ("vllm.yaml", "[a]", "must be options by their names, such as port: 8000"),
        ("vllm.yaml", "", "must be options by their names"),
        ("vllm.yaml", "1: 2", "must be options by their names"),
        ("vllm.yaml", "kv-transfer-config: x", "--kv-transfer-config is not JSON"),
        ("vllm.yaml", "compilation-config: {a: 2001-01-01}", "cannot make JSON of it: .* date"),
        ("vllm.yaml", "compilation-config: {!!binary YQ==: 1}", "cannot make JSON of it: keys"),
        ("vllm.yaml", "port: 1", "has no --kv-transfer-config: an engine"),
        ("vllm.json", "{}", r"ends in \.yaml or \.yml"),
    ],
)
def test_a_file_that_vllm_would_not_take_is_one_clear_error(
    tmp_path: Path, name: str, content: str, says: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=says):
        command(f"vllm serve m --config {tmp_path / name}")
