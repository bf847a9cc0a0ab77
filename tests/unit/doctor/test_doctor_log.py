"""vLLM logs of every release, as incidents."""

from __future__ import annotations

import re

import pytest

from moriio_observed.doctor.checks.log import check
from moriio_observed.doctor.findings import Severity
from moriio_observed.doctor.messages import MESSAGES, Kind
from moriio_observed.doctor.troubles import TROUBLES
from tests.unit.doctor.patients import ROOT, incidents

WORKER = "(Worker_DP1_TP3 pid=220) WARNING 08-12 09:20:44 [moriio_connector.py:1] "


def at(time: str, message: str, process: str = "Worker_TP0 pid=7", level: str = "WARNING") -> str:
    return f"({process}) {level} {time} [moriio_connector.py:1] {message}\n"


TIMED_OUT = (
    "MoRIIO READ barrier timed out for layer %s; proceeding (request dropped via get_finished)."
)
GAVE_UP = "MoRIIO READ barrier did not complete for layer %s; proceeding to transfer cleanup."
ABORTED = "RDMA read TIMED OUT for req %s after 120.3s (VLLM_MORIIO_TRANSFER_TIMEOUT_S=120)"
OURS = "MoRIIO READ barrier (layer) timed out after 30.0 s with 1 of 64 reads in flight."
STEP = "MoRIIO READ barrier failed with 3/128 reads still in flight; failing the step."


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.text[:40])
def test_every_message_is_recognised_with_what_it_says(message: object) -> None:
    assert isinstance(message, type(MESSAGES[0]))
    said = iter(range(1, 9))
    text = "".join(
        literal + (str(next(said)) if more else "")
        for literal, more in zip(
            message.literals, [True] * (len(message.literals) - 1) + [False], strict=True
        )
    )
    fields = message.find(f"{text} and more" if message.literals[-1] else text)
    assert fields is not None
    assert list(fields) == [name for name in message.fields if name]
    assert all(fields.values())


def test_every_kind_of_message_is_a_sign_of_something_or_more_of_a_barriers() -> None:
    details = {Kind.TIMED_OUT, Kind.FAILED, Kind.SHARE}
    assert set(Kind) - details == TROUBLES.keys()


def test_our_own_messages_stand_in_our_own_sources() -> None:
    sources = " ".join(
        " ".join(re.findall(r'"([^"\n]*)"', path.read_text()))
        for path in (ROOT / "moriio_observed").rglob("*.py")
        if path.parent.name != "doctor"
    )
    for message in MESSAGES:
        if not message.since:
            assert message.literals[0].split("  ")[0].strip() in re.sub(" +", " ", sources)


@pytest.mark.parametrize("message", [TIMED_OUT % "a.0", GAVE_UP % "a.0", STEP, OURS])
def test_barriers_of_every_release_make_hung_reads(message: str) -> None:
    [found] = incidents(WORKER + message)
    assert found.trouble.name == "log-hung-reads"
    assert list(found.ranks) == ["DP1 TP3"]


def test_signs_on_several_ranks_and_layers_are_one_incident() -> None:
    [found] = incidents(
        at("08-12 09:20:44", TIMED_OUT % "model.layers.3.attn")
        + at("08-12 09:20:45", TIMED_OUT % "model.layers.4.attn", "Worker_TP1 pid=8")
        + at("08-12 09:22:40", ABORTED % "cmpl-1", "Worker_TP1 pid=8", "ERROR")
    )
    assert list(found.layers) == ["model.layers.3.attn", "model.layers.4.attn"]
    assert list(found.ranks) == ["TP0", "TP1"]
    assert list(found.requests) == ["cmpl-1"]
    assert (found.first, found.last) == ("08-12 09:20:44", "08-12 09:22:40")
    assert found.releases == ("0.28", "0.30")


def test_after_a_quiet_time_it_is_another_incident() -> None:
    assert [
        found.first
        for found in incidents(
            at("08-12 09:00:00", TIMED_OUT % "a.0")
            + at("08-12 09:04:59", TIMED_OUT % "a.0")
            + at("08-12 09:10:00", TIMED_OUT % "a.0")
        )
    ] == ["08-12 09:00:00", "08-12 09:10:00"]


def test_new_years_eve_is_no_end_of_an_incident() -> None:
    [found] = incidents(
        at("12-31 23:59:40", TIMED_OUT % "a.0") + at("01-01 00:00:10", TIMED_OUT % "a.0")
    )
    assert found.signs == {Kind.LAYER_TIMEOUT: 2}


def test_a_log_of_years_keeps_its_order() -> None:
    days = ("08-12", "12-31", "04-01", "08-12", "12-31", "04-01")
    log = "".join(at(f"{day} 09:20:44", TIMED_OUT % "a.0") for day in days)
    assert len(incidents(log)) == len(days)


def test_a_clock_that_goes_mad_ends_nothing() -> None:
    log = "".join(at(f"{day} 09:20:44", "Nothing.") for day in ("12-31", "04-01", "08-12") * 9000)
    assert len(incidents(log + at("08-12 09:20:45", TIMED_OUT % "a.0"))) == 1


def test_a_barrier_that_gave_up_because_a_read_failed_is_a_failed_read() -> None:
    [found] = incidents(
        at("08-12 09:20:44", GAVE_UP % "a.0")
        + at("08-12 09:20:44", "vllm...TransferError: 1/64 transfers failed:")
        + at("08-12 09:20:44", "RDMA transfer failed: flushed (code=StatusCode.ERR_RDMA_OP)")
    )
    assert found.trouble.name == "log-failed-reads"
    assert found.said["code"] == "StatusCode.ERR_RDMA_OP"
    assert (found.said["open"], found.said["waited"]) == ("1", "64")


def test_details_are_the_barriers_of_the_same_process() -> None:
    hung, failed = incidents(
        at("08-12 09:20:44", GAVE_UP % "a.0", "Worker_TP0 pid=1")
        + at("08-12 09:20:44", GAVE_UP % "a.1", "Worker_TP1 pid=2")
        + at("08-12 09:20:44", "RDMA transfer timed out after 30s.", "Worker_TP0 pid=1")
        + at("08-12 09:20:44", "RDMA transfer failed: x (code=13)", "Worker_TP1 pid=2")
    )
    assert (list(hung.layers), list(failed.layers)) == (["a.0"], ["a.1"])
    assert failed.trouble.name == "log-failed-reads"


@pytest.mark.parametrize(
    ("message", "trouble"),
    [
        (
            (
                "RDMA transfer failed for request cmpl-1: gone (code=13). Notifying prefill to free"
                " blocks; request will be aborted by timeout."
            ),
            "log-failed-reads",
        ),
        (
            (
                "MoRIIO READ send queue stayed full past transfer_timeout for req r layer l;"
                " storing failed status (get_finished notifies prefill and drops the request)."
            ),
            "log-send-queue-full",
        ),
        (
            (
                "Reaped 3 deferred sends with no finished_sending notification after 60s. This"
                " indicates lost async KV completion notifications from the KV connector."
            ),
            "log-reaped-sends",
        ),
        ("Failed to send notification to tcp://h:1: no route", "log-notify-failures"),
        ("Eager MoRIIO handshake failed for 10.0.0.8:6301", "log-handshake-failures"),
        ("Handshake with 10.0.0.8:6301 failed", "log-handshake-failures"),
        (
            (
                "Got invalid KVTransferParams: {'do_remote_prefill': True}. This request will not"
                " utilize KVTransfer"
            ),
            "log-router",
        ),
        (
            (
                "ValueError: local tp_size 6 must be a multiple of remote tp_size 4 for"
                " heterogeneous-TP P/D"
            ),
            "log-uneven-tp",
        ),
        ("bad moriio_observed settings:", "log-settings-refused"),
        (
            (
                "MoRI-IO decode notify: remote_dp_size=2 but the router did not pin"
                " remote_dp_rank for request r; defaulting to rank 0."
            ),
            "log-router-rank",
        ),
        ("MoRIIO discovery heartbeat exited with code 1", "log-discovery"),
        ("Max retries (5) exceeded. Stopping ping loop.", "log-discovery"),
        (
            (
                "MoRIIO READ mode is running with FULL CUDA graphs: per-layer KV-read barrier"
                " can't fire"
            ),
            "log-full-graphs",
        ),
        ("mori reports a peer failure: LOCAL_PORT_DOWN from p:1 (mlx5_0)", "log-peer-failures"),
        (
            "moriio_observed failed and steps back until the engine restarts: KeyError",
            "log-own-failure",
        ),
        (
            "This vLLM's MoRIIO connector is not one that moriio_observed knows (x); it runs as",
            "log-unknown-vllm",
        ),
        ('moriio_exposure {"request_id": "r", "action": "reported"}', "log-exposures"),
        ('moriio_phantom_hit {"request_id": "r", "action": "reported"}', "log-phantom-hits"),
        ('moriio_stale_read {"request_id": "r", "action": "reported"}', "log-stale-reads"),
    ],
)
def test_what_else_can_go_wrong_is_told_apart(message: str, trouble: str) -> None:
    [found] = incidents(WORKER + message)
    assert found.trouble.name == trouble


def test_our_own_lines_name_requests_layers_and_causes() -> None:
    [found] = incidents(
        WORKER + 'moriio_exposure {"request_id": "cmpl-7", "step": 3, "cause": "timeout",'
        ' "certainty": "certain", "layers": [3, 4], "action": "reported"}'
    )
    assert (list(found.requests), list(found.layers)) == (["cmpl-7"], ["3", "4"])
    assert list(found.causes) == ["timeout"]
    assert next(check("d.log", [found])).severity is Severity.CRITICAL


def test_what_a_guard_has_dealt_with_is_a_note() -> None:
    [found] = incidents(
        WORKER + 'moriio_exposure {"request_id": "cmpl-7", "cause": "timeout", "layers": [3],'
        ' "action": "recomputed"}'
    )
    assert next(check("d.log", [found])).severity is Severity.NOTE


@pytest.mark.parametrize(
    ("action", "severity"),
    [("recomputed", Severity.WARNING), ("reported", Severity.CRITICAL)],
)
def test_a_hung_read_that_a_guard_caught_is_a_ticket(action: str, severity: Severity) -> None:
    caught = f'moriio_exposure {{"request_id": "cmpl-7", "action": "{action}"}}'
    hung, _ = check("d.log", incidents(f"{WORKER}{OURS}\n{WORKER}{caught}"))
    assert hung.name == "log-hung-reads"
    assert hung.severity is severity


@pytest.mark.parametrize(
    "line",
    [
        "2026-08-12T09:20:44.1Z stdout F " + WORKER + TIMED_OUT % "a.0",
        "\x1b[36m(Worker_TP3 pid=220)\x1b[0m \x1b[33mWARNING\x1b[0m 08-12 09:20:44 [m.py:1] "
        + TIMED_OUT % "a.0",
        TIMED_OUT % "a.0",
    ],
    ids=["kubernetes", "colours", "no prefix"],
)
def test_prefixes_do_not_matter(line: str) -> None:
    [found] = incidents(line)
    assert list(found.layers) == ["a.0"]


def test_where_in_the_log_and_which_releases_write_so_is_told() -> None:
    places = [
        str(place) for found in check("d.log", incidents(WORKER + STEP)) for place in found.where
    ]
    assert "d.log line = 1" in places
    assert "written so by vLLM = 0.33" in places


def test_many_requests_are_counted_and_some_named() -> None:
    log = "".join(at("08-12 09:20:44", ABORTED % f"cmpl-{n}") for n in range(50))
    [finding] = check("d.log", incidents(log))
    [requests] = [place.value for place in finding.where if place.key == "requests"]
    assert requests.startswith("cmpl-0, cmpl-1, ")
    assert requests.endswith("and 40 more")


def test_hostile_request_ids_are_cut_and_escaped() -> None:
    [finding] = check("d.log", incidents(WORKER + ABORTED % ("\x07" + "x" * 4000)))
    [request] = [place.value for place in finding.where if place.key == "requests"]
    assert request.startswith("\\x07x")
    assert len(request) < 300


def test_a_healthy_log_says_nothing() -> None:
    assert (
        incidents("(APIServer pid=1) INFO 08-12 09:14:02 [x.py:1] Application startup\n" * 9) == []
    )
