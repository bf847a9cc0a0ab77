"""The acceptance on a real pair without a GPU: nothing refuted, and nothing claimed of hardware."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from moriio_observed.cli import main
from moriio_observed.demo.pair import Pair
from tests.canary.stage import WORDS, choice
from tests.faults.rows import taking

GetPair = Callable[..., Pair]


def accept(pair: Pair, folder: Path, *more: str) -> tuple[int, dict[str, Any]]:
    """Run it as a user does; gives the exit status and the report."""
    chosen = choice(pair.client)
    words = folder / "words"
    words.write_text(" ".join(WORDS))
    status = main(
        [
            "accept",
            "--quick",
            "--max-tokens=16",
            "--minutes=10",  # on a machine that is busy otherwise
            f"--prefill={chosen.prefill}",
            f"--decode={chosen.decode}",
            f"--prefill-address={chosen.prefill_address}",
            f"--decode-address={chosen.decode_address}",
            f"--words={words}",
            f"--report={folder / 'accept.json'}",
            *more,
        ]
    )
    return status, json.loads((folder / "accept.json").read_text())


def verdicts(report: dict[str, Any]) -> dict[str, str]:
    return {claim["name"]: claim["verdict"] for claim in report["claims"]}


def test_a_healthy_pair_on_cpus_proves_what_needs_no_hardware_and_claims_no_more(
    pair: GetPair, tmp_path: Path
) -> None:
    # Slow enough that barriers wait.
    running = pair()
    running.faults.set(taking(0.05))
    status, report = accept(running, tmp_path, "--concurrency=4,16", "--hardware", "two cores")
    assert (status, report["complete"], report["ended"]) == (0, True, None)
    assert report["hardware"] == "two cores"
    found = verdicts(report)
    proven = {name for name, verdict in found.items() if verdict == "proven"}
    assert proven == {"answers", "observed", "reads", "waits", "releases", "metrics"}
    assert set(found.values()) == {"proven", "not proven here"}
    assert [claim for claim in report["claims"] if claim["needs_hardware"]]
    markdown = (tmp_path / "accept.md").read_text()
    assert "| proven | `answers`" in markdown
    for text in (json.dumps(report), markdown):
        assert "127.0.0.1" not in text
        assert WORDS[1] + " " + WORDS[2] not in text


def test_wrong_answers_that_are_told_refute_nothing_and_prove_nothing(
    pair: GetPair, tmp_path: Path
) -> None:
    running = pair()
    running.faults.set(taking(3.0))
    _, report = accept(running, tmp_path, "--concurrency=4")
    answers = next(claim for claim in report["claims"] if claim["name"] == "answers")
    assert answers["verdict"] == "not proven here"
    assert "wrong, and told" in answers["reason"]
    assert "refuted" not in verdicts(report).values()
