"""The run: known answers, probes, the numbers before and after, and what costs are compared."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from moriio_observed.accept.deployment import Deployment
from moriio_observed.accept.facts import Facts
from moriio_observed.accept.plan import Bounded, Plan
from moriio_observed.accept.throughput import Runs, one_pair
from moriio_observed.canary.errors import CanaryError, NoAnswerError
from moriio_observed.canary.golden import Golden
from moriio_observed.canary.http import Http
from moriio_observed.canary.load import waiting
from moriio_observed.canary.probes import Probe
from moriio_observed.canary.recording import record
from moriio_observed.canary.rounds import Prober
from moriio_observed.canary.targets import Pair, Question, new_probe
from moriio_observed.doctor import prometheus
from moriio_observed.doctor.checks.scrape import wanted
from moriio_observed.doctor.prometheus import Stored
from moriio_observed.doctor.server import Server

BUSY = "the server is busy: more requests wait than --max-waiting"
MOST_FLUSHES = 10
POLL_S = 0.5


class Acceptance:
    """Gathers facts, phase by phase; what is known so far can be had at any time.

    Args:
        deployment: Whom to ask.
        plan: How much.
        http: Asks how busy they are.
        max_waiting: No probe is sent while more requests wait in an engine.
        say: Gets progress, line by line.
        phase_ended: Called when something new is known.
    """

    def __init__(
        self,
        deployment: Deployment,
        plan: Plan,
        http: Http,
        *,
        max_waiting: int,
        say: Callable[[str], None] = lambda _: None,
        phase_ended: Callable[[], None] = lambda: None,
    ) -> None:
        self._deployment = deployment
        self._plan = plan
        self._http = http
        self._max_waiting = max_waiting
        self._say = say
        self._phase_ended = phase_ended
        until = time.monotonic() + plan.limit_s
        self._until = until
        self._target = Bounded(deployment.target, until)
        self._alone = Bounded(deployment.alone, until)
        self._before: Mapping[str, Server] = {}
        self._after: Mapping[str, Server] = {}
        self._probes: list[Probe] = []
        self._flushes = 0
        self._settled = False
        self._seconds = 0.0
        self._runs: Runs | None = None
        self._stored: Stored | None = None
        self._ended = "it has not ended yet"

    def run(self) -> None:
        """Go through all phases, or as far as the servers let it."""
        try:
            self._go_on()
            golden = record(self._plan.recording, self._alone, self._plan.prompts(), say=self._say)
            self._before = self._deployment.look()
            self._phase_ended()
            trouble = self._probe(golden)
            self._settle(golden, trouble)
            self._phase_ended()
            self._compare()
            self._ended = ""
        except (CanaryError, NoAnswerError) as error:
            self._ended = str(error)
        self._ask_prometheus()

    def stop(self, why: str) -> None:
        """It was ended from outside."""
        self._ended = why

    @property
    def facts(self) -> Facts:
        """What is known so far."""
        decode, prefill = self._deployment.sides(self._after, self._before)
        return Facts(
            decode=decode,
            prefill=prefill,
            probes=tuple(self._probes),
            flushes=self._flushes,
            mode=self._plan.mode,
            settled=self._settled,
            seconds=self._seconds,
            routed=self._deployment.apart is None,
            apart=self._deployment.apart,
            runs=self._runs,
            stored=self._stored,
            ended=self._ended,
        )

    def _probe(self, golden: Golden) -> str:
        """Send all rounds; returns why not, or nothing."""
        prober = Prober(
            golden,
            self._target,
            mode=self._plan.mode,
            concurrencies=self._plan.concurrencies,
            reference=self._alone,
            is_busy=self._is_busy,
        )
        for number in range(1, self._plan.rounds + 1):
            began = time.monotonic()
            done = prober.round()
            self._seconds += time.monotonic() - began
            self._probes += done.probes
            self._say(f"round {number} of {self._plan.rounds}: {done.result}")
            if not done.answered:
                error = next((probe.error for probe in done.probes if probe.error), "")
                return f"round {number} of {self._plan.rounds}: {error}"
        return ""

    def _settle(self, golden: Golden, trouble: str) -> None:
        """Numbers travel with steps: a few more requests bring those of the last probes.

        Raises:
            CanaryError: There was trouble before, or they cannot be sent.
        """
        question = Question(golden.model, golden.known[0].prompt, golden.max_tokens)
        while not self._settled:
            time.sleep(POLL_S)
            self._after = self._deployment.look()
            self._settled = self._flushes == MOST_FLUSHES or _are_all_there(self.facts)
            if not self._settled:
                self._flush(question, trouble)
        if trouble:
            raise CanaryError(trouble)

    def _flush(self, question: Question, trouble: str) -> None:
        if self._is_busy():
            raise CanaryError(trouble or BUSY)
        try:
            self._target.ask(question, new_probe())
            self._flushes += 1
            self._alone.ask(question, new_probe())
        except NoAnswerError as error:
            raise CanaryError(trouble or str(error)) from None

    def _compare(self) -> None:
        ours, bare = self._deployment.target, self._deployment.bare
        if bare is None or not isinstance(ours, Pair):
            return
        self._runs = Runs()
        for number in range(self._plan.pairs):
            rates = one_pair(
                ours,
                bare,
                self._plan.compared(number),
                bare_first=number % 2 == 0,
                before_each=self._go_on,
            )
            self._runs = self._runs.and_one(*rates)
            self._say(
                f"pair of runs {number + 1} of {self._plan.pairs}:"
                f" ours / bare {rates[0] / rates[1]:.3f}"
            )

    def _ask_prometheus(self) -> None:
        if self._deployment.prometheus is not None:
            names = wanted(list((self._after or self._deployment.decode).values()))
            self._stored = prometheus.ask(self._deployment.prometheus, names)

    def _go_on(self) -> None:
        """See whether more may be sent.

        Raises:
            CanaryError: It may not.
        """
        if time.monotonic() > self._until:
            raise CanaryError("the time is up: give more --minutes, or --quick")
        if self._is_busy():
            raise CanaryError(BUSY)

    def _is_busy(self) -> bool:
        return waiting(self._http, self._deployment.metrics_pages) > self._max_waiting


def _are_all_there(facts: Facts) -> bool:
    """Whether every read that was posted for a probe is known to have ended and been released."""
    decode, prefill = facts.decode, facts.prefill
    if decode.untold or not facts.answered:
        return True  # more requests would tell nothing
    ended = sum(decode.growth(f"reads_{how}_total") for how in ("landed", "failed", "aborted"))
    return (
        decode.growth("requests_total") >= facts.answered * decode.ranks
        and decode.growth("reads_posted_total") == ended
        and (bool(prefill.untold) or prefill.growth("releases_total") >= facts.answered)
    )
