"""Which names upstream's compiled code uses.

That a method exists does not say that anything calls it: a hook on one that upstream has left
behind would never run, and a barrier that bypasses upstream's own would wait for no read.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import CodeType
from typing import Any

from moriio_observed.upstream.moriio import moriio_connector


def by_method(owner: Any, name: str) -> set[str]:
    """Every name that a method calls, reads or sets; none if there is no such method.

    With what it reaches by ``super()``, so that a subclass of upstream's is taken as upstream's.
    """
    found: set[str] = set()
    for base in getattr(owner, "__mro__", ()):
        if name in vars(base):
            code = _code_of(vars(base)[name])
            found.update(() if code is None else _names(code))
            if "super" not in found:
                break
    return found


def by_package() -> set[str]:
    """Every name that the methods of upstream's MoRIIO classes call, read or set."""
    return {
        name
        for owner in _package_classes()
        for method in vars(owner)
        for name in by_method(owner, method)
    }


def _code_of(method: Any) -> CodeType | None:
    try:
        method = inspect.unwrap(method)
    except ValueError:  # wrapped in a circle
        return None
    code = getattr(method, "__code__", None)
    return code if isinstance(code, CodeType) else None


def _package_classes() -> Iterator[type]:
    """Upstream's own classes, also where a subclass made elsewhere was put in their place."""
    package = f"{moriio_connector.__package__}."
    for thing in vars(moriio_connector).values():
        for base in thing.__mro__ if isinstance(thing, type) else ():
            if base.__module__.startswith(package):
                yield base


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for nested in code.co_consts:
        if isinstance(nested, CodeType):
            yield from _names(nested)
