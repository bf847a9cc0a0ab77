"""Whom to ask: engines by themselves, or behind a router, and who answers alone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from moriio_observed.accept.claims.serving import CONSUMERS, PRODUCERS
from moriio_observed.accept.facts import Side, Watched
from moriio_observed.canary.choices import Choice
from moriio_observed.canary.errors import CanaryError
from moriio_observed.canary.http import Http
from moriio_observed.canary.targets import Pair, Single, Target
from moriio_observed.doctor.errors import InputError
from moriio_observed.doctor.read import Address, address_of, web_address
from moriio_observed.doctor.server import Server, ask


@dataclass(frozen=True)
class Deployment:
    """What is probed, and where its numbers are.

    Attributes:
        target: What is probed.
        alone: Who answers alone.
        prefill: The engines that are read from, by name; their numbers before anything was sent.
        decode: The engines that read.
        bare: The same prefill engine with a decode engine without our connector.
        prometheus: A Prometheus.
    """

    target: Target
    alone: Target
    prefill: Mapping[str, Server]
    decode: Mapping[str, Server]
    bare: Pair | None = None
    prometheus: Address | None = None

    @property
    def model(self) -> str | None:
        """The model, by what the decode engines call it in their numbers."""
        found = (
            labels["model_name"]
            for server in self.decode.values()
            for labels, _ in server.page.of("moriio_config_info")
            if "model_name" in labels
        )
        return next(found, None)

    @property
    def apart(self) -> bool | None:
        """Whether MoRIIO's addresses name different hosts; None where a router chooses."""
        if not isinstance(self.target, Pair):
            return None
        return _host(self.target.prefill.address) != _host(self.target.decode.address)

    @property
    def metrics_pages(self) -> tuple[str, ...]:
        """Where every engine that is asked tells how much it has to do."""
        urls = [engine.url for engine in (*self.prefill.values(), *self.decode.values())]
        if isinstance(self.alone, Single):
            urls.append(self.alone.url)
        if self.bare is not None:
            urls.append(self.bare.decode.url)
        return tuple(f"{url}/metrics" for url in dict.fromkeys(urls))

    @property
    def names(self) -> dict[str, str]:
        """Everything that is private in an address, and what it is called instead."""
        found = {server.url: name for name, server in {**self.prefill, **self.decode}.items()}
        for target, name in ((self.alone, "alone"), (self.target, "router")):
            if isinstance(target, Single):
                found.setdefault(target.url, name)
        if self.prometheus:
            found[self.prometheus.url] = "Prometheus"
        for pair, name in ((self.target, "decode"), (self.bare, "bare decode")):
            if isinstance(pair, Pair):
                found.setdefault(pair.decode.url, name)
                found |= {_host(pair.prefill.address): "prefill", _host(pair.decode.address): name}
        return found

    def sides(self, after: Mapping[str, Server], before: Mapping[str, Server]) -> tuple[Side, Side]:
        """The decode and the prefill side, with what was seen of them.

        Args:
            after: By name; empty: they were not asked again.
            before: What is better known than at the start; empty: nothing.
        """
        decode, prefill = (
            Side(
                tuple(
                    Watched(name, before.get(name, server), after.get(name))
                    for name, server in side.items()
                )
            )
            for side in (self.decode, self.prefill)
        )
        return decode, prefill

    def look(self) -> dict[str, Server]:
        """Ask every engine for its numbers."""
        return {
            name: ask(Address(one.url)) for name, one in {**self.decode, **self.prefill}.items()
        }


def deployment(
    choice: Choice,
    http: Http,
    *,
    bare_decode: str | None = None,
    bare_address: str | None = None,
    prometheus: str | None = None,
) -> Deployment:
    """Look at what was given.

    Raises:
        CanaryError: What was given is not enough, or a decode engine shows no numbers.
        InputError: An address is none.
    """
    target = choice.target(http)
    where = address_of(prometheus, "--prometheus") if prometheus else None
    if isinstance(target, Pair):
        if choice.engines:
            raise CanaryError("--engine belongs to --url: --prefill and --decode name the engines")
        found = Deployment(
            target,
            choice.alone(http) or Single(http, target.prefill.url),
            {"prefill": ask(Address(target.prefill.url))},
            {"decode": ask(Address(target.decode.url))},
            _bare(target, choice, http, bare_decode, bare_address),
            where,
        )
    else:
        if bare_decode:
            raise CanaryError("--bare-decode needs --prefill and --decode, not --url")
        prefill, decode = _by_role(choice.engines)
        found = Deployment(target, _alone(choice, http, prefill), prefill, decode, None, where)
    for server in found.decode.values():
        if server.metrics is None:
            raise CanaryError(server.trouble)
    _check_alone(choice, found)
    return found


def _check_alone(choice: Choice, found: Deployment) -> None:
    """A decode engine must not say what is right: up to 0.32 it answers from memory nobody filled.

    Raises:
        CanaryError: One shall.
    """
    if choice.reference:
        name, alone = "--reference", ask(Address(web_address(choice.reference, "--reference")))
    else:
        name, alone = "--prefill", next(iter(found.prefill.values()))
    if alone.info.get("role") in CONSUMERS:
        raise CanaryError(
            f"{name}: is a decode engine (kv_consumer), which cannot answer alone: are addresses"
            " swapped?"
        )


def _by_role(urls: Sequence[str]) -> tuple[dict[str, Server], dict[str, Server]]:
    if not urls:
        raise CanaryError(
            "--engine is missing: behind a router, name every engine whose numbers count"
        )
    different = dict.fromkeys(web_address(url, "--engine") for url in urls)
    servers = [ask(Address(url)) for url in different]
    prefill = [server for server in servers if server.info.get("role") in PRODUCERS]
    decode = [server for server in servers if server not in prefill]
    if not decode:
        raise CanaryError("--engine: none of them is a decode engine (kv_consumer)")
    return dict(_numbered("prefill", prefill)), dict(_numbered("decode", decode))


def _numbered(side: str, servers: Sequence[Server]) -> Iterator[tuple[str, Server]]:
    for number, server in enumerate(servers, 1):
        yield (side if len(servers) == 1 else f"{side} {number}"), server


def _alone(choice: Choice, http: Http, prefill: Mapping[str, Server]) -> Target:
    given = choice.alone(http)
    if given is not None:
        return given
    for server in prefill.values():
        return Single(http, server.url)
    raise CanaryError(
        "nobody answers alone: give a prefill engine among --engine, or an engine as --reference"
    )


def _bare(
    pair: Pair, choice: Choice, http: Http, url: str | None, address: str | None
) -> Pair | None:
    if url is None:
        if address is not None:
            raise CanaryError("--bare-decode-address needs --bare-decode")
        return None
    checked = web_address(url, "--bare-decode")
    for name, engine in (("--decode", pair.decode), ("--prefill", pair.prefill)):
        if checked == engine.url:
            raise InputError(f"--bare-decode: is the same engine as {name}")
    server = ask(Address(checked))
    if server.metrics is None:
        raise CanaryError(server.trouble)
    if server.info:
        raise CanaryError("--bare-decode: runs our connector as well, so it is no bare MoRIIO")
    other = Choice(
        prefill=choice.prefill,
        decode=url,
        prefill_address=choice.prefill_address,
        decode_address=address,
    )
    target = other.target(http)
    return target if isinstance(target, Pair) else None


def _host(address: str) -> str:
    found = re.match(r"host:([^,]*),", address)
    return found.group(1) if found else urlsplit(address).hostname or ""
