"""Programs that tests run and that pip does not install."""

import os
import shutil

import pytest

ALL = "ALL_TOOLS"
"""Set in CI, where a missing program fails the tests that need it instead of skipping them."""


def needs(*programs: str) -> pytest.MarkDecorator:
    """Skip a test where one of the programs is not installed, and say so; in CI let it fail."""
    missing = [program for program in programs if shutil.which(program) is None]
    return pytest.mark.skipif(
        bool(missing) and not os.environ.get(ALL), reason=f"not installed: {', '.join(missing)}"
    )


def can_use(*programs: str) -> pytest.MarkDecorator:
    """Skip a test where one of the programs is not installed: no Debian package brings it."""
    missing = [program for program in programs if shutil.which(program) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")
