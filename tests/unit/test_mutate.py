"""What `make mutate` makes of the tests' outcomes."""

from __future__ import annotations

from typing import Any

import pytest

from scripts import mutate
from tests.contract.mutation import NOTHING
from tests.contract.versions import Case, Run


def tried(hook: str, test: str, outcome: str) -> Case:
    """One test without one hook."""
    return Case("suite", f"{test}[{hook}]", outcome, observed={("without", test): hook})


def ran(version: str, *cases: Case, returncode: int = 1) -> Run:
    return Run(version, cases, seconds=1.0, output="what pytest printed", returncode=returncode)


NOTICED = (tried("a_hook", "test_one", "passed"), tried("a_hook", "test_two", "failed"))
UNNOTICED = (tried("a_hook", "test_one", "passed"), tried("a_hook", "test_two", "passed"))


def test_a_hook_is_noticed_by_the_test_that_fails_without_it() -> None:
    assert mutate.Verdicts.of(ran("1", *NOTICED)).noticed_by == {"a_hook": "test_two"}


def test_a_hook_without_which_every_test_passes_has_survived() -> None:
    assert mutate.Verdicts.of(ran("1", *UNNOTICED)).noticed_by == {"a_hook": mutate.SURVIVED}


def test_a_test_that_fails_with_nothing_removed_has_noticed_nothing() -> None:
    run = ran("1", *NOTICED, tried(NOTHING, "test_two", "failed"))
    assert mutate.Verdicts.of(run).noticed_by == {"a_hook": mutate.SURVIVED}


def test_a_test_that_was_not_run_any_more_changes_nothing() -> None:
    run = ran("1", *NOTICED, tried("a_hook", "test_three", "skipped"))
    assert mutate.Verdicts.of(run).noticed_by == {"a_hook": "test_two"}


def test_what_a_test_saw_besides_is_not_taken_for_a_hook() -> None:
    seen = Case("suite", "test_one", "passed", observed={("placement", "layer"): "protected"})
    assert mutate.Verdicts.of(ran("1", seen)).noticed_by == {}


def test_the_table_is_hook_by_version_and_names_each_test_once() -> None:
    verdicts = [
        mutate.Verdicts("0.1.0", {"first": "test_one", "second": "test_two"}),
        mutate.Verdicts("0.2.0", {"first": "test_one", "third": mutate.SURVIVED}),
    ]
    assert mutate.table(verdicts) == [
        "           0.1.0     0.2.0",
        "first          1         1",
        "second         2         -",
        "third          -  SURVIVED",
        "",
        "-: the version has no use for the hook; a number: the test that noticed",
        "  1 test_one",
        "  2 test_two",
    ]


@pytest.mark.parametrize(
    ("runs", "code"),
    [
        ([ran("1", *NOTICED), ran("2", *NOTICED)], 0),
        ([ran("1", *NOTICED), ran("2", *UNNOTICED, returncode=0)], 1),
        ([ran("1", *NOTICED), ran("2")], 1),
        ([ran("1", *NOTICED, returncode=2)], 1),
    ],
    ids=["all noticed", "one survives", "no test has run", "pytest was interrupted"],
)
def test_it_succeeds_only_if_every_hook_was_noticed_on_every_version(
    runs: list[Run], code: int
) -> None:
    assert mutate.report(runs) == code


def test_a_survivor_is_named_with_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    mutate.report([ran("0.1.0", *UNNOTICED)])
    assert "nobody has noticed that there was no a_hook on 0.1.0" in capsys.readouterr().out


def test_a_run_that_broke_off_shows_what_pytest_said(capsys: pytest.CaptureFixture[str]) -> None:
    mutate.report([ran("0.1.0", returncode=3)])
    assert "what pytest printed" in capsys.readouterr().out


def test_only_the_versions_and_hooks_that_were_asked_for_are_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []

    def run_on(version: str, suites: Any, **environment: str) -> Run:
        asked.append((version, environment["MUTATE_HOOKS"]))
        return ran(version, *NOTICED)

    monkeypatch.setattr(mutate, "run_on", run_on)
    arguments = [
        "--version",
        "0.30.0",
        "--version",
        "0.32.0",
        "--hook",
        "shutdown",
        "--hook",
        "send_notify",
    ]
    assert mutate.main(arguments) == 0
    assert sorted(asked) == [("0.30.0", "shutdown,send_notify"), ("0.32.0", "shutdown,send_notify")]
