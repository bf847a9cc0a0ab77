"""What leaves the house: no address, no key, nothing that a server has said in its own words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

_SAID = re.compile(
    r"(HTTP \d{3}|answers no JSON object|has no choices\[0\]\.text|else than a JSON object"
    r"|does not answer a query|illegal \w+ line|text format|does not serve the model)(?:: | ).*",
    re.DOTALL,
)
"""Behind these stands what a server has answered, or the path of a model."""
_ADDRESS = re.compile(r"https?://[^\s'\")]+|(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?(?![\w.]*\d)")


class Privacy:
    """Takes out of texts what is nobody else's business.

    Args:
        names: Addresses and hosts, and what they are called instead; empty: addresses may stay.
        hosts: Whether they may stay.
        key: Never stays; None: there is none.
    """

    def __init__(self, names: Mapping[str, str], *, hosts: bool, key: str | None = None) -> None:
        self._key = key
        self._hosts = hosts
        spelt: dict[str, str] = {}
        for text, name in names.items():
            parts = urlsplit(text)
            for form in (text, parts.netloc, parts.hostname or ""):
                spelt.setdefault(form, name)
        # The longest first: a host stands in its address. One that is called by its role may stay.
        self._names = sorted(
            ((form, name) for form, name in spelt.items() if form not in ("", name)),
            key=lambda item: -len(item[0]),
        )

    def clean(self, text: str) -> str:
        """A text without them."""
        if self._key:
            text = text.replace(self._key, "<key>")
        text = _SAID.sub(r"\1", text)
        if self._hosts:
            return text
        for form, name in self._names:
            alone = rf"(?<![\w.-]){re.escape(form)}(?![\w-]|\.\w)"
            text = re.sub(alone, f"<{name}>", text, flags=re.IGNORECASE)
        return _ADDRESS.sub("<address>", text)


def model_name(model: str) -> str:
    """A model without the folders in front of it, which may be anybody's; its owner stays."""
    return model.rstrip("/").rpartition("/")[2] if model.startswith(("/", ".", "~")) else model
