"""One phase: ask the pair, compare the answers, read what the decode engine says of it."""

import time
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from moriio_observed.demo.client import Answer
from moriio_observed.demo.errors import DemoError
from moriio_observed.demo.exposures import LogFollower, judge
from moriio_observed.demo.metrics import Scrape, scrape
from moriio_observed.demo.pair import Pair
from moriio_observed.demo.process import POLL_S
from moriio_observed.demo.report import Row
from moriio_observed.demo.server import Server
from moriio_observed.demo.workload import prompts

SETTLE_S = 20.0
"""How long the counters of a phase may take to reach /metrics, in seconds."""

_flush_seeds = count(1_000_000)


class Observation:
    """What the decode engine has said since this object was made.

    Args:
        decode: The decode server.
    """

    def __init__(self, decode: Server) -> None:
        self._url = decode.ports.url
        self._log = LogFollower(decode.log)
        self._before = scrape(self._url)

    def settled(self, requests: int) -> tuple[Scrape, list[dict[str, Any]]]:
        """Wait until /metrics has all that the log has.

        Stats travel with forward steps, so they arrive a little after the answers.

        Args:
            requests: How many requests have read since.

        Returns:
            The change of the metrics and the exposures.

        Raises:
            DemoError: When they still disagree after `SETTLE_S`.
        """
        deadline = time.monotonic() + SETTLE_S
        while True:
            events = self._log.events()
            change = scrape(self._url).since(self._before)
            exposed = change.total("moriio_exposed_requests_total")
            arrived = change.total("moriio_requests_total")
            if exposed == len(events) and arrived >= requests:
                return change, events
            if time.monotonic() > deadline:
                raise DemoError(
                    f"after {SETTLE_S:.0f} s /metrics tells of {arrived:.0f} requests and "
                    f"{exposed:.0f} exposed ones, the log of {len(events)} exposed ones; "
                    f"{requests} were sent"
                )
            time.sleep(POLL_S)


def measure(
    phase: str,
    pair: Pair,
    injected: Mapping[str, Any],
    asked: Sequence[str],
    references: Sequence[Answer],
) -> Row:
    """Run a phase.

    Args:
        phase: Its name.
        pair: The pair to ask.
        injected: The faults of this phase; cleared at its end.
        asked: The prompts.
        references: What a single engine answers.
    """
    observation = Observation(pair.decode)
    pair.faults.set(injected)
    answers = pair.client.ask(asked)
    pair.faults.clear()
    read = sum(answer.error is None for answer in answers)
    waits, _ = observation.settled(read)
    # What later steps without reads have counted travels with the next step that reads: one
    # more request, kept out of the row, brings it.
    [flush] = pair.client.ask(prompts(next(_flush_seeds), 1), max_tokens=1)
    change, events = observation.settled(read + 1)
    own = [event for event in events if flush.is_known_as(event["request_id"])]
    verdict = judge(answers, references, (event["request_id"] for event in events))
    return Row(
        phase=phase,
        requests=len(answers),
        right=verdict.right,
        wrong=verdict.wrong,
        error=verdict.error,
        exposed=int(change.total("moriio_exposed_requests_total")) - len(own),
        wrong_not_exposed=len(verdict.wrong_not_exposed),
        unprotected_steps=int(change.total("moriio_unprotected_steps_total"))
        - len({event["step"] for event in own}),
        timeouts=int(change.total("moriio_barrier_timeouts_total")),
        failed=int(change.total("moriio_reads_failed_total")),
        wait_p50_s=waits.quantile("moriio_barrier_wait_seconds", 0.5),
        wait_p99_s=waits.quantile("moriio_barrier_wait_seconds", 0.99),
    )
