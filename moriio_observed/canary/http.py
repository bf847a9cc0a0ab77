"""HTTP to the servers: one completion at a time, every failure in one sentence."""

from __future__ import annotations

import json
from typing import Any, Self

import httpx

from moriio_observed import __version__
from moriio_observed.canary.errors import BusyError, CanaryError, NoAnswerError, WrongModelError
from moriio_observed.config import shown

ENOUGH_TO_DO = frozenset({httpx.codes.TOO_MANY_REQUESTS, httpx.codes.SERVICE_UNAVAILABLE})
CONNECT_TIMEOUT_S = 10.0
PAGE_TIMEOUT_S = 5.0
LONGEST_REASON = 300


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
        self._client = httpx.Client(
            headers=headers,
            timeout=httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S),
            limits=httpx.Limits(max_connections=None),
            trust_env=False,
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
        try:
            response = self._client.post(page, json=body, headers={"X-Request-Id": request_id})
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise NoAnswerError(f"{url} does not answer: {_reason(error)}") from None
        except ValueError as error:  # no JSON or no header: what a prefill engine returned, a name
            raise NoAnswerError(f"{url} cannot be sent the request: {error}") from None
        if response.status_code in ENOUGH_TO_DO:
            raise BusyError(f"{url} is busy: HTTP {response.status_code}{_said(response)}")
        if response.status_code == httpx.codes.NOT_FOUND and "model" in response.text:
            raise WrongModelError(
                f"{url} does not serve the model {shown(body['model'])}{_said(response)}"
            )
        if response.is_error:
            raise NoAnswerError(f"{page} answers HTTP {response.status_code}{_said(response)}")
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
            response = self._client.get(url, timeout=PAGE_TIMEOUT_S)
        except (httpx.HTTPError, httpx.InvalidURL):
            return None
        return response.text if response.is_success else None


def _reason(error: Exception) -> str:
    if isinstance(error, httpx.ConnectTimeout):
        return "no connection in time"
    if isinstance(error, httpx.TimeoutException):
        return "not in time"
    return str(error) or type(error).__name__


def _said(response: httpx.Response) -> str:
    text = " ".join(response.text[:LONGEST_REASON].split())
    return f": {text}" if text and not text.startswith("<") else ""
