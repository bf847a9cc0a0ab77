"""A file of options, as `vllm serve --config FILE` takes it."""

from __future__ import annotations

import json
from typing import Any

from moriio_observed.config import shown
from moriio_observed.doctor.errors import InputError
from moriio_observed.doctor.read import is_file, text_of

OPTION = "--config"
ENDINGS = (".yaml", ".yml")
PASSED_OVER = "vLLM looks for --config as a word of its own"


class UnreadError(Exception):
    """A file cannot be read here, where vLLM may well read it; the message says why."""


def words_of(path: str) -> list[str]:
    """The words of a command line that say the same.

    Raises:
        InputError: It is none that vLLM would take.
        UnreadError: It is not here, or nothing here reads YAML.
    """
    if not is_file(path):
        raise UnreadError("there is no such file here")
    try:
        from moriio_observed.alerting.yaml_text import NotYamlError, from_yaml
    except ModuleNotFoundError as error:
        raise UnreadError(f"the module {error.name} is not installed here") from None
    name = f"{OPTION} {shown(path)}"
    if not path.endswith(ENDINGS):
        raise InputError(f"{name}: vLLM takes only a file whose name ends in .yaml or .yml")
    try:
        options = from_yaml(text_of(path, OPTION))
    except NotYamlError as error:
        raise InputError(f"{name} is no YAML: {error}") from None
    if not isinstance(options, dict) or not all(isinstance(key, str) for key in options):
        raise InputError(f"{name}: must be options by their names, such as port: 8000")
    try:
        return [f"--{key}={_text(value)}" for key, value in options.items()]
    except TypeError as error:
        raise InputError(f"{name}: vLLM cannot make JSON of it: {error}") from None


def _text(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case dict():
            return json.dumps(value)
        case list():
            return " ".join(map(str, value))
        case _:
            return str(value)
