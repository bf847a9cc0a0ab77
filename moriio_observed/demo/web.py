"""HTTP to our own servers on the loopback address, whatever proxies the user has set."""

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def get(url: str, timeout_s: float = 10.0) -> str:
    """Fetch a page.

    Raises:
        OSError: When the server answers with an error, with something that is not HTTP, or not at
            all.
    """
    try:
        with _direct.open(url, timeout=timeout_s) as answer:
            page: bytes = answer.read()
    except http.client.HTTPException as error:
        raise OSError(f"{url} answers something else than HTTP: {error!r}") from error
    return page.decode(errors="replace")


def post_json(
    url: str, body: Mapping[str, Any], headers: Mapping[str, str], timeout_s: float
) -> dict[str, Any]:
    """Post JSON and decode the JSON that comes back.

    Raises:
        OSError: When the server does not answer, or with an error, whose text is kept.
        ValueError: When the answer is not JSON.
    """
    request = urllib.request.Request(  # noqa: S310 - callers pass our own http URLs
        url,
        json.dumps(body).encode(),
        {"Content-Type": "application/json", **headers},
    )
    try:
        with _direct.open(request, timeout=timeout_s) as answer:
            decoded: dict[str, Any] = json.load(answer)
    except urllib.error.HTTPError as error:
        text = error.read().decode(errors="replace")
        raise OSError(f"HTTP {error.code}: {text[:500]}") from error
    return decoded
