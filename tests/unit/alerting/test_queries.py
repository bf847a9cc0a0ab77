import pytest

from moriio_observed.alerting.queries import Queries, instrument_of

TARGET = frozenset({"job", "instance"})
VLLM = {"model_name", "engine"}
CANARY = {"model_name", "target"}
RECORDED = {
    "engine:x:rate5m": "sum by (job, cause) (rate(moriio_unprotected_steps_total[5m]))",
}


def problems(query: str) -> list[str]:
    queries = Queries(TARGET, RECORDED)
    queries.labels(query)
    return queries.problems


def labels(query: str) -> set[str]:
    queries = Queries(TARGET, RECORDED)
    found = set(queries.labels(query))
    assert queries.problems == []
    return found


@pytest.mark.parametrize(
    "name",
    [
        "moriio_nothing",
        "moriio_unprotected_steps",
        "moriio_barrier_wait_seconds",
        "moriio_requests_total_sum",
        "moriio_reads_in_flight_bucket",
        "moriio_canary_requests_total",
        "moriio_canary_probe_seconds",
        "vllm:none",
        "fleet:x:rate5m",
        "up",
    ],
)
def test_a_metric_that_nobody_exposes_is_told(name) -> None:
    assert problems(f"rate({name}[5m])") == [f"nobody exposes {name}"]


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ('moriio_requests_total{cause="failed"}', "moriio_requests_total has no label cause"),
        (
            'moriio_unprotected_steps_total{certainty="sure"}',
            "certainty of moriio_unprotected_steps_total is never sure",
        ),
        (
            'moriio_exposed_requests_total{action=~"recomputed|faild"}',
            "action of moriio_exposed_requests_total is never faild",
        ),
        (
            'moriio_exposed_requests_total{action="recompute."}',
            "action of moriio_exposed_requests_total is never recompute.",
        ),
        ('engine:x:rate5m{cause="none"}', "cause of engine:x:rate5m is never none"),
        ('engine:x:rate5m{instance="a"}', "engine:x:rate5m has no label instance"),
        ("sum by (tp_rank) (moriio_requests_total)", "sum by: no label tp_rank"),
        ("sum without (cause) (sum by (job) (engine:x:rate5m))", "sum without: no label cause"),
        (
            "moriio_requests_total / on (cause) moriio_steps_total",
            "/ on: no label cause",
        ),
        ("moriio_requests_total and ignoring (cause) moriio_requests_total", "and ignoring: no "),
        ('moriio_canary_rounds_total{result="match"}', "result of moriio_canary_rounds_total is "),
        ("sum by (engine) (moriio_canary_rounds_total)", "sum by: no label engine"),
        ("sum by (target) (moriio_requests_total)", "sum by: no label target"),
        ("sum(", "does not parse"),
    ],
)
def test_a_label_that_is_not_there_is_told(query, says) -> None:
    (problem,) = problems(query)
    assert problem.startswith(says)


@pytest.mark.parametrize(
    "query",
    [
        'moriio_exposed_requests_total{action=~"(recomputed|failed)", cause=~"fail.+"}',
        'moriio_config_info{mori_version="0+loopback", version!="1.(0"}',
    ],
)
def test_a_value_that_a_label_takes_is_well_however_it_is_asked_for(query) -> None:
    assert problems(query) == []


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("moriio_requests_total", TARGET | VLLM),
        ("rate(moriio_barrier_wait_seconds_bucket[5m])", TARGET | VLLM | {"site", "tp_rank", "le"}),
        ("vllm:num_requests_running > 0", TARGET | VLLM),
        ("moriio_canary_probe_seconds_count", TARGET | CANARY | {"concurrency"}),
        ("2 * engine:x:rate5m", {"job", "cause"}),
        ("time() - engine:x:rate5m", {"job", "cause"}),
        ('label_replace(engine:x:rate5m, "why", "b", "", "")', {"job", "cause", "why"}),
        (
            "moriio_unprotected_steps_total and ignoring (cause, certainty) moriio_requests_total",
            TARGET | VLLM | {"cause", "certainty"},
        ),
        ("sum without (cause) (engine:x:rate5m)", {"job"}),
        ("sum(moriio_requests_total)", set()),
        ("max_over_time(engine:x:rate5m[1h:5m])", {"job", "cause"}),
        ("sum by (job) (moriio_requests_total) or engine:x:rate5m", {"job", "cause"}),
        ("engine:x:rate5m unless on (job) moriio_requests_total", {"job", "cause"}),
    ],
)
def test_the_labels_of_a_result_are_known(query, expected) -> None:
    assert labels(query) == expected


def test_the_series_of_a_histogram_are_its_parts() -> None:
    assert instrument_of("moriio_step_seconds") is None
    for part in ("bucket", "sum", "count"):
        found = instrument_of(f"moriio_step_seconds_{part}")
        assert found is not None
        assert found.name == "step_seconds"
