"""The fault file: JSON, read again whenever it changes. Its format: docs/loopback.md."""

import difflib
import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from moriio_observed.log import get_logger
from moriio_observed.loopback.enums import StatusCode
from moriio_observed.loopback.faults import NEVER, Plan, Rule

logger = get_logger(__name__)

_SIDES = ("consumer", "producer")


class FaultFileError(ValueError):
    """The fault file is wrong; the text names every wrong key."""


def parse(text: str) -> Plan:
    """Read the text of a fault file.

    Raises:
        FaultFileError: It is not JSON or not as docs/loopback.md says; names every wrong key.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FaultFileError(f"not valid JSON: {error}") from None
    reader = _Reader()
    plan = reader.plan(document)
    if reader.problems:
        raise FaultFileError("; ".join(reader.problems))
    return plan


class FaultFile:
    """The plan in force: that of the file as last read well."""

    def __init__(
        self,
        path: str | None,
        clock: Callable[[], float] = time.monotonic,
        check_interval_s: float = 0.002,
    ) -> None:
        """Take the file's path; none means no faults ever.

        Args:
            path: The JSON file; it may come, change and go while running.
            clock: Seconds.
            check_interval_s: How long a look at the file holds.
        """
        self._path = None if path is None else Path(path)
        self._clock = clock
        self._check_interval_s = check_interval_s
        self._next_check = -math.inf
        self._seen: tuple[int, int, int] | None = None
        self._plan = Plan()
        self.resets = 0
        """How many versions of the file asked for request ordinals to count from 0 again."""

    def plan(self) -> Plan:
        """Return the plan in force now, reading the file if it changed."""
        if self._path is not None and (now := self._clock()) >= self._next_check:
            self._next_check = now + self._check_interval_s
            self._check(self._path)
        return self._plan

    def _check(self, path: Path) -> None:
        try:
            stat = path.stat()
            version = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
            if version == self._seen:
                return
            self._seen = version
            plan = parse(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            self._seen = None
            self._plan = Plan()
        except (OSError, UnicodeDecodeError, FaultFileError) as error:
            logger.warning("fault file %s not taken, the rules before it stay: %s", path, error)
        else:
            self._plan = plan
            self.resets += plan.reset_ordinals
            logger.info("fault file %s taken: %d rules", path, len(plan.rules))


class _Reader:
    """Turns JSON into a `Plan`, collecting every problem with the path of its key."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def plan(self, document: object) -> Plan:
        keys = self._keys(document, "", {"seed", "reset_ordinals", "rules"})
        rules = keys.get("rules", [])
        if not isinstance(rules, list):
            self._wrong("rules", "a list of rules", rules)
            rules = []
        return Plan(
            rules=tuple(self._rule(rule, f"rules[{index}]") for index, rule in enumerate(rules)),
            seed=self._integer(keys, "", "seed", 0),
            reset_ordinals=self._boolean(keys, "", "reset_ordinals"),
        )

    def _rule(self, value: object, path: str) -> Rule:
        effects = {"latency_s", "jitter_s", "bandwidth_bytes_per_s", "fail", "hang", "sq_full"}
        selectors = {"requests", "layers", "side", "probability"}
        keys = self._keys(value, path, effects | selectors)
        given = sorted(effects & keys.keys())
        if not given:
            self.problems.append(f"{path}: has no effect, give one of {', '.join(sorted(effects))}")
        for alone in ("hang", "sq_full"):
            if alone in given and len(given) > 1:
                self.problems.append(f"{path}.{alone}: cannot be combined with another effect")
        latency_s = self._number(keys, path, "latency_s", 0.0)
        return Rule(
            requests=self._numbers(keys, path, "requests"),
            layers=self._numbers(keys, path, "layers"),
            side=self._side(keys, path),
            probability=self._number(keys, path, "probability", 1.0, most=1.0),
            latency_s=self._hang_s(keys, path) if "hang" in keys else latency_s,
            jitter_s=self._number(keys, path, "jitter_s", 0.0),
            bandwidth_bytes_per_s=self._bandwidth(keys, path),
            fail=self._fail(keys, path),
            sq_full_times=self._sq_full_times(keys, path),
        )

    def _hang_s(self, keys: Mapping[str, Any], path: str) -> float:
        if keys["hang"] is True:
            return NEVER
        return self._number(keys, path, "hang", 0.0, allowed="true, or seconds until it lands")

    def _bandwidth(self, keys: Mapping[str, Any], path: str) -> float | None:
        name = "bandwidth_bytes_per_s"
        if name not in keys:
            return None
        value = self._number(keys, path, name, 0.0)
        if value == 0:
            self._wrong(_join(path, name), "a number above 0", keys[name])
        return value

    def _fail(self, keys: Mapping[str, Any], path: str) -> tuple[StatusCode, str] | None:
        if "fail" not in keys:
            return None
        if keys["fail"] is True:
            return StatusCode.ERR_RDMA_OP, "injected by the loopback"
        inner = _join(path, "fail")
        fail = self._keys(keys["fail"], inner, {"code", "message"})
        errors = [code.name for code in StatusCode if code.is_error]
        code = fail.get("code", StatusCode.ERR_RDMA_OP.name)
        if code not in errors:
            self._wrong(_join(inner, "code"), f"one of {', '.join(errors)}", code)
            code = StatusCode.ERR_RDMA_OP.name
        message = fail.get("message", "injected by the loopback")
        if not isinstance(message, str):
            self._wrong(_join(inner, "message"), "a string", message)
        return StatusCode[code], str(message)

    def _sq_full_times(self, keys: Mapping[str, Any], path: str) -> float:
        value = keys.get("sq_full", 0)
        if value is True:
            return NEVER
        if "sq_full" in keys and (type(value) is not int or value < 1):
            allowed = "true, or how often in a row to reject (1 or more)"
            self._wrong(_join(path, "sq_full"), allowed, value)
            return 1
        return float(value)

    def _side(self, keys: Mapping[str, Any], path: str) -> str | None:
        side = keys.get("side")
        if "side" in keys and side not in _SIDES:
            self._wrong(_join(path, "side"), f"one of {', '.join(_SIDES)}", side)
            return None
        return None if side is None else str(side)

    def _numbers(self, keys: Mapping[str, Any], path: str, name: str) -> frozenset[int] | None:
        if name not in keys:
            return None
        value = keys[name]
        if not isinstance(value, list) or any(type(n) is not int or n < 0 for n in value):
            self._wrong(_join(path, name), "a list of integers from 0", value)
            return None
        return frozenset(value)

    def _number(
        self,
        keys: Mapping[str, Any],
        path: str,
        name: str,
        default: float,
        *,
        most: float = math.inf,
        allowed: str | None = None,
    ) -> float:
        value = keys.get(name, default)
        if type(value) not in (int, float) or not 0 <= value <= most or value == math.inf:
            limit = "a number from 0" + ("" if most == math.inf else f" to {most:g}")
            self._wrong(_join(path, name), allowed or limit, value)
            return default
        return float(value)

    def _integer(self, keys: Mapping[str, Any], path: str, name: str, default: int) -> int:
        value = keys.get(name, default)
        if type(value) is not int:
            self._wrong(_join(path, name), "an integer", value)
            return default
        return value

    def _boolean(self, keys: Mapping[str, Any], path: str, name: str) -> bool:
        value = keys.get(name, False)
        if type(value) is not bool:
            self._wrong(_join(path, name), "true or false", value)
        return value is True

    def _keys(self, value: object, path: str, known: set[str]) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            self._wrong(path or "the file", "an object", value)
            return {}
        for key in value.keys() - known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(known))}"
            self.problems.append(f"{_join(path, key)}: unknown key, {hint}")
        return value

    def _wrong(self, path: str, allowed: str, value: object) -> None:
        self.problems.append(f"{path}: {json.dumps(value)} given, {allowed} expected")


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
