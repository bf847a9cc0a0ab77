"""What the user chose to probe, made into what is probed; or one clear error."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from moriio_observed.canary.errors import CanaryError
from moriio_observed.canary.golden import Golden
from moriio_observed.canary.http import Http
from moriio_observed.canary.metrics import Mode
from moriio_observed.canary.targets import Engine, Pair, Single, Target
from moriio_observed.config import shown
from moriio_observed.doctor.read import web_address

HANDSHAKE_PORT, NOTIFY_PORT = 6301, 61005
"""MoRIIO's defaults."""

# As it stands in a request's id, which is a header: ASCII.
_ADDRESS = re.compile(r"host:[!-+\--~]+,handshake:\d+,notify:\d+", re.ASCII)


@dataclass(frozen=True)
class Choice:
    """What was given on the command line, None or empty where nothing was.

    Attributes:
        url: A router, or an engine that answers alone.
        prefill: The prefill engine.
        decode: The decode engine.
        prefill_address: Where MoRIIO of the prefill engine listens.
        decode_address: Where MoRIIO of the decode engine listens.
        reference: An engine that answers alone.
        engines: Engines behind a router, whose /metrics can be asked.
    """

    url: str | None = None
    prefill: str | None = None
    decode: str | None = None
    prefill_address: str | None = None
    decode_address: str | None = None
    reference: str | None = None
    engines: Sequence[str] = ()

    def target(self, http: Http) -> Target:
        """What is probed.

        Raises:
            CanaryError: It is not told, told twice, or told by half.
            InputError: An address is none.
        """
        if self.url and not (self.prefill or self.decode):
            pages = tuple(f"{web_address(url, '--engine')}/metrics" for url in self.engines)
            return Single(http, web_address(self.url, "--url"), pages)
        if self.prefill and self.decode and not self.url:
            return Pair(
                http,
                _engine(self.prefill, self.prefill_address, "prefill"),
                _engine(self.decode, self.decode_address, "decode"),
            )
        raise CanaryError("whom to ask: give either --url, or both --prefill and --decode")

    def alone(self, http: Http) -> Target | None:
        """What answers alone; the prefill engine where no other is given, None without either.

        Raises:
            InputError: An address is none.
        """
        if self.reference:
            return Single(http, web_address(self.reference, "--reference"))
        return Single(http, web_address(self.prefill, "--prefill")) if self.prefill else None


def check_fit(golden: Golden, concurrencies: Sequence[int], model: str) -> None:
    """See whether golden answers can be used.

    Args:
        golden: The golden answers.
        concurrencies: How many probes shall be sent at once.
        model: The model that shall be asked.

    Raises:
        CanaryError: They cannot.
    """
    if golden.model != model:
        raise CanaryError(
            f"the golden answers are those of {shown(golden.model)}, and {shown(model)} is asked:"
            " record them anew"
        )
    most = max(concurrencies)
    if most > len(golden.known):
        raise CanaryError(
            f"{most} different prompts at once, and there are golden answers to"
            f" {len(golden.known)}: record more, or give less as --concurrency"
        )


def check_mode(golden: Golden, mode: Mode) -> None:
    """See whether golden answers can be held against others in this way.

    Raises:
        CanaryError: They were asked for once, and may differ the next time.
    """
    if mode is Mode.EXACT and golden.mode is not Mode.EXACT:
        raise CanaryError(
            f"the golden answers were recorded with --mode {golden.mode}, and --mode {mode} is"
            " asked: record them anew with that mode"
        )


def _engine(url: str, address: str | None, side: str) -> Engine:
    checked = web_address(url, f"--{side}")
    if address is None:
        host = urlsplit(checked).hostname
        address = f"host:{host},handshake:{HANDSHAKE_PORT},notify:{NOTIFY_PORT}"
    if not _ADDRESS.fullmatch(address):
        raise CanaryError(
            f"--{side}-address = {shown(address)}: must be host:HOST,handshake:PORT,notify:PORT, in"
            " ASCII"
        )
    return Engine(checked, address)
