"""A server for each test to probe, and one client for them all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from moriio_observed.canary.http import Http
from tests.unit.canary.model_server import ModelServer, serving


@pytest.fixture(scope="session")
def http() -> Iterator[Http]:
    with Http(timeout_s=20) as http:
        yield http


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with serving() as server:
        yield server
