"""A router, by the command that starts it: does it do READ?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePath

from moriio_observed.config import shown
from moriio_observed.doctor.engines import Engine
from moriio_observed.doctor.findings import Finding, Place, Severity, runbook

DOES_READ = "moriio_toy_proxy_server"
OTHERS = ("disagg_proxy_demo", "disagg_proxy_pushconnector_demo", "disagg_proxy_server")
"""Example proxies of vLLM's that do not pass on what a prefill engine answers."""
VLLM_ROUTER = "vllm-router"
_SEE = (runbook("MoriioPhantomHits"), "docs/doctor.md#routers")
_WHY = (
    "In READ the router must wait for the prefill, and pass its kv_transfer_params on to the "
    "decode engine. If it does not, the decode engine claims KV that nobody reads (vLLM up to "
    "0.32) and answers with garbage and HTTP 200."
)


def check(words: Sequence[str], engines: Sequence[Engine]) -> Iterator[Finding]:
    """Whether the router does READ, where an engine wants it."""
    readers = [
        connector for engine in engines for connector in engine.connectors if connector.reads
    ]
    if engines and not readers:
        return
    program = next((name for name in map(_program, words) if _known(name)), None)
    place = (Place("--router", shown(" ".join(words))),)
    if program == DOES_READ:
        return
    if program in OTHERS:
        yield Finding(
            "router-does-not-read",
            Severity.CRITICAL,
            f"{program} is a proxy for other connectors: it does not pass on the prefill engine's "
            "answer",
            place,
            _WHY,
            f"Use {DOES_READ}.py, or a router that says it does MoRIIO's READ.",
            _SEE,
            "router",
        )
    elif program == VLLM_ROUTER and "moriio" not in _value(words, "--kv-connector"):
        yield Finding(
            "router-does-not-read",
            Severity.CRITICAL,
            "vllm-router is started without --kv-connector moriio",
            place,
            f"It speaks to other connectors then. {_WHY}",
            "Add --vllm-pd-disaggregation --kv-connector moriio.",
            _SEE,
            "router",
        )
    else:
        yield Finding(
            "router-unproven",
            Severity.NOTE,
            "whether this router does MoRIIO's READ is not known here",
            place,
            f"{_WHY} Of vllm-router there are reports both ways.",
            "Send one request through it: moriio_reads_posted_total of the decode engine must "
            "grow, and moriio_phantom_hits_total must not.",
            _SEE,
            "router",
        )


def _program(word: str) -> str:
    return PurePath(word).name.removesuffix(".py")


def _known(name: str) -> bool:
    return name in (DOES_READ, VLLM_ROUTER, *OTHERS)


def _value(words: Sequence[str], option: str) -> str:
    for word, after in zip(words, [*words[1:], ""], strict=True):
        if word == option:
            return after.lower()
        if word.startswith(f"{option}="):
            return word.partition("=")[2].lower()
    return ""
