"""HTTP to the servers: one completion at a time, every failure in one sentence."""

from __future__ import annotations

import json
import ssl
import time
from dataclasses import dataclass
from typing import Any, Self

import httpx

from moriio_observed import __version__
from moriio_observed.canary.errors import BusyError, CanaryError, NoAnswerError, WrongModelError
from moriio_observed.config import shown

ENOUGH_TO_DO = frozenset({httpx.codes.TOO_MANY_REQUESTS, httpx.codes.SERVICE_UNAVAILABLE})
CONNECT_TIMEOUT_S = 10.0
PAGE_TIMEOUT_S = 5.0
LONGEST_REASON = 300
LARGEST_PAGE = 4 * 1024 * 1024
"""Bytes of an answer that are read: many times what a completion or a page of metrics has."""

_FAILURES = (httpx.HTTPError, httpx.InvalidURL, UnicodeError)
"""How a server does not answer. A host's name that cannot be one is a UnicodeError."""


@dataclass(frozen=True)
class _Response:
    """What a server answers.

    Attributes:
        status: The HTTP status.
        content: The body.
        location: Where it points to, empty where nowhere.
    """

    status: int
    content: bytes
    location: str

    @property
    def text(self) -> str:
        """The body as text."""
        return self.content.decode(errors="replace")

    @property
    def is_success(self) -> bool:
        """Whether it is what was asked for."""
        return httpx.codes.is_success(self.status)


class Http:
    """Asks servers directly, not through proxies; safe on many threads.

    Args:
        timeout_s: How long one request may take to be answered, seconds.
        api_key: Sent as a bearer token; None: nothing.

    Raises:
        CanaryError: That is no key that can be sent.
    """

    def __init__(self, timeout_s: float, api_key: str | None = None) -> None:
        headers = {"User-Agent": f"moriio-observed-canary/{__version__}"}
        if api_key:
            if not (api_key.isascii() and api_key.isprintable()):
                raise CanaryError("the API key must be printable ASCII on one line")
            headers["Authorization"] = f"Bearer {api_key}"
        self._timeout_s = timeout_s
        self._client = httpx.Client(
            headers=headers,
            # A connection for each request: a Service gives each to an engine of its choice.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
            trust_env=False,
            # The machine's certificates, or those that SSL_CERT_FILE and SSL_CERT_DIR name.
            verify=ssl.create_default_context(),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def complete(self, url: str, body: dict[str, Any], request_id: str) -> dict[str, Any]:
        """Send one completion request and give what comes back.

        Raises:
            BusyError: The server refused it with 429 or 503.
            WrongModelError: The server does not serve the model.
            NoAnswerError: The server does not answer, or with an error, or with something else, or
                cannot be sent the request.
        """
        page = f"{url}/v1/completions"
        headers = {"X-Request-Id": request_id}
        try:
            response = self._ask("POST", page, self._timeout_s, json=body, headers=headers)
        except ValueError as error:  # no JSON or no header: what a prefill engine returned, a name
            raise NoAnswerError(f"{url} cannot be sent the request: {error}") from None
        except _FAILURES as error:
            raise NoAnswerError(f"{url} does not answer: {_reason(error)}") from None
        if response.status in ENOUGH_TO_DO:
            raise BusyError(f"{url} is busy: HTTP {response.status}{_said(response)}")
        if response.status == httpx.codes.NOT_FOUND and "model" in response.text:
            raise WrongModelError(
                f"{url} does not serve the model {shown(body['model'])}{_said(response)}"
            )
        if not response.is_success:
            raise NoAnswerError(f"{page} answers HTTP {response.status}{_said(response)}")
        try:
            value = json.loads(response.content)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise NoAnswerError(f"{page} answers no JSON object: {shown(response.text)}")
        return value

    def page(self, url: str) -> str | None:
        """What a page says; None where it cannot be had."""
        try:
            response = self._ask("GET", url, PAGE_TIMEOUT_S)
        except _FAILURES:
            return None
        return response.text if response.is_success else None

    def _ask(self, method: str, url: str, timeout_s: float, **request: Any) -> _Response:
        """Ask, and read the answer to its end.

        Raises:
            httpx.HTTPError: There is none, or it does not end in time, or not at all.
        """
        deadline = time.monotonic() + timeout_s
        timeout = httpx.Timeout(timeout_s, connect=min(timeout_s, CONNECT_TIMEOUT_S))
        content = bytearray()
        with self._client.stream(method, url, timeout=timeout, **request) as response:
            for part in response.iter_bytes():
                content += part
                if len(content) > LARGEST_PAGE:
                    raise httpx.ReadError(f"more than {LARGEST_PAGE} bytes, which is no answer")
                # The timeout is that of one part, and a server may send them one by one for ever.
                if time.monotonic() > deadline:
                    raise httpx.ReadTimeout("it sends, and does not end")
        return _Response(response.status_code, bytes(content), response.headers.get("Location", ""))


def _reason(error: Exception) -> str:
    if isinstance(error, httpx.ConnectTimeout):
        return "no connection in time"
    if isinstance(error, httpx.TimeoutException):
        return "not in time"
    return str(error) or type(error).__name__


def _said(response: _Response) -> str:
    if response.location:
        return f": it points to {shown(response.location)}, name that one"
    text = " ".join(response.text[:LONGEST_REASON].split())
    return f": {text}" if text and not text.startswith("<") else ""
