"""Commands whose reader goes away, as with ``| head``."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.unit.doctor.patients import CASES

LOG = ("doctor", "--log", str(CASES / "decode-stall.log"))


@pytest.mark.parametrize("arguments", [LOG, (*LOG, "--json"), ("alerts", "render")], ids=" ".join)
def test_a_reader_that_goes_away_is_no_error(arguments: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "moriio_observed", *arguments],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")
