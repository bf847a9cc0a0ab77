"""The settings: precedence, types, and one error that names every mistake."""

import json
import math
from pathlib import Path

import pytest

from moriio_observed.config import (
    KEYS,
    Settings,
    SettingsError,
    of_connector,
    parse,
    shown,
    variable,
)
from moriio_observed.telemetry.catalog import WAIT_BUCKETS

ROOT = Path(__file__).parents[2]

# Every key: a good value in the config, the same as an environment variable, the setting.
GOOD = {
    "barrier": ("layer", "layer", "layer"),
    "guard": ("recompute", "recompute", "recompute"),
    "allow_unsafe": (True, "1", True),
    "wait_buckets": ([0.1, 1], "0.1,1", (0.1, 1.0)),
    "per_layer": (False, "false", False),
    "rank_label": ("0", "0", False),
    "max_remotes": (5, "5", 5),
    "quarantine_limit_s": (7, "7", 7.0),
    "otlp.traces": ("True", "true", True),
    "otlp.metrics": (False, "False", False),
    "otlp.endpoint": ("http://c:4317", "http://c:4317", "http://c:4317"),
    "otlp.protocol": ("http/protobuf", "http/protobuf", "http/protobuf"),
    "otlp.sample_ratio": (1, "1", 1.0),
    "otlp.slow_wait_s": (0.25, "0.25", 0.25),
    "otlp.hash_request_ids": (True, "true", True),
    "exporter.enabled": ("1", "1", True),
    "exporter.host": ("::", "::", "::"),
    "exporter.port": (9400, "9400", 9400),
    "exporter.discovery_dir": ("build/sd", "build/sd", "build/sd"),
}

BAD = [
    ("barrier", "laier"),
    ("barrier", ["layer"]),
    ("barrier", None),
    ("guard", "retry"),
    ("allow_unsafe", "yes"),
    ("allow_unsafe", 1),
    ("wait_buckets", []),
    ("wait_buckets", [0.1, 0.1]),
    ("wait_buckets", [1, 0.1]),
    ("wait_buckets", [0, 1]),
    ("wait_buckets", [-1, 1]),
    ("wait_buckets", [0.1, math.inf]),
    ("wait_buckets", [0.1, "1"]),
    ("wait_buckets", "0.1,1"),
    ("wait_buckets", 1),
    ("max_remotes", 1.5),
    ("max_remotes", -1),
    ("max_remotes", "32"),
    ("max_remotes", True),
    ("quarantine_limit_s", math.nan),
    ("quarantine_limit_s", math.inf),
    ("quarantine_limit_s", -0.1),
    ("quarantine_limit_s", 10**400),
    ("quarantine_limit_s", "600"),
    ("otlp.endpoint", ""),
    ("otlp.endpoint", 4317),
    ("otlp.protocol", "thrift"),
    ("otlp.sample_ratio", 1.5),
    ("otlp.sample_ratio", -0.5),
    ("otlp.sample_ratio", True),
    ("otlp.slow_wait_s", -1),
    ("exporter.host", ""),
    ("exporter.port", 65536),
    ("exporter.port", -1),
    ("exporter.discovery_dir", ""),
]

BAD_IN_ENVIRON = [
    ("barrier", "laier"),
    ("allow_unsafe", "yes"),
    ("wait_buckets", "0.1,x"),
    ("wait_buckets", "1,0.1"),
    ("max_remotes", "3.5"),
    ("quarantine_limit_s", "nan"),
    ("otlp.sample_ratio", "1.5"),
    ("otlp.slow_wait_s", "inf"),
    ("exporter.port", "70000"),
]


def _nested(depth: int) -> list[object]:
    value: list[object] = []
    for _ in range(depth):
        value = [value]
    return value


def nested(path: str, value: object) -> dict[str, object]:
    group, _, name = path.rpartition(".")
    return {group: {name: value}} if group else {name: value}


def setting(settings: Settings, path: str) -> object:
    value: object = settings
    for name in path.split("."):
        value = getattr(value, name)
    return value


def problems(config: object, environ: dict[str, str] | None = None) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as caught:
        parse(config, environ or {})
    return caught.value.problems


def test_without_anything_given_the_defaults_hold() -> None:
    settings = parse(None, {})
    assert settings == Settings()
    assert (settings.barrier, settings.guard, settings.allow_unsafe) == ("auto", "report", False)
    assert settings.wait_buckets == WAIT_BUCKETS
    assert (settings.per_layer, settings.rank_label, settings.max_remotes) == (True, True, 32)
    assert settings.quarantine_limit_s == 600
    otlp, exporter = settings.otlp, settings.exporter
    assert (otlp.traces, otlp.metrics, otlp.endpoint, otlp.protocol) == (None,) * 4
    assert (otlp.sample_ratio, otlp.slow_wait_s, otlp.hash_request_ids) == (0.01, 0.1, False)
    assert (exporter.enabled, exporter.host, exporter.port) == (False, "127.0.0.1", 0)
    assert exporter.discovery_dir is None
    assert settings.given == frozenset()


def test_the_table_of_good_values_has_every_key() -> None:
    assert set(GOOD) == set(KEYS)


@pytest.mark.parametrize("path", KEYS)
def test_config_sets_every_key(path: str) -> None:
    value, _, expected = GOOD[path]
    settings = parse(nested(path, value), {})
    assert setting(settings, path) == expected
    assert type(setting(settings, path)) is type(expected)
    assert settings.given == {path}


@pytest.mark.parametrize("path", KEYS)
def test_environment_sets_every_key(path: str) -> None:
    _, text, expected = GOOD[path]
    settings = parse(None, {variable(path): text})
    assert setting(settings, path) == expected
    assert type(setting(settings, path)) is type(expected)
    assert settings.given == {path}


def test_variables_are_named_after_the_path_in_capitals() -> None:
    assert variable("otlp.sample_ratio") == "MORIIO_OBSERVED_OTLP_SAMPLE_RATIO"


def test_config_wins_over_environment() -> None:
    settings = parse(
        {"barrier": "layer"},
        {"MORIIO_OBSERVED_BARRIER": "step", "MORIIO_OBSERVED_GUARD": "fail"},
    )
    assert (settings.barrier, settings.guard) == ("layer", "fail")
    assert settings.given == {"barrier", "guard"}


@pytest.mark.parametrize(("path", "value"), BAD)
def test_a_bad_value_is_refused_by_its_full_path_and_value(path: str, value: object) -> None:
    (problem,) = problems(nested(path, value))
    assert problem.startswith(
        f"kv_connector_extra_config.observed.{path} = {shown(value)}: allowed is"
    )


@pytest.mark.parametrize(
    "extra",
    [
        {"read_mode": True, "barrier": "step"},
        {"observd": {"barrier": "step"}},
        {"Observed": {"barrier": "step"}},
        {"otlp": {"sample_ratio": 0.1}},
    ],
)
def test_a_setting_beside_upstreams_own_is_refused_and_told_its_place(
    extra: dict[str, object],
) -> None:
    with pytest.raises(SettingsError, match=r"stand under kv_connector_extra_config\.observed"):
        of_connector(extra, {})


def test_upstreams_own_settings_are_none_of_our_business() -> None:
    extra = {"read_mode": True, "host_ip": "127.0.0.1", "backend": "rdma", "num_workers": 2}
    assert of_connector({**extra, "observed": {"barrier": "step"}}, {}).barrier == "step"


def test_misplaced_and_bad_settings_are_one_error() -> None:
    with pytest.raises(SettingsError) as refused:
        of_connector({"guard": "fail", "observed": {"barier": "step"}}, {})
    assert len(refused.value.problems) == 2


def test_a_very_long_value_is_cut_in_the_error() -> None:
    (problem,) = problems({"barrier": "x" * 100_000})
    assert len(problem) < 1000


def test_an_address_is_no_service_link_unless_the_variable_is_a_port() -> None:
    assert problems(None, {"MORIIO_OBSERVED_BARRIER": "tcp://10.0.0.1:80"})
    assert parse(None, {"MORIIO_OBSERVED_PORT": "tcp://10.0.0.1:80"}) == parse(None, {})


@pytest.mark.parametrize(("path", "text"), BAD_IN_ENVIRON)
def test_a_bad_variable_is_refused_by_its_name_and_value(path: str, text: str) -> None:
    (problem,) = problems(None, {variable(path): text})
    assert problem.startswith(f"{variable(path)} = {shown(text)}: allowed is")


def test_a_bad_variable_is_refused_even_where_the_config_overrides_it() -> None:
    (problem,) = problems({"barrier": "layer"}, {"MORIIO_OBSERVED_BARRIER": "laier"})
    assert problem.startswith("MORIIO_OBSERVED_BARRIER = 'laier'")


@pytest.mark.parametrize("value", [10**5000, _nested(2000)], ids=["long", "deep"])
def test_a_value_that_cannot_be_shown_is_refused_all_the_same(value: object) -> None:
    (problem,) = problems({"guard": value})
    assert f" = a {type(value).__name__} too large to show: allowed is one of" in problem


def test_a_refused_choice_is_told_the_choices() -> None:
    (problem,) = problems({"guard": "retry"})
    assert problem.endswith("one of report, recompute, fail")


def test_the_misspelt_case_names_both_mistakes_in_one_error() -> None:
    case = json.loads((ROOT / "tests/cases/misspelt.json").read_text())
    with pytest.raises(SettingsError) as caught:
        parse(case["kv_connector_extra_config"]["observed"], {})
    first, second = caught.value.problems
    assert first.startswith("kv_connector_extra_config.observed.barier = 'layer': no such setting")
    assert "did you mean barrier?" in first
    assert "otlp.sample_ratio" in first
    assert second == (
        "kv_connector_extra_config.observed.otlp.sample_ratio = 1.5:"
        " allowed is a number from 0 to 1"
    )
    assert first in str(caught.value)
    assert second in str(caught.value)


@pytest.mark.parametrize(
    ("config", "place", "nearest"),
    [
        ({"otlp": {"sample_rate": 1}}, "otlp.sample_rate", "otlp.sample_ratio"),
        ({"sample_ratio": 1}, "sample_ratio", "otlp.sample_ratio"),
        ({"otlp": {"guard": "fail"}}, "otlp.guard", "guard"),
    ],
)
def test_an_unknown_key_is_told_the_nearest_wherever_it_belongs(
    config: dict[str, object], place: str, nearest: str
) -> None:
    (problem,) = problems(config)
    assert problem.startswith(f"kv_connector_extra_config.observed.{place} = ")
    assert f"did you mean {nearest}?" in problem


def test_an_unknown_key_like_none_we_know_gets_no_suggestion() -> None:
    (problem,) = problems({"zzz": 1})
    assert "did you mean" not in problem
    assert "allowed are barrier, guard" in problem


@pytest.mark.parametrize("name", ["MORIIO_OBSERVED_BARIER", "MORIIO_OBSERVED_barrier"])
def test_an_unknown_variable_is_refused_and_told_the_nearest(name: str) -> None:
    (problem,) = problems(None, {name: "layer"})
    assert problem.startswith(f"{name} = 'layer': no such setting")
    assert "did you mean MORIIO_OBSERVED_BARRIER?" in problem


def test_a_group_is_no_variable() -> None:
    (problem,) = problems(None, {"MORIIO_OBSERVED_OTLP": "1"})
    assert problem.startswith("MORIIO_OBSERVED_OTLP = '1': no such setting")


@pytest.mark.parametrize(
    "name",
    ["MORIIO_OBSERVED", "MORIIO_OBSERVED_LOOPBACK", "MORIIO_OBSERVED_LOOPBACK_FAULTS", "PATH"],
)
def test_variables_that_are_not_settings_are_left_alone(name: str) -> None:
    assert parse(None, {name: "1"}) == Settings()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("MORIIO_OBSERVED_SERVICE_HOST", "10.0.0.1"),
        ("MORIIO_OBSERVED_SERVICE_PORT_METRICS", "9400"),
        ("MORIIO_OBSERVED_PORT", "tcp://10.0.0.1:9400"),
        ("MORIIO_OBSERVED_PORT_9400_TCP_ADDR", "10.0.0.1"),
        ("MORIIO_OBSERVED_EXPORTER_PORT", "tcp://10.0.0.1:9400"),
    ],
)
def test_variables_kubernetes_sets_for_a_service_of_our_name_are_left_alone(
    name: str, text: str
) -> None:
    assert parse(None, {name: text}) == Settings()


def test_a_variable_set_to_nothing_counts_as_not_set() -> None:
    assert parse(None, {"MORIIO_OBSERVED_BARRIER": ""}) == Settings()


@pytest.mark.parametrize(
    "path",
    [
        "otlp.traces",
        "otlp.metrics",
        "otlp.endpoint",
        "otlp.protocol",
        "exporter.discovery_dir",
    ],
)
def test_null_leaves_a_setting_without_default_unset(path: str) -> None:
    assert parse(nested(path, None), {}) == Settings()


@pytest.mark.parametrize("observed", [3, "layer", ["barrier"], True])
def test_observed_must_be_a_mapping(observed: object) -> None:
    assert problems(observed) == (
        f"kv_connector_extra_config.observed = {observed!r}: allowed is a mapping of settings",
    )


@pytest.mark.parametrize("group", ["otlp", "exporter"])
def test_a_group_must_be_a_mapping(group: str) -> None:
    assert problems({group: 1}) == (
        f"kv_connector_extra_config.observed.{group} = 1: allowed is a mapping of settings",
    )


def test_off_needs_allow_unsafe() -> None:
    (problem,) = problems({"barrier": "off"})
    assert problem.startswith("kv_connector_extra_config.observed.barrier = 'off'")
    assert "allow_unsafe" in problem
    assert parse({"barrier": "off", "allow_unsafe": True}, {}).barrier == "off"


def test_off_in_the_environment_is_refused_by_the_name_of_the_variable() -> None:
    (problem,) = problems(None, {"MORIIO_OBSERVED_BARRIER": "off"})
    assert problem.startswith("MORIIO_OBSERVED_BARRIER = 'off'")


def test_mistakes_in_config_and_environment_come_in_one_error() -> None:
    found = problems({"guard": "retry", "otlp": 1}, {"MORIIO_OBSERVED_BARIER": "x"})
    assert len(found) == 3
