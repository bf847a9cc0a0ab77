"""Files and pages the doctor is pointed at, or one clear error."""

from __future__ import annotations

import base64
import http.client
import json
import re
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
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
_USER = re.compile(r"//.*@")


def is_file(path: str) -> bool:
    """Whether a text is the path of a file."""
    try:
        return Path(path).is_file()
    except (OSError, ValueError):
        return False


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


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is asked.

    Attributes:
        url: Its address, as it may be shown: without user and password.
        authorization: The header that lets us in; empty for none.
    """

    url: str
    authorization: str = field(default="", repr=False)


def web_address(text: str, name: str) -> str:
    """A server's address that wants no user.

    Raises:
        InputError: It is not one.
    """
    address = address_of(text, name)
    if address.authorization:
        raise InputError(f"{name}: a user in front of {address.url} is not supported")
    return address.url


def address_of(text: str, name: str) -> Address:
    """A server's address, as ``http://host:port/path`` or ``http://user:password@host:port/path``.

    In the user and the password, what has a meaning in an address is written as ``%40``.

    Raises:
        InputError: It is not one; the message does not repeat a password.
    """
    try:
        parts = urllib.parse.urlsplit(text)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname)
        valid = valid and not parts.query and not parts.fragment
        _ = parts.port
    except ValueError:
        valid = False
    if not valid or not text.isprintable() or " " in text:
        raise InputError(
            f"{name} = {shown(_USER.sub('//…@', text))}: must be an address such as "
            "http://decode.example:8000"
        )
    user, _, place = parts.netloc.rpartition("@")
    url = parts._replace(netloc=place).geturl().rstrip("/").removesuffix("/metrics")
    return Address(url, _basic(user) if user else "")


def _basic(user: str) -> str:
    """The header for a user and a password as an address has them."""
    name, _, password = map(urllib.parse.unquote_to_bytes, user.partition(":"))
    return f"Basic {base64.b64encode(name + b':' + password).decode()}"


class Unreachable(Exception):  # noqa: N818  (told as a finding, not an error of ours)
    """A server did not answer, or not with what was asked for; the message says which."""


def page(server: Address, path: str, timeout_s: float) -> str:
    """What a server answers.

    The message of an error has the page, not what was asked of it.

    Raises:
        Unreachable: It does not, or with an error.
    """
    where = (server.url + path).partition("?")[0]
    try:
        request = urllib.request.Request(server.url + path)  # noqa: S310  (http, checked)
        if server.authorization:
            # Meant for this server, not for one that it sends us to.
            request.add_unredirected_header("Authorization", server.authorization)
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:  # noqa: S310
            content: bytes = answer.read(LARGEST_PAGE)
    except urllib.error.HTTPError as error:
        with error:
            raise Unreachable(f"{where} answers HTTP {error.code}{_said(error)}") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        if type(error) is http.client.BadStatusLine:  # its text is the server's
            reason = "what it says is not HTTP"
        raise Unreachable(f"{where} does not answer: {reason}") from None
    return content.decode(errors="replace")


def _said(error: urllib.error.HTTPError) -> str:
    """What the page of an error says; Prometheus tells the reason there."""
    try:
        text = error.read(LONGEST_REASON).decode(errors="replace").strip()
    except (OSError, http.client.HTTPException):
        return ""
    return f": {text}" if text and not text.startswith("<") else ""


def json_page(server: Address, path: str, timeout_s: float) -> dict[str, Any]:
    """The JSON object that a server answers.

    Raises:
        Unreachable: It does not answer, or with something else.
    """
    text = page(server, path, timeout_s)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise Unreachable(
            f"{(server.url + path).partition('?')[0]} answers something else than a JSON object: "
            f"{shown(text)}"
        )
    return value
