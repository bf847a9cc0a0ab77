"""docs/versions.md, and the table in docs/guard.md, of what the tests saw every version do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.contract.versions import ROOT, Run
from tests.trees import VERSIONS

PAGE = ROOT / "docs" / "versions.md"
GUARD_PAGE = ROOT / "docs" / "guard.md"
TABLE_BEGINS, TABLE_ENDS = "<!-- versions: begin", "<!-- versions: end"

NOT_SEEN = "not seen"
STEPS_OF = [(runner, graph) for runner in ("V1", "V2") for graph in ("NONE", "PIECEWISE", "FULL")]

HEAD = """\
# Versions

What each supported vLLM does by itself, what `barrier: auto` makes of it, and what is only visible
in this release. Written from what the contract tests saw (`tests/contract/test_every_version.py`):
each version's own scheduler, connector and runner glue, with real reads over the loopback and a
model that knows when the KV it reads is wrong.

## Reads that are healthy but slow

Does attention wait for them? By model runner and CUDA graph runtime mode. "vLLM" means that vLLM's
own barrier waits, and ours does in its place. "**auto**" means that vLLM runs ahead of its reads,
serves what it made of them and raises nothing, and that with `barrier: auto` it waits.

The runner is vLLM's choice (`VLLM_USE_V2_MODEL_RUNNER`): from 0.29 on V2 by default, but for some
models; in 0.28 V2 for some. Of a hybrid's reads, those of recurrent state are waited for by every
version that has them (0.31 and newer), in every column; its attention reads are as here.

"""

VISIBLE = """
## What is only visible

No barrier can make these right. "Told" means: counted by cause, and named in the log with its
request id. The same under `auto` and `upstream`, unless said otherwise: where vLLM's barrier gives
healthy requests up because another's read has failed, `auto` does not. Seen on eager steps of V1,
without asynchronous scheduling. With it, vLLM's default on GPUs, "recomputed by vLLM" does not
hold: the answer is wrong, and told. A [guard](guard.md) makes all of these right, or errors.

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

GUARDED = {
    "failed": "a read that failed",
    "hung": "a read in flight at the deadline",
    "plain": "a request that P never saw",
    "stale": "a read past P's lease",
}


def pages(runs: Sequence[Run]) -> dict[Path, str]:
    """Both pages, from every version's run."""
    return {PAGE: page(runs), GUARD_PAGE: _with_table(GUARD_PAGE.read_text(), runs)}


def _with_table(text: str, runs: Sequence[Run]) -> str:
    """The guard's page with its table of versions as it was seen."""
    rows = [
        ["vLLM", "guard", *GUARDED.values()],
        ["---"] * (len(GUARDED) + 2),
        *(
            [run.version, f"`{guard}`", *(_seen(run, "guard", guard, each) for each in GUARDED)]
            for run in runs
            for guard in ("recompute", "fail")
        ),
    ]
    before, begins, rest = text.partition(TABLE_BEGINS)
    comment, _, _ = rest.partition("\n")
    _, ends, after = rest.partition(TABLE_ENDS)
    return f"{before}{begins}{comment}\n{_lines(rows)}{ends}{after}"


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
    seen = [_seen(run, "slow", runner, graph, barrier) for barrier in ("upstream", "auto")]
    return {
        ("waits", "waits"): "vLLM",
        ("runs ahead", "waits"): "**auto**",
        ("runs ahead", "runs ahead"): "nobody",
        ("waits", "runs ahead"): "only vLLM",
    }.get((seen[0], seen[1]), NOT_SEEN)


def _alike(run: Run, subject: str) -> str:
    auto, upstream = (_seen(run, subject, barrier) for barrier in ("auto", "upstream"))
    return auto if auto == upstream else f"`auto`: {auto}. `upstream`: {upstream}"


def _mixed(run: Run, step: int) -> str:
    place = VERSIONS.index(run.version) + step
    if not 0 <= place < len(VERSIONS):
        return ""
    return f"{VERSIONS[place]}: {_seen(run, 'mixed', VERSIONS[place])}"


def _seen(run: Run, *key: str) -> str:
    return run.observed.get(key, NOT_SEEN)


def _lines(rows: Sequence[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
