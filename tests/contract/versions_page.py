"""docs/versions.md, made of what the scripted steps saw every version do."""

from __future__ import annotations

from collections.abc import Sequence

from tests.contract.versions import ROOT, Run
from tests.trees import VERSIONS

PAGE = ROOT / "docs" / "versions.md"

STEPS_OF = [(runner, graph) for runner in ("V1", "V2") for graph in ("NONE", "PIECEWISE", "FULL")]

HEAD = """\
# Versions

What each supported vLLM does by itself, what `barrier: auto` makes of it, and what neither can
prevent in this release, so that it is only visible. Written by the contract tests from what they
saw (`tests/contract/test_every_version.py`): each version's own scheduler, connector and runner
glue, with real reads over the loopback and a model that knows when the KV it reads is wrong.

## Reads that are healthy but slow

Does attention wait for them? By model runner and CUDA graph runtime mode. "vLLM" means that vLLM's
own barrier waits, and ours does in its place; **auto** means that vLLM runs ahead of its reads and
answers wrong with HTTP 200, and that with `barrier: auto` it waits. Model Runner V2 is vLLM's
default for CUDA from 0.30 on; the line "barrier 'auto', so waits stand …" in the log of a decode
engine says what is in force.

"""

VISIBLE = """
## What no barrier can make right

The same under `auto` and `upstream` unless said otherwise. "Told" means: counted, and named in the
log with its request id.

"""

MIXED = """
## A prefill engine of another version

While a fleet is being upgraded. MoRIIO's handshake carries no version, so vLLM refuses no pair;
what is said here is vLLM's own doing, with our connector and without. Neighbouring versions only:
[rollouts.md](rollouts.md) has what follows, and what real pairs did.

"""

SUBJECTS = {
    "failed": "a read that failed",
    "hung": "a read in flight at the deadline",
    "phantom": "a phantom hit",
}


def page(runs: Sequence[Run]) -> str:
    """The page, from every version's run."""
    rows = [
        ["vLLM", *(f"{runner} {_mode(graph)}" for runner, graph in STEPS_OF)],
        ["---"] * (len(STEPS_OF) + 1),
        *([run.version, *(_slow(run, *step) for step in STEPS_OF)] for run in runs),
    ]
    visible = [
        ["vLLM", *SUBJECTS.values()],
        ["---"] * (len(SUBJECTS) + 1),
        *([run.version, *(_alike(run, subject) for subject in SUBJECTS)] for run in runs),
    ]
    mixed = [
        ["decode", "prefill one version older", "prefill one version newer"],
        ["---"] * 3,
        *([run.version, *(_mixed(run, step) for step in (-1, 1))] for run in runs),
    ]
    return HEAD + _lines(rows) + VISIBLE + _lines(visible) + MIXED + _lines(mixed)


def _mode(graph: str) -> str:
    return "eager" if graph == "NONE" else graph


def _slow(run: Run, runner: str, graph: str) -> str:
    seen = [run.observed["slow", runner, graph, barrier] for barrier in ("upstream", "auto")]
    return {
        ("waits", "waits"): "vLLM",
        ("runs ahead", "waits"): "**auto**",
        ("runs ahead", "runs ahead"): "nobody",
        ("waits", "runs ahead"): "only vLLM",
    }[seen[0], seen[1]]


def _alike(run: Run, subject: str) -> str:
    auto, upstream = (run.observed[subject, barrier] for barrier in ("auto", "upstream"))
    return auto if auto == upstream else f"`auto`: {auto}. `upstream`: {upstream}"


def _mixed(run: Run, step: int) -> str:
    place = VERSIONS.index(run.version) + step
    if not 0 <= place < len(VERSIONS):
        return ""
    return f"{VERSIONS[place]}: {run.observed['mixed', VERSIONS[place]]}"


def _lines(rows: Sequence[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
