import threading

import pytest

from moriio_observed.loopback.enums import StatusCode
from moriio_observed.loopback.status import TransferStatus, wait_for_all

SUCCESS, IN_PROGRESS, RDMA = StatusCode.SUCCESS, StatusCode.IN_PROGRESS, StatusCode.ERR_RDMA_OP


def status(code: StatusCode) -> TransferStatus:
    made = TransferStatus()
    made.SetCode(code)
    return made


def in_thread(function):
    """Run on a thread; return it and the list its result goes to."""
    results = []
    thread = threading.Thread(target=lambda: results.append(function()), daemon=True)
    thread.start()
    return thread, results


@pytest.mark.parametrize(
    ("code", "predicate"),
    [
        (StatusCode.INIT, "Init"),
        (StatusCode.IN_PROGRESS, "InProgress"),
        (StatusCode.SUCCESS, "Succeeded"),
        *((code, "Failed") for code in StatusCode if code.value > 10),
    ],
)
def test_exactly_one_predicate_holds_for_each_code(code, predicate):
    made = status(code)
    predicates = ("Init", "InProgress", "Succeeded", "Failed")
    assert [name for name in predicates if getattr(made, name)()] == [predicate]


def test_a_new_status_is_init_and_has_no_message():
    assert (TransferStatus().Code(), TransferStatus().Message()) == (StatusCode.INIT, "")


def test_the_text_of_a_code_contains_its_name():
    assert "ERR_RDMA_OP" in str(StatusCode.ERR_RDMA_OP)


@pytest.mark.parametrize("later", list(StatusCode))
def test_nothing_overwrites_an_error(later):
    made = TransferStatus()
    made.Update(RDMA, "first")
    made.SetCode(later)
    made.Update(later, "later")
    assert (made.Code(), made.Message()) == (RDMA, "first")


def test_success_gives_way_to_an_error():
    made = status(SUCCESS)
    made.Update(RDMA, "after all")
    assert made.Failed()


def test_a_message_can_be_set_on_its_own():
    made = status(RDMA)
    made.SetMessage("why")
    assert (made.Code(), made.Message()) == (RDMA, "why")


def test_a_wait_of_zero_only_looks():
    assert status(IN_PROGRESS).WaitFor(0) is IN_PROGRESS


def test_a_wait_ends_at_its_time():
    assert status(IN_PROGRESS).WaitFor(1) is IN_PROGRESS


@pytest.mark.parametrize("end", [SUCCESS, RDMA])
def test_a_wait_without_limit_ends_with_the_transfer(end):
    made = status(IN_PROGRESS)
    thread, results = in_thread(made.WaitFor)
    made.SetCode(end)
    thread.join()
    assert results == [end]


def test_wait_is_a_wait_without_limit():
    made = status(IN_PROGRESS)
    thread, results = in_thread(made.Wait)
    made.SetCode(SUCCESS)
    thread.join()
    assert results == [None]


def test_a_landing_wakes_everyone_who_waits_for_it():
    made = status(IN_PROGRESS)
    waits = [in_thread(made.WaitFor) for _ in range(20)]
    made.SetCode(SUCCESS)
    for thread, _ in waits:
        thread.join()
    assert [results for _, results in waits] == [[SUCCESS]] * 20


@pytest.mark.parametrize(
    ("codes", "verdict"),
    [
        ([], SUCCESS),
        ([SUCCESS, SUCCESS], SUCCESS),
        ([SUCCESS, IN_PROGRESS], IN_PROGRESS),
        ([SUCCESS, StatusCode.INIT], IN_PROGRESS),
        ([SUCCESS, RDMA, StatusCode.ERR_BAD_STATE], RDMA),
        ([IN_PROGRESS, StatusCode.ERR_BAD_STATE, RDMA], StatusCode.ERR_BAD_STATE),
    ],
)
@pytest.mark.parametrize("timeout_ms", [0, 1])
def test_a_batch_wait_returns_the_first_error_else_in_progress_else_success(
    codes, verdict, timeout_ms
):
    assert wait_for_all([status(code) for code in codes], timeout_ms) is verdict


def test_a_batch_wait_covers_the_others_when_one_fails():
    first, second = status(IN_PROGRESS), status(IN_PROGRESS)
    thread, results = in_thread(lambda: (wait_for_all([first, second], -1), second.Code()))
    first.SetCode(RDMA)
    thread.join(0.2)
    assert thread.is_alive()
    second.SetCode(SUCCESS)
    thread.join()
    assert results == [(RDMA, SUCCESS)]


def test_a_batch_wait_takes_the_same_status_twice():
    made = status(IN_PROGRESS)
    thread, results = in_thread(lambda: wait_for_all([made, made], -1))
    made.SetCode(SUCCESS)
    thread.join()
    assert results == [SUCCESS]


def test_a_wait_that_timed_out_leaves_nothing_behind_on_a_hung_status():
    made = status(IN_PROGRESS)
    for _ in range(3):
        made.WaitFor(1)
    assert made._waiters == []
