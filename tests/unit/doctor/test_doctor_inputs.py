"""Command lines, JSON, environments and versions as people give them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from moriio_observed.doctor.command_line import read, split
from moriio_observed.doctor.engines import Engine, Model
from moriio_observed.doctor.errors import InputError
from moriio_observed.doctor.inputs import (
    Given,
    compilation_of,
    engine_of_command,
    engine_of_config,
    environ_of,
    model_of,
    named,
    version_given,
)
from moriio_observed.doctor.json_text import parse_object
from moriio_observed.doctor.versions import minor_of
from tests.unit.doctor.patients import CASES, config, engine

CONFIG = json.dumps(config())
NOTHING = Given({})


def command(text: str) -> Engine:
    return engine_of_command(split(text), NOTHING)


def test_a_command_line_as_it_stands_in_a_script() -> None:
    served = command(
        "VLLM_USE_V2_MODEL_RUNNER=0 vllm serve org/model \\\n"
        "  --tensor-parallel-size 8 -dp=2 --disable-log-stats \\\n"
        f"  --port 9000 --kv_transfer_config '{CONFIG}' -cc.cudagraph_mode=PIECEWISE"
    )
    assert served.environ == {"VLLM_USE_V2_MODEL_RUNNER": "0"}
    assert (served.tensor_parallel, served.local_data_parallel) == (8, 2)
    assert served.has("disable-log-stats")
    assert served.options["port"] == "9000"
    assert served.transfer == config()
    assert served.graph_mode == ("PIECEWISE", "compilation_config.cudagraph_mode")


SCRIPT = f"""#!/bin/bash
# don't run it twice
export MORIIO_OBSERVED=1
PORT=9000
ulimit -n 65536

numactl --cpunodebind=0 vllm serve org/model --port ${{PORT}} \\
  --kv-transfer-config '{CONFIG.replace("8000", '"$PORT"')}' 2>&1 | tee decode.log &
"""


def test_a_whole_script_with_exports_comments_and_variables() -> None:
    served = command(SCRIPT)
    assert served.environ["MORIIO_OBSERVED"] == "1"
    assert served.options["port"] == "9000"
    assert served.connectors[0].port("http_port") == 9000


def test_variables_of_a_container_are_the_engines() -> None:
    line = read(split("docker run -e VLLM_USE_V2_MODEL_RUNNER=0 --rm image vllm serve m"))
    assert line.environ == {"VLLM_USE_V2_MODEL_RUNNER": "0"}


@pytest.mark.parametrize(
    "image", ["vllm/vllm-openai:v0.32.0", "registry.example:5000/x/vllm-openai-rocm@sha256:0a"]
)
def test_the_image_of_vllm_is_its_program(image: str) -> None:
    words = f"docker run -e A=1 -p 8000:8000 {image} --model m --port 9000"
    line = read(split(words))
    assert (line.environ, line.model, line.options["port"]) == ({"A": "1"}, "m", "9000")


def test_a_program_that_is_named_behind_an_image_is_the_one() -> None:
    assert read(split("docker run vllm/vllm-openai vllm serve m")).model == "m"


def test_a_variable_that_nothing_sets_keeps_its_name() -> None:
    assert read(["serve", "m", "--port", "$PORT"]).options["port"] == "$PORT"


def test_the_module_form_and_a_flag_before_the_model() -> None:
    words = split(
        "env A=1 python -m vllm.entrypoints.openai.api_server --enforce-eager --model m"
        f" --kv-transfer-config='{CONFIG}'"
    )
    line = read(words)
    assert line.model == "m"
    assert line.environ == {"A": "1"}
    assert "enforce-eager" in line.options


def test_a_flag_does_not_take_the_next_word() -> None:
    assert read(["serve", "--enforce-eager", "m"]).model == "m"


def test_what_is_given_key_by_key_wins_whole_as_in_vllm() -> None:
    line = read(
        [
            *("serve", "m", "--kv-transfer-config", '{"kv_role": "kv_both"}'),
            *("--kv-transfer-config.kv_connector", "X"),
            *("--kv-transfer-config.kv_connector_extra_config.read_mode=true",),
        ]
    )
    assert line.transfer == {"kv_connector": "X", "kv_connector_extra_config": {"read_mode": True}}


@pytest.mark.parametrize(
    ("level", "mode"), [("-O0", "NONE"), ("-O=1", "PIECEWISE"), ("-O 3", "FULL_AND_PIECEWISE")]
)
def test_optimization_levels_set_the_graph_mode(level: str, mode: str) -> None:
    assert command(f"vllm serve m {level} --kv-transfer-config '{CONFIG}'").graph_mode[0] == mode


def test_no_in_front_switches_off() -> None:
    served = command(f"vllm serve m --no-async-scheduling --kv-transfer-config '{CONFIG}'")
    assert served.options["async-scheduling"] == "false"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("vllm serve m --kv-transfer-config '{", "quote"),
        ("vllm serve m --kv-transfer-config", "wants a value"),
        ("vllm serve m", "no --kv-transfer-config: .* Without -- in front"),
        ("vllm serve --config no.yaml", r"--config file was not read: there is no such"),
        ("vllm serve m --port 1 & vllm serve m --port 2", "starts two engines"),
        ("docker run image", "not one of vLLM's"),
        ("vllm serve m --kv-transfer-config x", "--kv-transfer-config is not JSON"),
        (f"vllm serve m -cc {'3' * 5000}", "-cc cannot be read: Exceeds the limit"),
        ("vllm serve m -cc.a=1 -cc.a.b=2 --kv-transfer-config {}", "given as 1 before"),
    ],
)
def test_a_command_line_that_cannot_be_read_is_one_clear_error(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        command(text)


@pytest.mark.parametrize(
    ("text", "line", "caret_under", "hint"),
    [
        ('{"a": True}', 1, "T", "true, false and null"),
        ("{'a': 1}", 1, "'", "double quotes"),
        (
            '{"a": \N{LEFT DOUBLE QUOTATION MARK}b"}',
            1,
            "\N{LEFT DOUBLE QUOTATION MARK}",
            "straight",
        ),
        ('{"a": $PORT}', 1, "$", "a variable of the shell"),
        ('{"a": 1,\n "b" 2}', 2, "2", ""),
        ('{"a": 1,}', 1, "}", "no comma"),
        ("", 1, "", "there is nothing"),
    ],
)
def test_malformed_json_is_pointed_at(text: str, line: int, caret_under: str, hint: str) -> None:
    with pytest.raises(InputError) as raised:
        parse_object(text, "--kv-transfer-config")
    said, excerpt, caret = str(raised.value).split("\n")
    assert f"line {line}, column" in said
    assert hint in caret
    # Python says of a comma too many either the comma or the brace.
    under = excerpt[caret.index("^") :][:1]
    assert under == caret_under or (caret_under == "}" and under == ",")


def test_a_mistake_far_into_a_long_line_is_shown_with_its_surroundings() -> None:
    with pytest.raises(InputError) as raised:
        parse_object('{"a": "' + "x" * 500 + '", "b": nil}', "it")
    _, excerpt, caret = str(raised.value).split("\n")
    assert excerpt[caret.index("^")] == "n"
    assert len(excerpt) < 100


@pytest.mark.parametrize("text", ["[1]", "3", '"{}"', "null"])
def test_json_that_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="must be a JSON object"):
        parse_object(text, "it")


def test_json_nested_without_end_is_an_error_not_a_crash() -> None:
    with pytest.raises(InputError):
        parse_object('{"a":' * 100_000, "it")


def test_a_file_may_hold_the_whole_configuration() -> None:
    whole = engine_of_config(str(CASES / "read-full-and-piecewise.json"), NOTHING)
    assert whole.transfer["kv_role"] == "kv_consumer"
    assert whole.compilation == {"cudagraph_mode": "FULL_AND_PIECEWISE"}


def test_a_graph_mode_alone_is_a_compilation_configuration() -> None:
    assert compilation_of("piecewise") == {"cudagraph_mode": "piecewise"}
    with pytest.raises(InputError, match="--compilation-config"):
        compilation_of("halfwise")


def test_environments_as_env_and_proc_print_them() -> None:
    wanted = {"VLLM_A": "1", "MORIIO_B": "x=y"}
    assert environ_of("VLLM_A=1\nMORIIO_B=x=y\nnothing\n") == wanted
    assert environ_of("VLLM_A=1\0MORIIO_B=x=y\0") == wanted
    assert environ_of('  export VLLM_A="1"\nMORIIO_B=x=y') == wanted
    assert environ_of('declare -x VLLM_A="1"\ndeclare -x MORIIO_B="x=y"') == wanted


def test_a_file_that_is_no_environment_is_one_clear_error() -> None:
    with pytest.raises(InputError, match="NAME=value"):
        environ_of("VLLM_A: 1\n")


def test_variables_of_a_command_line_win_over_the_environment() -> None:
    served = engine_of_command(
        split(f"A=2 vllm serve m --kv-transfer-config '{CONFIG}'"), Given({"A": "1", "B": "1"})
    )
    assert served.environ == {"A": "2", "B": "1"}


@pytest.mark.parametrize(
    ("text", "minor"),
    [
        ("0.30.0", (0, 30)),
        ("v0.31.1rc2.dev3+rocm", (0, 31)),
        ("0.3", (0, 3)),
        ("latest", None),
        ("0", None),
    ],
)
def test_versions(text: str, minor: tuple[int, int] | None) -> None:
    assert minor_of(text) == minor


def test_a_version_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match=r"such as 0\.30\.0"):
        version_given("newest")


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ({"num_key_value_heads": 8, "num_attention_heads": 64}, Model(8)),
        ({"num_attention_heads": 16}, Model(16)),
        ({"text_config": {"num_key_value_heads": 4}}, Model(4)),
        ({"kv_lora_rank": 512, "num_key_value_heads": 128}, Model(128, latent=True)),
        ({"num_key_value_heads": "many"}, Model()),
    ],
)
def test_what_a_models_configuration_says(text: dict[str, object], model: Model) -> None:
    assert model_of(text) == model


def test_a_model_that_is_a_folder_here_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"num_key_value_heads": 2}')
    served = command(f"vllm serve {tmp_path} --kv-transfer-config '{CONFIG}'")
    assert served.model == Model(2)


def test_engines_are_called_by_their_role() -> None:
    engines = [engine(config()), engine(config("kv_producer")), engine(config())]
    names = [each.name for each in named(engines)]
    assert names == ["decode engine 1", "prefill engine", "decode engine 2"]
