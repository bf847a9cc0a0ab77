"""The settings: read once, typed, every mistake named in one error.

They stand under `kv_connector_extra_config["observed"]`, or in the environment as
`MORIIO_OBSERVED_` and the path in capitals. The config wins over the environment, the
environment over the default. Pure: it imports nothing but the standard library and the
catalogue's default buckets.
"""

from __future__ import annotations

import difflib
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from moriio_observed.telemetry.catalog import WAIT_BUCKETS

OUTER_PATH = "kv_connector_extra_config"
OBSERVED = "observed"
CONFIG_PATH = f"{OUTER_PATH}.{OBSERVED}"
ENVIRON_PREFIX = "MORIIO_OBSERVED_"

LONGEST_SHOWN = 200
"""How much of a bad value an error shows, characters."""

MOST_BUCKETS = 40
"""How many bounds the time histograms may have: each is a series per histogram and rank."""

_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
# Switches of the loopback, not settings.
_RESERVED_PREFIX = f"{ENVIRON_PREFIX}LOOPBACK"
# Kubernetes sets these in every pod beside a Service whose name begins with moriio-observed.
_SERVICE_LINK = re.compile(r"_SERVICE_(HOST|PORT)|_PORT_\d+_(TCP|UDP|SCTP)")
_SERVICE_ADDRESS = ("tcp://", "udp://", "sctp://")


class SettingsError(ValueError):
    """One or more settings are unknown or bad.

    Attributes:
        problems: One sentence per setting: its path, its value, what is allowed.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n  ".join(("bad moriio_observed settings:", *self.problems)))


@dataclass(frozen=True, slots=True)
class _Rule:
    """What a setting may be.

    Attributes:
        allowed: Says it to a person.
        read: Turns a config value into the setting; raises ValueError or TypeError.
        from_text: Turns the text of an environment variable into a config value.
    """

    allowed: str
    read: Callable[[Any], Any]
    from_text: Callable[[str], Any] = str


def _require(condition: bool, value: object) -> None:
    if not condition:
        raise ValueError(value)


def _read_flag(value: Any) -> bool:
    # Operators write strings here, and upstream reads them so too.
    return value if isinstance(value, bool) else _BOOLEANS[str(_text(value)).lower()]


def _text(value: Any) -> str:
    _require(isinstance(value, str) and value != "", value)
    return str(value)


def _number(value: Any) -> float:
    # bool is an int to Python, but a mistake here.
    _require(isinstance(value, int | float) and not isinstance(value, bool), value)
    _require(math.isfinite(value) and value >= 0, value)
    return float(value)


def _ratio(value: Any) -> float:
    _require(_number(value) <= 1, value)
    return float(value)


def _integer(value: Any) -> int:
    _require(isinstance(value, int) and _number(value) >= 0, value)
    return int(value)


def _port(value: Any) -> int:
    _require(_integer(value) < 1 << 16, value)
    return int(value)


def _read_buckets(value: Any) -> tuple[float, ...]:
    _require(isinstance(value, list | tuple) and 0 < len(value) <= MOST_BUCKETS, value)
    bounds = tuple(map(_number, value))
    _require(all(low < high for low, high in itertools.pairwise((0.0, *bounds))), value)
    return bounds


def _choice(*values: str) -> _Rule:
    return _Rule("one of " + ", ".join(values), lambda value: values[values.index(value)])


_FLAG = _Rule("true or false", _read_flag)
_TEXT = _Rule("text", _text)
_SECONDS = _Rule("seconds, 0 or more", _number, float)
_COUNT = _Rule("a whole number, 0 or more", _integer, int)
_PORT = _Rule("a port from 0 (any free one) to 65535", _port, int)
_RATIO = _Rule("a number from 0 to 1", _ratio, float)
_BUCKETS = _Rule(
    f"up to {MOST_BUCKETS} ascending seconds above 0"
    " (a list; separated by commas in the environment)",
    _read_buckets,
    lambda text: [float(part) for part in text.split(",")],
)


def _setting(default: object, rule: _Rule) -> Any:
    return field(default=default, metadata={"rule": rule})


@dataclass(frozen=True, kw_only=True, slots=True)
class Otlp:
    """The way out over OTLP.

    Attributes:
        traces: Whether to send spans; None: when an endpoint is set.
        metrics: Whether to send metrics; None: when an endpoint is set.
        endpoint: Where to; None: as the `OTEL_*` variables say.
        protocol: How; None: as the `OTEL_*` variables say.
        sample_ratio: Share of unremarkable steps and requests whose spans are kept, 0 to 1.
        slow_wait_s: Waits of at least this many seconds are always kept.
        hash_request_ids: Whether spans carry a hash instead of the request id.
    """

    traces: bool | None = _setting(None, _FLAG)
    metrics: bool | None = _setting(None, _FLAG)
    endpoint: str | None = _setting(None, _TEXT)
    protocol: str | None = _setting(None, _choice("grpc", "http/protobuf"))
    sample_ratio: float = _setting(0.01, _RATIO)
    slow_wait_s: float = _setting(0.1, _SECONDS)
    hash_request_ids: bool = _setting(default=False, rule=_FLAG)


@dataclass(frozen=True, kw_only=True, slots=True)
class Exporter:
    """The own Prometheus endpoint of each rank.

    Attributes:
        enabled: Whether there is one.
        host: The address it listens on.
        port: The port it listens on, rank n on the n-th above; 0: a free one.
        discovery_dir: The folder for the file that tells Prometheus the address; None: a folder
            `moriio_observed` among the temporary files.
    """

    enabled: bool = _setting(default=False, rule=_FLAG)
    host: str = _setting("127.0.0.1", _TEXT)
    port: int = _setting(0, _PORT)
    discovery_dir: str | None = _setting(None, _TEXT)


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Every setting; `docs/settings.md` tells what each does.

    Attributes:
        barrier: Where to wait for reads before attention.
        guard: What happens to an exposed request.
        allow_unsafe: Whether `barrier` may be `off`.
        wait_buckets: Upper bounds of the time histograms, in seconds, ascending.
        per_layer: Whether to count waits by layer.
        rank_label: Whether series that tell a straggler carry `tp_rank`.
        max_remotes: How many remote engines get a label value before the rest is "other".
        quarantine_limit_s: Seconds for which blocks are held at most because a read targets them.
        otlp: The way out over OTLP.
        exporter: The own Prometheus endpoint.
        given: Dotted paths of what the user set, by config or environment.
    """

    barrier: str = _setting("auto", _choice("auto", "upstream", "layer", "step", "adaptive", "off"))
    guard: str = _setting("report", _choice("report", "recompute", "fail"))
    allow_unsafe: bool = _setting(default=False, rule=_FLAG)
    wait_buckets: tuple[float, ...] = _setting(WAIT_BUCKETS, _BUCKETS)
    per_layer: bool = _setting(default=True, rule=_FLAG)
    rank_label: bool = _setting(default=True, rule=_FLAG)
    max_remotes: int = _setting(32, _COUNT)
    quarantine_limit_s: float = _setting(600.0, _SECONDS)
    otlp: Otlp = field(default_factory=Otlp)
    exporter: Exporter = field(default_factory=Exporter)
    given: frozenset[str] = frozenset()


_GROUPS: Mapping[str, type[Otlp | Exporter]] = {"otlp": Otlp, "exporter": Exporter}


def _rules(owner: type[Settings | Otlp | Exporter], prefix: str = "") -> dict[str, _Rule]:
    return {prefix + item.name: item.metadata["rule"] for item in fields(owner) if item.metadata}


_RULES: Mapping[str, _Rule] = {
    **_rules(Settings),
    **{
        path: rule
        for group, owner in _GROUPS.items()
        for path, rule in _rules(owner, f"{group}.").items()
    },
}
KEYS: tuple[str, ...] = tuple(_RULES)
_TOP_KEYS = frozenset(key.partition(".")[0] for key in KEYS)


def variable(path: str) -> str:
    """Return the name of the environment variable for a dotted path."""
    return ENVIRON_PREFIX + path.replace(".", "_").upper()


def parse(config: Mapping[str, Any] | None, environ: Mapping[str, str]) -> Settings:
    """Read the settings.

    Args:
        config: The value of `kv_connector_extra_config["observed"]`, None where there is none.
        environ: The environment. Variables set to nothing count as not set.

    Raises:
        SettingsError: Something is unknown or bad; it names all of it.
    """
    problems: list[str] = []
    values: dict[str, Any] = {}
    places: dict[str, str] = {}
    for entry in (*_from_environ(environ), *_from_config(config)):
        try:
            values[entry.path] = entry.read()
            places[entry.path] = entry.place
        except SettingsError as error:
            problems += error.problems
    if values.get("barrier") == "off" and not values.get("allow_unsafe"):
        problems.append(
            f"{places['barrier']} = 'off': requests are then answered from memory no read has"
            f" filled; allowed only with {CONFIG_PATH}.allow_unsafe = true"
        )
    if problems:
        raise SettingsError(problems)
    groups: dict[str, Any] = {
        name: owner(**_within(name, values)) for name, owner in _GROUPS.items()
    }
    top = {path: value for path, value in values.items() if "." not in path}
    return Settings(**top, **groups, given=frozenset(values))


def of_connector(extra_config: Mapping[str, Any], environ: Mapping[str, str]) -> Settings:
    """Read the settings of a connector from its ``kv_connector_extra_config``.

    Raises:
        SettingsError: See `parse`; also one of our settings, or a misspelt ``observed``, stands
            beside the settings of upstream, which ignores it.
    """
    problems = [
        f"{OUTER_PATH}.{key} = {shown(value)}: our settings stand under {CONFIG_PATH}"
        for key, value in extra_config.items()
        if key in _TOP_KEYS
        or (key != OBSERVED and difflib.get_close_matches(str(key).lower(), [OBSERVED], cutoff=0.8))
    ]
    try:
        settings = parse(extra_config.get(OBSERVED), environ)
    except SettingsError as error:
        raise SettingsError([*problems, *error.problems]) from None
    if problems:
        raise SettingsError(problems)
    return settings


@dataclass(frozen=True, slots=True)
class _Entry:
    """One setting as the user gave it: where, under which path, and what."""

    place: str
    path: str
    value: Any
    is_text: bool = False

    def read(self) -> Any:
        rule = _RULES.get(self.path)
        if rule is None:
            raise self._unknown()
        try:
            return rule.read(rule.from_text(self.value) if self.is_text else self.value)
        except (ValueError, TypeError, KeyError, OverflowError):
            raise self._refused(f"allowed is {rule.allowed}") from None

    def _unknown(self) -> SettingsError:
        if not self.is_text and self.path in ("", *_GROUPS):
            return self._refused("allowed is a mapping of settings")
        names = [variable(path) for path in KEYS] if self.is_text else KEYS
        nearest = _nearest(self.path.removeprefix(ENVIRON_PREFIX).lower())
        hint = "" if nearest is None else f" did you mean {names[KEYS.index(nearest)]}?"
        return self._refused(f"no such setting;{hint} allowed are {', '.join(names)}")

    def _refused(self, reason: str) -> SettingsError:
        return SettingsError([f"{self.place} = {shown(self.value)}: {reason}"])


def shown(value: object) -> str:
    """A value as errors show it: cut where it is long, its kind where it cannot be shown."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested too deeply, a number of too many digits
        return f"a {type(value).__name__} too large to show"
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"


def _nearest(path: str) -> str | None:
    # By the last part as well, for a key that stands in the wrong place.
    known = {**{key.rpartition(".")[2]: key for key in KEYS}, **{key: key for key in KEYS}}
    close = difflib.get_close_matches(path, known, n=1)
    return known[close[0]] if close else None


def _from_environ(environ: Mapping[str, str]) -> Iterator[_Entry]:
    paths = {variable(path): path for path in KEYS}
    for name, text in sorted(environ.items()):
        ours = name.startswith(ENVIRON_PREFIX) and not name.startswith(_RESERVED_PREFIX)
        if not ours or text == "" or _is_service_link(name, text):
            continue
        yield _Entry(name, paths.get(name, name), text, is_text=True)


def _is_service_link(name: str, text: str) -> bool:
    return bool(_SERVICE_LINK.search(name)) or (
        name.endswith("_PORT") and text.startswith(_SERVICE_ADDRESS)
    )


def _from_config(config: object, path: str = "") -> Iterator[_Entry]:
    if isinstance(config, Mapping):
        for key, value in config.items():
            nested = f"{path}.{key}" if path else str(key)
            if nested in _GROUPS:
                yield from _from_config(value, nested)
            elif value is not None or nested not in _OPTIONAL:
                yield _Entry(f"{CONFIG_PATH}.{nested}", nested, value)
    elif config is not None:
        yield _Entry(".".join(filter(None, (CONFIG_PATH, path))), path, config)


def _within(group: str, values: Mapping[str, Any]) -> dict[str, Any]:
    prefix = f"{group}."
    return {
        path.removeprefix(prefix): value
        for path, value in values.items()
        if path.startswith(prefix)
    }


# Settings whose default is "not set", which JSON can say as null.
_OPTIONAL = frozenset(
    f"{group}.{item.name}"
    for group, owner in _GROUPS.items()
    for item in fields(owner)
    if item.default is None
)
