import json
import logging
import math
from pathlib import Path

import pytest

from moriio_observed.loopback.enums import StatusCode
from moriio_observed.loopback.faultfile import FaultFile, FaultFileError, parse
from moriio_observed.loopback.faults import NEVER, Plan, Rule


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "faults.json"


@pytest.fixture
def watched(path: Path) -> FaultFile:
    return FaultFile(str(path), check_interval_s=0.0)


def write(path: Path, *rules: object, **keys: object) -> None:
    path.write_text(json.dumps({"rules": rules, **keys}))


def rule(**keys: object) -> Rule:
    [only] = parse(json.dumps({"rules": [keys]})).rules
    return only


def delay(watched: FaultFile) -> float:
    return watched.plan().rules[0].latency_s


def test_an_empty_object_is_a_plan_without_rules():
    assert parse("{}") == Plan()


def test_seed_and_reset_are_read():
    assert parse('{"seed": 7, "reset_ordinals": true}') == Plan(seed=7, reset_ordinals=True)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"latency_s": 0.5, "jitter_s": 1}, Rule(latency_s=0.5, jitter_s=1.0)),
        ({"bandwidth_bytes_per_s": 1000}, Rule(bandwidth_bytes_per_s=1000.0)),
        ({"hang": True}, Rule(latency_s=NEVER)),
        ({"hang": 3}, Rule(latency_s=3.0)),
        ({"sq_full": True}, Rule(sq_full_times=NEVER)),
        ({"sq_full": 2}, Rule(sq_full_times=2)),
        (
            {"fail": True},
            Rule(fail=(StatusCode.ERR_RDMA_OP, "injected by the loopback")),
        ),
        (
            {"fail": {"code": "ERR_BAD_STATE", "message": "so"}, "latency_s": 1},
            Rule(fail=(StatusCode.ERR_BAD_STATE, "so"), latency_s=1.0),
        ),
        (
            {"requests": [0, 2], "layers": [1], "side": "consumer", "probability": 0.5, "hang": 1},
            Rule(frozenset([0, 2]), frozenset([1]), "consumer", 0.5, latency_s=1.0),
        ),
    ],
)
def test_a_rule_is_read(keys, expected):
    assert rule(**keys) == expected


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ([], "the file: [] given, an object expected"),
        ({"rules": {}}, "rules: {} given"),
        ({"seed": "x"}, 'seed: "x" given, an integer expected'),
        ({"reset_ordinals": 1}, "reset_ordinals: 1 given, true or false expected"),
        ({"sede": 1}, "sede: unknown key, did you mean seed?"),
        ({"rules": [1]}, "rules[0]: 1 given, an object expected"),
        ({"rules": [{"layers": [1]}]}, "rules[0]: has no effect"),
        ({"rules": [{"latency": 1}]}, "rules[0].latency: unknown key, did you mean latency_s?"),
        ({"rules": [{"latency_s": -1}]}, "rules[0].latency_s: -1 given, a number from 0 expected"),
        ({"rules": [{"latency_s": True}]}, "rules[0].latency_s: true given"),
        ({"rules": [{"jitter_s": "1"}]}, "rules[0].jitter_s"),
        ({"rules": [{"latency_s": math.nan}]}, "rules[0].latency_s"),
        ({"rules": [{"hang": "x"}]}, 'rules[0].hang: "x" given, true, or seconds'),
        ({"rules": [{"hang": 1, "latency_s": 1}]}, "rules[0].hang: cannot be combined"),
        ({"rules": [{"sq_full": 0}]}, "rules[0].sq_full: 0 given"),
        ({"rules": [{"sq_full": 1, "fail": True}]}, "rules[0].sq_full: cannot be combined"),
        ({"rules": [{"bandwidth_bytes_per_s": 0}]}, "a number above 0"),
        ({"rules": [{"hang": 1, "probability": 2}]}, "rules[0].probability: 2 given"),
        ({"rules": [{"hang": 1, "requests": 3}]}, "rules[0].requests: 3 given"),
        ({"rules": [{"hang": 1, "layers": [-1]}]}, "rules[0].layers: [-1] given"),
        ({"rules": [{"hang": 1, "side": "left"}]}, 'rules[0].side: "left" given'),
        ({"rules": [{"fail": {"code": "SUCCESS"}}]}, 'rules[0].fail.code: "SUCCESS" given'),
        ({"rules": [{"fail": {"message": 1}}]}, "rules[0].fail.message: 1 given"),
        ({"rules": [{"fail": {"kode": 1}}]}, "rules[0].fail.kode: unknown key, did you mean code?"),
    ],
)
def test_a_wrong_key_is_named(document, told):
    with pytest.raises(FaultFileError) as caught:
        parse(json.dumps(document))
    assert told in str(caught.value)


def test_every_wrong_key_is_named_in_one_error():
    with pytest.raises(FaultFileError) as caught:
        parse('{"seed": "x", "rules": [{"hang": "y"}]}')
    assert "seed" in str(caught.value)
    assert "rules[0].hang" in str(caught.value)


def test_without_a_path_there_are_no_faults():
    assert FaultFile(None).plan() == Plan()


def test_a_file_that_is_not_there_yet_means_no_faults(watched):
    assert watched.plan() == Plan()


def test_a_file_that_comes_is_taken(watched, path):
    watched.plan()
    write(path, {"latency_s": 1})
    assert delay(watched) == 1.0


def test_a_file_that_changes_is_taken(watched, path):
    write(path, {"latency_s": 1})
    watched.plan()
    write(path, {"latency_s": 2.5})
    assert delay(watched) == 2.5


def test_a_file_that_goes_takes_its_faults_along(watched, path):
    write(path, {"latency_s": 1})
    watched.plan()
    path.unlink()
    assert watched.plan() == Plan()


def test_the_file_is_looked_at_no_more_often_than_the_interval(path):
    clock = Clock()
    watched = FaultFile(str(path), clock, check_interval_s=1.0)
    watched.plan()
    write(path, {"latency_s": 1})
    clock.now = 0.5
    assert watched.plan() == Plan()
    clock.now = 1.0
    assert delay(watched) == 1.0


@pytest.mark.parametrize(
    "bad", ['{"rules": [{"late', '{"rules": [{"hangs": 1}]}', '{"rules": [\xe9']
)
def test_a_bad_file_keeps_the_rules_before_it(watched, path, bad):
    write(path, {"latency_s": 1})
    watched.plan()
    path.write_bytes(bad.encode("latin-1"))
    assert delay(watched) == 1.0


def test_a_bad_file_is_told_of_once_and_names_the_key(watched, path, caplog):
    write(path, {"hangs": 1})
    for _ in range(3):
        watched.plan()
    [warning] = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "rules[0].hangs: unknown key, did you mean hang?" in warning.getMessage()
    assert str(path) in warning.getMessage()


def test_a_file_mended_is_taken(watched, path):
    path.write_text('{"rules"')
    watched.plan()
    write(path, {"latency_s": 3})
    assert delay(watched) == 3.0


def test_each_version_that_asks_for_it_counts_as_a_reset(watched, path):
    for seed in (1, 20, 300):
        write(path, reset_ordinals=seed != 20, seed=seed)
        watched.plan()
        watched.plan()
    assert watched.resets == 2
