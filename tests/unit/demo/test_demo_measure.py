import json
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from moriio_observed.demo import measure as measuring
from moriio_observed.demo.client import Answer
from moriio_observed.demo.errors import DemoError
from moriio_observed.demo.measure import Observation, measure
from moriio_observed.demo.metrics import parse

PROMPTS = ["a", "b"]
REFERENCES = [Answer("ref-0", tokens=(1,)), Answer("ref-1", tokens=(2,))]
FAULTS = {"rules": [{"hang": True}]}


@dataclass
class FakeEngine:
    """A decode engine that exposes the named prompts and tells of it `lag` scrapes late."""

    log: Path
    exposes: tuple[str, ...] = ()
    answers: dict[str, Answer] = field(default_factory=dict)
    lag: int = 0
    harmed: list[object] = field(default_factory=list)
    requests: int = 0
    exposed: int = 0
    scrapes: int = 0

    def ask(self, prompts, max_tokens=32):
        self.scrapes = 0
        return [self._answer(prompt) for prompt in prompts]

    def _answer(self, prompt):
        name = prompt if prompt in PROMPTS else "flush"
        self.requests += 1
        if name in self.exposes:
            self.exposed += 1
            event = {"request_id": f"{name}-0-12345678", "step": self.exposed}
            with self.log.open("a") as log:
                log.write(f"moriio_exposure {json.dumps(event)}\n")
        right = (PROMPTS.index(name) + 1,) if name in PROMPTS else ()
        return self.answers.get(name, Answer(f"{name}-0", tokens=right))

    def scrape(self, _url):
        self.scrapes += 1
        late = self.scrapes <= self.lag
        counted = {
            "moriio_requests": self.requests,
            "moriio_exposed_requests": self.exposed,
            "moriio_unprotected_steps": self.exposed,
        }
        return parse(
            "".join(
                f"# TYPE {name} counter\n{name}_total {0 if late else value}\n"
                for name, value in counted.items()
            )
        )

    def pair(self):
        return SimpleNamespace(
            client=self,
            decode=SimpleNamespace(log=self.log, ports=SimpleNamespace(url="")),
            faults=SimpleNamespace(set=self.harmed.append, clear=lambda: self.harmed.append({})),
        )


@pytest.fixture
def engine(tmp_path, monkeypatch):
    log = tmp_path / "decode.log"
    log.touch()
    fake = FakeEngine(log)
    monkeypatch.setattr(measuring, "scrape", fake.scrape)
    monkeypatch.setattr(measuring, "POLL_S", 0)
    return fake


def row_of(engine):
    return measure("phase", engine.pair(), FAULTS, PROMPTS, REFERENCES)


def test_a_healthy_phase_counts_its_own_requests_only(engine):
    row = row_of(engine)
    assert (row.requests, row.right, row.exposed, row.unprotected_steps) == (2, 2, 0, 0)


def test_faults_are_set_for_the_phase_and_cleared_after_it(engine):
    row_of(engine)
    assert engine.harmed == [FAULTS, {}]


def test_a_wrong_answer_of_an_exposed_request_is_accounted_for(engine):
    engine.exposes = ("a",)
    engine.answers = {"a": Answer("a-0", tokens=(9,))}
    row = row_of(engine)
    assert (row.right, row.wrong, row.exposed, row.wrong_not_exposed) == (1, 1, 1, 0)


def test_a_wrong_answer_is_not_excused_by_an_exposure_of_another_request(engine):
    engine.exposes = ("b",)
    engine.answers = {"a": Answer("a-0", tokens=(9,))}
    row = row_of(engine)
    assert (row.wrong, row.exposed, row.wrong_not_exposed) == (1, 1, 1)


def test_counters_that_arrive_late_are_waited_for(engine):
    engine.exposes = ("a",)
    engine.lag = 3
    assert row_of(engine).exposed == 1


def test_the_request_that_brings_the_last_counters_is_kept_out_of_the_row(engine):
    engine.exposes = ("a", "flush")
    row = row_of(engine)
    assert (row.requests, row.exposed, row.unprotected_steps) == (2, 1, 1)


def test_counters_that_never_agree_with_the_log_are_an_error(engine, monkeypatch):
    monkeypatch.setattr(measuring, "SETTLE_S", 0)
    observation = Observation(engine.pair().decode)
    engine.log.write_text('moriio_exposure {"request_id": "x", "step": 1}\n')
    with pytest.raises(DemoError, match="0 exposed ones, the log of 1"):
        observation.settled(0)
