"""Commands whose libraries come with an extra of this package: imported when they are run."""

from collections.abc import Iterator
from contextlib import contextmanager


class MissingExtraError(Exception):
    """A library of an extra is not installed; the message names both."""


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Import inside what the extra of this name installs.

    Raises:
        MissingExtraError: One of its libraries is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"{error.name} is not installed; it comes with the extra {name}: "
            f"pip install '.[{name}]' in the checkout of moriio-observed"
        ) from error
