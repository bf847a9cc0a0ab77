"""Files and pages the doctor is pointed at, or one clear error."""

from __future__ import annotations

import http.client
import json
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from moriio_observed.config import shown
from moriio_observed.doctor.errors import InputError
from moriio_observed.doctor.log_lines import LONGEST_LINE

STDIN = "-"
LARGEST_PAGE = 64 * 1024 * 1024
"""Bytes of a page that are read at most."""
LONGEST_REASON = 300
"""Bytes of the page of an error."""


def text_of(path: str, name: str) -> str:
    """A file's text.

    Raises:
        InputError: It cannot be read.
    """
    try:
        return Path(path).read_text(errors="replace")
    except (OSError, ValueError) as error:
        raise InputError(f"{name} {shown(path)} cannot be read: {error}") from None


def lines_of(path: str, name: str) -> Iterator[str]:
    """A file's lines, or standard input's for ``-``; a very long one comes in pieces.

    Raises:
        InputError: It cannot be read.
    """
    if path == STDIN:
        yield from _pieces(sys.stdin)
        return
    try:
        with Path(path).open(errors="replace") as file:
            yield from _pieces(file)
    except (OSError, ValueError) as error:
        raise InputError(f"{name} {shown(path)} cannot be read: {error}") from None


def _pieces(file: TextIO) -> Iterator[str]:
    return iter(lambda: file.readline(LONGEST_LINE), "")


def web_address(text: str, name: str) -> str:
    """A server's address without what stands behind host and port.

    Raises:
        InputError: It is not one.
    """
    try:
        parts = urllib.parse.urlsplit(text)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname)
        valid = valid and not parts.query and not parts.fragment
        _ = parts.port
    except ValueError:
        valid = False
    if valid and parts.username is not None:
        raise InputError(f"{name}: a user in front of {shown(parts.hostname)} is not supported")
    if not valid or not text.isprintable() or " " in text:
        raise InputError(
            f"{name} = {shown(text)}: must be an address such as http://decode.example:8000"
        )
    return text.rstrip("/").removesuffix("/metrics")


class Unreachable(Exception):  # noqa: N818  (told as a finding, not an error of ours)
    """A server did not answer, or not with what was asked for; the message says which."""


def page(url: str, timeout_s: float) -> str:
    """What a server answers.

    The message of an error has the page, not what was asked of it.

    Raises:
        Unreachable: It does not, or with an error.
    """
    where = url.partition("?")[0]
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as answer:  # noqa: S310  (http, checked)
            content: bytes = answer.read(LARGEST_PAGE)
    except urllib.error.HTTPError as error:
        with error:
            raise Unreachable(f"{where} answers HTTP {error.code}{_said(error)}") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise Unreachable(f"{where} does not answer: {reason}") from None
    return content.decode(errors="replace")


def _said(error: urllib.error.HTTPError) -> str:
    """What the page of an error says; Prometheus tells the reason there."""
    try:
        text = error.read(LONGEST_REASON).decode(errors="replace").strip()
    except (OSError, http.client.HTTPException):
        return ""
    return f": {text}" if text and not text.startswith("<") else ""


def json_page(url: str, timeout_s: float) -> dict[str, Any]:
    """The JSON object that a server answers.

    Raises:
        Unreachable: It does not answer, or with something else.
    """
    text = page(url, timeout_s)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise Unreachable(
            f"{url.partition('?')[0]} answers something else than a JSON object: {shown(text)}"
        )
    return value
