"""What happens to reads, told as series of the catalogue.

The one place that knows which event moves which series; the ledger and the barrier know none.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import NamedTuple

from moriio_observed.barrier import Outcome
from moriio_observed.reads import Exposure, RequestReads, Verdict
from moriio_observed.telemetry.aggregate import Aggregate, Counter, Histogram
from moriio_observed.telemetry.catalog import CATALOG, OTHER
from moriio_observed.telemetry.records import SpanContext

_ERROR_TYPES = frozenset(CATALOG["reads_failed_total"].closed["error_type"])
_RUNTIME_MODES = frozenset(CATALOG["steps_total"].closed["runtime_mode"])


def certainty(*, certain: bool) -> str:
    """The label value of ``certainty``."""
    return "certain" if certain else "possible"


def _flag(value: bool) -> str:
    return "true" if value else "false"


class _Remote(NamedTuple):
    """What was read from one remote."""

    nbytes: Counter
    seconds: Counter
    reads: Counter


class ReadMetrics:
    """The series of one worker.

    Args:
        aggregate: Where the series live.
        max_remotes: How many values the label ``remote`` may take before "other".
        per_layer: Whether the two per-layer counters are kept.
    """

    def __init__(self, aggregate: Aggregate, *, max_remotes: int, per_layer: bool) -> None:
        self._aggregate = aggregate
        self._max_remotes = max_remotes
        self._remotes: dict[str, _Remote] = {}
        self._per_layer = per_layer
        self._layers: dict[int, tuple[Counter, Counter]] = {}
        self._steps: dict[tuple[str, bool], Counter] = {}
        self._unprotected: dict[tuple[str, bool], Counter] = {}
        counter, histogram = aggregate.counter, aggregate.histogram
        self._posted = counter("reads_posted_total")
        self._landed = counter("reads_landed_total")
        self._requests = counter("requests_total")
        self._overhead = counter("telemetry_overhead_seconds_total")
        self._in_flight = aggregate.gauge("reads_in_flight")
        self._oldest = aggregate.gauge("oldest_read_age_seconds")
        self._post_seconds = histogram("post_seconds")
        self._read_seconds = histogram("request_read_seconds")
        self._read_bytes = histogram("request_read_bytes")
        self._step_seconds = histogram("step_seconds")
        self._step_blocked = histogram("step_blocked_seconds")
        self._waits: dict[str, Histogram] = {
            site: histogram("barrier_wait_seconds", site=site) for site in ("layer", "step")
        }

    def posted(self, request: RequestReads, post_s: float) -> None:
        """A request's reads were posted, in `post_s` seconds."""
        self._posted.inc(request.total)
        self._requests.inc()
        self._post_seconds.observe(post_s)
        self._read_bytes.observe(request.nbytes)

    def landed(self, reads: int) -> None:
        """Reads were seen landed."""
        self._landed.inc(reads)

    def failed(self, codes: Collection[str]) -> None:
        """Reads failed with these mori status codes."""
        for code in codes:
            error_type = code if code in _ERROR_TYPES else OTHER
            self._aggregate.counter("reads_failed_total", error_type=error_type).inc()

    def aborted(self, reads: int) -> None:
        """Reads were given up because ``recv_abort_timeout`` passed."""
        self._aggregate.counter("reads_aborted_total").inc(reads)

    def late(self, reads: int, *, quarantined: bool) -> None:
        """Reads landed after their request was gone."""
        counter = self._aggregate.counter("late_landings_total", quarantined=_flag(quarantined))
        counter.inc(reads)

    def barrier(self, site: str, outcome: Outcome, waited: SpanContext | None = None) -> None:
        """A barrier call that had reads to wait for ended.

        Args:
            site: ``layer`` or ``step``.
            outcome: How.
            waited: The span of a request that has waited in it, if there is one to be looked at.
        """
        self._waits[site].observe(outcome.waited_s)
        if waited is not None:
            self._waits[site].exemplify(
                outcome.waited_s, time.time(), waited.trace_id, waited.span_id
            )
        self._landed.inc(outcome.landed)
        if outcome.timed_out:
            self._aggregate.counter("barrier_timeouts_total", site=site).inc()

    def layer_waited(self, layer: int, waited_s: float) -> None:
        """The barrier of one layer waited."""
        if not self._per_layer:
            return
        pair = self._layers.get(layer)
        if pair is None:
            pair = self._layers[layer] = (
                self._aggregate.counter("layer_wait_seconds_total", layer=str(layer)),
                self._aggregate.counter("layer_waits_total", layer=str(layer)),
            )
        pair[0].inc(waited_s)
        pair[1].inc()

    def step(self, mode: str, *, reads: bool) -> None:
        """A forward step ended."""
        steps = self._steps.get((mode, reads))
        if steps is None:
            known = mode if mode in _RUNTIME_MODES else "NONE"
            steps = self._steps[mode, reads] = self._aggregate.counter(
                "steps_total", runtime_mode=known, reads=_flag(reads)
            )
        steps.inc()

    def step_with_reads(self, seconds: float, blocked_s: float) -> None:
        """A forward step that had reads took `seconds`, `blocked_s` of them in barriers."""
        self._step_seconds.observe(seconds)
        self._step_blocked.observe(blocked_s)

    def full_graph_step(self, *, protected: bool) -> None:
        """A FULL graph step that had reads ended."""
        self._aggregate.counter("full_graph_skips_total", protected=_flag(protected)).inc()

    def unprotected(self, cause: str, *, certain: bool) -> None:
        """A forward step with an unlanded read ended."""
        steps = self._unprotected.get((cause, certain))
        if steps is None:
            steps = self._unprotected[cause, certain] = self._aggregate.counter(
                "unprotected_steps_total", cause=cause, certainty=certainty(certain=certain)
            )
        steps.inc()

    def unlanded(self, verdict: Verdict) -> None:
        """Reads were found unlanded."""
        for (cause, certain), reads in verdict.unlanded.items():
            self._aggregate.counter(
                "unlanded_reads_total", cause=cause, certainty=certainty(certain=certain)
            ).inc(reads)

    def exposed(self, exposure: Exposure, action: str) -> None:
        """A request was exposed."""
        self._aggregate.counter(
            "exposed_requests_total",
            cause=exposure.cause,
            certainty=certainty(certain=exposure.certain),
            action=action,
        ).inc()

    def request_done(self, request: RequestReads, seconds: float) -> None:
        """All reads of a request landed, `seconds` after the first was posted."""
        self._read_seconds.observe(seconds)
        remote = self._remotes.get(request.remote) or self._remote(request.remote)
        remote.nbytes.inc(request.nbytes)
        remote.seconds.inc(seconds)
        remote.reads.inc(request.total)

    def load_errors(self, blocks: int) -> None:
        """Blocks were reported to the scheduler as not loaded."""
        self._aggregate.counter("load_error_blocks_total").inc(blocks)

    def in_flight(self, reads: float, oldest_s: float) -> None:
        """How many reads are not known to have ended, and the age of the oldest."""
        self._in_flight.set(reads)
        self._oldest.set(oldest_s)

    def overhead(self, seconds: float) -> None:
        """Our own time on the hot path."""
        self._overhead.inc(seconds)

    def _remote(self, remote: str) -> _Remote:
        """The series of a remote seen for the first time, or of all beyond the limit."""
        within = len(self._remotes) < self._max_remotes
        label = remote if within else OTHER
        counter = self._aggregate.counter
        found = _Remote(
            counter("remote_read_bytes_total", remote=label),
            counter("remote_read_seconds_total", remote=label),
            counter("remote_reads_total", remote=label),
        )
        if within:
            self._remotes[remote] = found
        return found
