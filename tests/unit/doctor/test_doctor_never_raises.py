"""Whatever is put in: a finding, or one clear error; never a traceback."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moriio_observed.config import KEYS
from moriio_observed.doctor import report
from moriio_observed.doctor.checks import log, of_engines, router, scrape
from moriio_observed.doctor.checks import server as of_server
from moriio_observed.doctor.command_line import split
from moriio_observed.doctor.errors import InputError
from moriio_observed.doctor.exposition import NotMetricsError, Page, parse
from moriio_observed.doctor.findings import Finding
from moriio_observed.doctor.incidents import group
from moriio_observed.doctor.inputs import (
    Given,
    compilation_of,
    engine_of_command,
    engine_of_config,
    environ_of,
    model_of,
    named,
)
from moriio_observed.doctor.log_lines import events
from moriio_observed.doctor.messages import MESSAGES
from moriio_observed.doctor.prometheus import Stored
from moriio_observed.doctor.server import Server
from moriio_observed.doctor.versions import CONFIG_KEYS, EXTRA_KEYS, GRAPH_MODES, KNOWN
from moriio_observed.telemetry.catalog import CATALOG

many = settings(max_examples=100, deadline=None)

words = st.text(max_size=12)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    words,
    st.sampled_from(["true", "kv_consumer", "kv_producer", "auto", "fail", "1e400", "٣", "6301"]),
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3)
)
versions = st.sampled_from([None, "0.99.0", "x", *(f"{facts}.0" for facts in KNOWN)])


def mapping(keys: Any, inner: Any = values) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.one_of(st.sampled_from(sorted(keys)), words), inner, max_size=8)


observed = st.one_of(values, mapping([key.partition(".")[0] for key in KEYS]))
extras = st.one_of(
    values,
    st.builds(
        lambda extra, ours: {**extra, "observed": ours},
        mapping(EXTRA_KEYS | {"connectors"}),
        observed,
    ),
    mapping(EXTRA_KEYS),
)
singles = st.builds(
    lambda name, role, extra, more: {
        **more,
        "kv_connector": name,
        "kv_role": role,
        "kv_connector_extra_config": extra,
    },
    st.sampled_from(["ObservedMoRIIOConnector", "MoRIIOConnector", "MoriioX", "", 3]),
    st.sampled_from(["kv_consumer", "kv_producer", "kv_both", None, []]),
    extras,
    mapping(CONFIG_KEYS),
)
transfers = st.one_of(
    mapping(CONFIG_KEYS),
    singles,
    st.builds(
        lambda children, role: {
            "kv_connector": "MultiConnector",
            "kv_role": role,
            "kv_connector_extra_config": {"connectors": children},
        },
        st.lists(st.one_of(singles, values), max_size=3),
        st.sampled_from(["kv_consumer", "kv_producer"]),
    ),
)
environs = st.dictionaries(
    st.sampled_from(
        [
            *("MORIIO_OBSERVED", "MORIIO_OBSERVED_GUARD", "MORIIO_OBSERVED_EXPORTER_PORT"),
            *("VLLM_MORIIO_TRANSFER_TIMEOUT_S", "VLLM_USE_V2_MODEL_RUNNER", "VLLM_PLUGINS"),
        ]
    ),
    words,
)


def shown(findings: list[Finding]) -> None:
    """Findings can be shown in both forms."""
    assert json.loads(report.as_json(findings))["findings"] is not None
    assert list(report.lines(findings, notes=True))


def clear(error: Exception) -> None:
    """An error says something."""
    assert str(error)


@many
@given(st.lists(transfers, max_size=3), st.one_of(st.none(), values), environs, versions)
def test_any_configurations(
    configs: list[dict[str, Any]], graphs: object, environ: dict[str, str], version: str | None
) -> None:
    given_ = Given(environ, {"cudagraph_mode": graphs}, version)
    engines = named(engine_of_config(json.dumps(config), given_) for config in configs)
    shown(list(of_engines(engines)))


@many
@given(st.one_of(words, st.text(alphabet='{}[]":,\\ntrue0x \u2028\r\n'), values.map(json.dumps)))
def test_any_text_for_a_configuration(text: str) -> None:
    for read in (lambda it: engine_of_config(it, Given({})), compilation_of):
        try:
            read(text)
        except InputError as error:
            clear(error)


ARGUMENTS = [
    *("vllm", "serve", "m", "-tp", "-dp", "-O3", "-O", "-cc", "--", "-", "=", "-cc.a.b", "-cc.a=1"),
    *("--kv-transfer-config", "--kv-transfer-config.kv_connector", "--port", "--no-x", "--a.b"),
    *("--compilation-config", "--enforce-eager", '{"kv_connector": "MoRIIOConnector"}', "8"),
    *(f"-cc.cudagraph_mode={mode}" for mode in GRAPH_MODES),
]


@many
@given(st.lists(st.one_of(st.sampled_from(ARGUMENTS), words), max_size=12))
def test_any_command_line(line: list[str]) -> None:
    try:
        engine = engine_of_command(line, Given({}))
    except InputError as error:
        clear(error)
    else:
        shown(list(of_engines(named([engine]))))
    shown(list(router.check(line, [])))


@many
@given(st.text())
def test_any_text_for_a_command_or_an_environment(text: str) -> None:
    for read in (environ_of, lambda it: engine_of_command(split(it), Given({}))):
        try:
            read(text)
        except InputError as error:
            clear(error)


@many
@given(mapping(["num_key_value_heads", "num_attention_heads", "text_config", "kv_lora_rank"]))
def test_any_model(config: dict[str, Any]) -> None:
    model_of(config)


heads = st.sampled_from(
    [
        "",
        "(Worker_TP0 pid=1) WARNING 08-12 09:20:44 [m.py:1] ",
        "(Worker_TP1 pid=2) ERROR 02-29 23:59:59 [m.py:1] ",
        "WARNING 99-99 99:99:99 [m.py:1] ",
        "INFO ٠٨-١٢ ٠٩:٢٠:٤٤ [m.py:1] ",
        "\x1b[31m(x pid=3) ERROR 01-01 00:00:00 [m.py:1] ",
    ]
)
messages = st.builds(
    lambda message, said: "".join(
        literal + text for literal, text in zip(message.literals, [*said, ""], strict=False)
    ),
    st.sampled_from(MESSAGES),
    st.lists(st.one_of(words, values.map(json.dumps), st.just("7")), min_size=4, max_size=4),
)


@many
@given(st.lists(st.builds(str.__add__, heads, st.one_of(messages, st.text())), max_size=12))
def test_any_log(lines: list[str]) -> None:
    shown(list(log.check("d.log", group(events(lines)))))


samples = st.tuples(
    st.one_of(st.sampled_from([f"moriio_{name}" for name in CATALOG]), words),
    st.dictionaries(st.sampled_from(["action", "role", "mode", "hook", "barrier"]), words),
    st.floats(),
)
lines = st.one_of(
    st.text(),
    st.text(alphabet='moriio_x{}=",\\ #0123456789.eE+-NaIf\n'),
    st.builds(
        lambda name, label, value: f'moriio_{name}{{action="{label}"}} {value}',
        st.sampled_from(sorted(CATALOG)),
        words,
        st.one_of(st.floats().map(str), words),
    ),
    st.sampled_from(["# HELP a", "# TYPE a histogram", "# TYPE a", "a_bucket{le=", "a{b=}", "{"]),
)


@many
@given(st.lists(lines, max_size=8).map("\n".join))
def test_any_page_of_metrics(text: str) -> None:
    try:
        page = parse(text)
    except NotMetricsError as error:
        clear(error)
    else:
        shown(list(of_server.check(Server("http://x", page), [])))


@many
@given(st.lists(samples, max_size=8).map(tuple), st.frozensets(words), st.booleans())
def test_any_numbers(counted: Any, names: frozenset[str], vllm: bool) -> None:
    server = Server("http://x", Page(counted))
    shown(list(of_server.check(server, [])))
    shown(list(scrape.check(Stored("http://p", names, vllm=vllm, targets=()), [server])))


def test_a_long_line_is_read_in_pieces_and_soon(tmp_path: Any) -> None:
    from moriio_observed.doctor.read import lines_of

    file = tmp_path / "d.log"
    file.write_bytes(b"\xff" * 1_000_000 + b"\nMoRIIO READ barrier timed out for layer ")
    assert group(events(lines_of(str(file), "--log"))) == []
    with pytest.raises(InputError):
        list(lines_of(str(tmp_path), "--log"))
