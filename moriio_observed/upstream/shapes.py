"""How a method of ours takes the calls meant for upstream's, and what would break that."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Shape:
    """The parameters of a method of ours.

    Attributes:
        takes: Those it names: upstream's first ones, in upstream's order.
        reads: Further ones that we look at by name.
        passes_on: Whether whatever else upstream takes goes through.
    """

    takes: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    passes_on: bool = False

    def fault(self, owner: Any, name: str) -> str:
        """What keeps it from standing in front of upstream's method, empty if nothing does.

        Args:
            owner: Upstream's class.
            name: The method's name.
        """
        method = getattr(owner, name, None)
        if method is None:
            return "not there"
        try:
            parameters = inspect.signature(method).parameters.values()
        except Exception:  # noqa: BLE001  (whatever somebody's signature does)
            return "its parameters cannot be read"
        given = [each for each in parameters if each.kind not in _VARIABLE][1:]
        names = [each.name for each in given]
        for wanted in (*self.takes, *self.reads):
            if wanted not in names:
                return f"no parameter {wanted}"
        if any(each.kind is each.KEYWORD_ONLY for each in given[: len(self.takes)]):
            return "its parameters are taken by keyword only"
        expected = len(self.takes)
        if names[:expected] != list(self.takes):
            return f"its parameters are {', '.join(names)}"
        if len(names) > expected and not self.passes_on:
            return f"new parameter {names[expected]}"
        return ""
