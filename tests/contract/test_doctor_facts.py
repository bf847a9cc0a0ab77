"""What the doctor says of each vLLM we support, held against that vLLM's sources."""

from __future__ import annotations

import ast
import functools
import json
import logging
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from moriio_observed.barrier import Era
from moriio_observed.doctor.checks.router import DOES_READ, OTHERS
from moriio_observed.doctor.command_line import read
from moriio_observed.doctor.engines import Engine
from moriio_observed.doctor.messages import MESSAGES
from moriio_observed.doctor.options_file import OPTION, words_of
from moriio_observed.doctor.versions import (
    ABORT_VARIABLE,
    CONFIG_KEYS,
    DEADLINES,
    DEFAULT_LEVEL,
    EXTRA_KEYS,
    GRAPH_MODE_OF_LEVEL,
    GRAPH_MODES,
    IGNORED_VARIABLES,
    LEGACY_CONFIG_KEYS,
    NUMBERED_GRAPH_MODES,
    PORTS,
    SUPPORTED,
    Facts,
)
from tests.trees import VERSIONS, source_tree

# The first use of a version downloads it.
pytestmark = [pytest.mark.contract, pytest.mark.timeout(1800)]

RELEASES = pytest.mark.parametrize("facts", SUPPORTED, ids=str)
PACKAGE = "vllm/distributed/kv_transfer/kv_connector/v1/moriio"
OPTIONS = """\
port: 9000
tensor_parallel_size: 8
seed: 7
revision: null
disable-log-stats: true
enforce-eager: false
compilation-config: {mode: 3}
kv_transfer_config: '{"kv_role": "kv_consumer"}'
"""
_PLACEHOLDER = re.compile(r"%(?:\.\d)?[sdrf]")


def tree(facts: Facts) -> Path:
    return source_tree(f"{facts}.0")


def moriio(facts: Facts, module: str) -> str:
    return (tree(facts) / PACKAGE / f"moriio_{module}.py").read_text()


@functools.cache
def said(facts: Facts) -> tuple[str, ...]:
    """Every text in the connector's sources, with %s for what is filled in."""
    modules = map(ast.parse, (path.read_text() for path in (tree(facts) / PACKAGE).glob("*.py")))
    return tuple(text for module in modules for text in _texts(module))


def _texts(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield _PLACEHOLDER.sub("%s", node.value)
        elif isinstance(node, ast.JoinedStr):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else "%s" for part in node.values
            )


def method(source: str, name: str) -> str:
    """A function's code; empty where there is none. Of several the last, the worker's."""
    found = [
        ast.unparse(node)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.name == name
    ]
    return found[-1] if found else ""


def test_every_release_that_we_support_is_known() -> None:
    assert {f"{facts}.0" for facts in SUPPORTED} == set(VERSIONS)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.text[:50])
def test_a_message_is_written_by_the_releases_it_names_and_no_other(message: object) -> None:
    assert isinstance(message, type(MESSAGES[0]))
    wanted = _PLACEHOLDER.sub("%s", message.text)
    writing = [str(facts) for facts in SUPPORTED if any(wanted in text for text in said(facts))]
    named = [str(facts) for facts in SUPPORTED if message.since <= str(facts) <= message.until]
    assert writing == (named if message.since else [])


@RELEASES
def test_the_barrier(facts: Facts) -> None:
    connector = moriio(facts, "connector")
    layer, step = (
        method(connector, name) for name in ("wait_for_layer_load", "_await_reads_issued_this_step")
    )
    waits, sees_full = "moriio_wrapper" in layer, "CUDAGraphMode.FULL" in step
    seen = {
        (False, False, False): None,
        (True, False, False): Era.LAYER,
        (True, True, True): Era.LAYER_AND_STEP,
        (False, True, False): Era.STEP,
    }[waits, bool(step), sees_full]
    assert seen is facts.era
    if waits:
        # No release's layer barrier waits under FULL.
        assert "cudagraph_runtime_mode == CUDAGraphMode.FULL:\n        return" in layer


@RELEASES
def test_how_a_read_is_given_up(facts: Facts) -> None:
    connector, common = moriio(facts, "connector"), moriio(facts, "common")
    assert facts.abort_key is ('"recv_abort_timeout"' in common)
    assert facts.abort_variable is (ABORT_VARIABLE in connector + common)
    assert facts.aborts is ("RDMA read TIMED OUT" in connector)
    if facts.abort_variable and not facts.abort_key:
        assert f'int(os.environ.get("{ABORT_VARIABLE}", "120"))' in connector
    assert facts.checks_deadlines is ("_positive_finite_timeout" in common)
    assert facts.reports_failed_reads is ("get_block_ids_with_load_errors" in connector)


@RELEASES
def test_the_keys_the_connector_looks_for(facts: Facts) -> None:
    source = "".join(path.read_text() for path in (tree(facts) / PACKAGE).glob("*.py"))
    looked_for = set(re.findall(r'extra_config(?:\.get\(\s*|\[\s*)"(\w+)"', source)) | set(
        re.findall(r'kv_connector_extra_config\[\s*"(\w+)"', source)
    )
    known = EXTRA_KEYS if facts.abort_key else EXTRA_KEYS - {"recv_abort_timeout"}
    assert looked_for == known - ({"host_ip"} if "host_ip" not in source else set())
    assert facts.needs_proxy is ('extra_config["proxy_ip"]' in source)
    assert 'extra_config["http_port"]' in source
    for name in IGNORED_VARIABLES.items():
        assert '"{}": "{}"'.format(*name) in source


@RELEASES
def test_the_keys_vllm_takes(facts: Facts) -> None:
    module = ast.parse((tree(facts) / "vllm/config/kv_transfer.py").read_text())
    [owner] = [
        node
        for node in module.body
        if isinstance(node, ast.ClassDef) and node.name == "KVTransferConfig"
    ]
    fields = {
        node.target.id
        for node in owner.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    assert fields == CONFIG_KEYS | (LEGACY_CONFIG_KEYS if facts.legacy_keys else frozenset())


@RELEASES
def test_defaults(facts: Facts) -> None:
    common = moriio(facts, "common")
    assert f"DEFAULT_TRANSFER_TIMEOUT = {DEADLINES['transfer_timeout']}" in common
    assert f"DEFAULT_DEFER_TIMEOUT = {DEADLINES['defer_timeout']}" in common
    if facts.abort_key:
        assert f"DEFAULT_RECV_ABORT_TIMEOUT = {DEADLINES['recv_abort_timeout']}" in common
    assert f'DEFAULT_HANDSHAKE_PORT = "{PORTS["handshake_port"]}"' in common
    assert f'DEFAULT_NOTIFY_PORT = "{PORTS["notify_port"]}"' in common
    assert 'in ("true", "1")' in common


@RELEASES
def test_ranks_listen_on_other_ports_than_are_dialled(facts: Facts) -> None:
    connector, common = moriio(facts, "connector"), moriio(facts, "common")
    assert "tp_size: int = 1) -> int:\n    return (dp_rank) * tp_size + tp_rank" in common
    assert "get_port_offset(self.dp_rank, self.tp_rank)" in connector
    assert "get_port_offset(dp_rank, tp_rank)" in common
    assert "get_port_offset(remote_dp_rank, dial_tp_rank, remote_tp_size)" in connector


@RELEASES
def test_graph_modes_and_what_the_optimization_levels_set(facts: Facts) -> None:
    config = (tree(facts) / "vllm/config/vllm.py").read_text()
    for level, mode in GRAPH_MODE_OF_LEVEL.items():
        of_level = config.partition(f"OPTIMIZATION_LEVEL_0{level} = ")[2].partition("\n}\n")[0]
        assert f"CUDAGraphMode.{mode}," in of_level
    default = f"optimization_level: OptimizationLevel = OptimizationLevel.O{DEFAULT_LEVEL}"
    assert default in config
    modes = (tree(facts) / "vllm/config/compilation.py").read_text()
    body = modes.partition("class CUDAGraphMode(enum.Enum):")[2].partition("    def ")[0]
    assert set(re.findall(r"^    ([A-Z_]+) = ", body, re.MULTILINE)) == GRAPH_MODES.keys()
    for number, mode in enumerate(NUMBERED_GRAPH_MODES):
        assert f"    {mode} = {number}\n" in body


@RELEASES
def test_a_file_of_options_says_what_it_says_to_vllm(facts: Facts, tmp_path: Path) -> None:
    source = (tree(facts) / "vllm/utils/argparse_utils.py").read_text()
    assert f"if '{OPTION}' in args:" in method(source, "parse_args")
    scope: dict[str, Any] = {"Any": Any, "json": json, "logger": logging, "yaml": yaml}
    for name in ("load_config_file", "_pull_args_from_config"):
        exec(method(source, name), scope)  # noqa: S102  (vLLM's own code)
    vllm = SimpleNamespace(_option_string_actions={"--no-enforce-eager"})
    vllm.load_config_file = partial(scope["load_config_file"], vllm)
    file = tmp_path / "vllm.yaml"
    file.write_text(OPTIONS)
    words = ["serve", "m", "--port", "1", OPTION, str(file), "-tp", "2"]
    theirs = read(scope["_pull_args_from_config"](vllm, words))
    ours = read(words, words_of(str(file)))
    assert ours.options.pop("config") == str(file)
    assert ours.transfer == theirs.transfer == {"kv_role": "kv_consumer"}
    assert ours.compilation == theirs.compilation == {"mode": 3}
    assert (
        (ours.model, ours.options["port"]) == (theirs.model, theirs.options["port"]) == ("m", "1")
    )
    for option in ("tensor-parallel-size", "seed", "revision"):
        assert ours.options[option] == theirs.options[option]
    flags = [
        Engine("", {}, options=line.options).has(flag)
        for flag in ("enforce-eager", "disable-log-stats")
        for line in (ours, theirs)
    ]
    assert flags == [False, False, True, True]


@RELEASES
def test_which_model_runner_is_the_default(facts: Facts) -> None:
    choice = method((tree(facts) / "vllm/config/vllm.py").read_text(), "use_v2_model_runner")
    assert choice.endswith("return True")
    # Where it is not, only models that stand in a list run on it.
    assert facts.runner_v2 is ("if not self._is_default_v2_model_runner_model()" not in choice)


@RELEASES
def test_proxies_that_do_and_do_not_pass_on_what_a_prefill_engine_answers(facts: Facts) -> None:
    examples = tree(facts) / "examples"
    ours = next(examples.rglob(f"{DOES_READ}.py")).read_text()
    assert 'TRANSFER_TYPE == "READ"' in ours
    for name in OTHERS:
        for proxy in examples.rglob(f"{name}.py"):
            assert 'response["kv_transfer_params"]' not in proxy.read_text()
