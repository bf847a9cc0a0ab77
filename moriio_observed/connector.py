"""The connector that vLLM loads: upstream's MoRIIOConnector with its READ barrier observed.

Only wiring, and the way out of what was counted. What it does in the scheduler's process stands in
``scheduler_side``, in a worker's in ``worker_side``; what is known of upstream in ``upstream``,
what a step is in ``observer``, what is counted in ``telemetry``.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import time
from collections.abc import Mapping
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

from moriio_observed import __version__, config, upstream
from moriio_observed.barrier import Era, Placement, Waiter, place
from moriio_observed.containment import Containment
from moriio_observed.guard import Guard
from moriio_observed.log import get_logger
from moriio_observed.observer import ReadObserver
from moriio_observed.policy import Policy
from moriio_observed.reads import ReadLedger
from moriio_observed.registration import register
from moriio_observed.release import check_guard, check_release
from moriio_observed.scheduler_side import SchedulerSide
from moriio_observed.telemetry.aggregate import Aggregate, Payload, make_key
from moriio_observed.telemetry.catalog import CATALOG, Scope
from moriio_observed.telemetry.destination import Destination, Identity, destination
from moriio_observed.telemetry.exposition import OF_A_RANK
from moriio_observed.telemetry.read_metrics import ReadMetrics
from moriio_observed.telemetry.vllm_stats import ObservedPromMetrics, ObservedStats
from moriio_observed.telemetry.ways_out import Source, WaysOut
from moriio_observed.worker_side import AlwaysArmed, NeverArmed, WorkerSide

__all__ = ["ObservedMoRIIOConnector"]

logger = get_logger(__name__)

LOOK_S, FLUSH_S = 1.0, 5.0
"""How often a step with nothing to say looks for a peer's failure and for gauges that move, and how
often it sends what was counted all the same, seconds: at rest that is how many steps there were,
and what it sends costs three processes."""


class ObservedMoRIIOConnector(SchedulerSide, WorkerSide):
    """MoRIIOConnector that says for every step whether attention ran on landed KV only."""

    # What was made but never initialised, as upstream's own tests do, ends as upstream's.
    _ways_out: WaysOut | None = None

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        transfer_config = vllm_config.kv_transfer_config
        settings, seams, there = _checked_settings(transfer_config.kv_connector_extra_config)
        upstream.by_name.check(vllm_config)
        super().__init__(vllm_config, role, kv_cache_config)
        seams = seams.of(self)
        policy = upstream.policy(self, settings.guard, vllm_config, kv_cache_config)
        try:
            check_release(settings, seams)
            if upstream.is_read_consumer(transfer_config):
                check_guard(policy)
        except config.SettingsError:
            super().shutdown()
            raise
        self._known = seams.era is not Era.UNKNOWN
        self._look_at = time.monotonic() + LOOK_S
        self._flush_at = time.monotonic() + FLUSH_S
        self._news = False
        self._held = 0
        self._watch = NeverArmed
        ways_out = self._ways_out = WaysOut(settings, there)
        exponential = there is not None and there.exponential
        worker = getattr(self, "connector_worker", None)
        if role is KVConnectorRole.SCHEDULER:
            self._aggregate = Aggregate(source="scheduler", exponential=exponential)
            if self._known:
                self._serve_scheduler(vllm_config, settings, policy, kv_cache_config, ways_out)
        else:
            tp_rank = getattr(worker, "tp_rank", 0)
            self._aggregate = Aggregate(
                source=f"rank {getattr(worker, '_rank', tp_rank)}",
                tp_rank=str(tp_rank),
                wait_buckets=settings.wait_buckets,
                exponential=exponential,
            )
            if self._known:
                self._hook(vllm_config, settings, seams, policy, ways_out)
            else:
                self._say_installed(dict.fromkeys(seams.hooks, False))
                self._say_unprotected(vllm_config)
        if not self._known:
            self._stand_aside(seams)
        # One for each concern, so that none silences another.
        self._statistics = Containment(self._aggregate, "its gauges stand still.")
        self._peers = Containment(self._aggregate, "peer failures are no longer counted.")
        self._sending = Containment(self._aggregate, "only vLLM's own /metrics tells of it.")
        self._sending.tell(self._open_ways_out, ways_out, vllm_config, settings)

    def _hook(
        self,
        vllm_config: Any,
        settings: config.Settings,
        seams: upstream.Seams,
        policy: Policy,
        ways_out: WaysOut,
    ) -> None:
        transfer_config = vllm_config.kv_transfer_config
        placement = _placement(settings, seams.era, policy)
        hooks = self._hooks = upstream.Hooks(self.connector_worker, seams, self._aggregate)
        self._target_layers = upstream.layer_count(vllm_config)
        self._saves = not seams.saves_nothing(self.connector_worker)
        self._full_graphs = _full_graphs_protected(vllm_config, Placement.UPSTREAM, seams.era)
        if not upstream.reads(self.connector_worker):
            hooks.install(None)
        else:
            timeouts = upstream.deadlines(transfer_config.kv_connector_extra_config)
            ledger = ReadLedger(settings.quarantine_limit_s)
            self._guard = Guard(
                waits=policy.waits,
                # Ours is told before upstream gives a read up, and P with it its blocks.
                deadline_s=min(timeouts.transfer_timeout, timeouts.recv_abort_timeout),
                watch_s=settings.quarantine_limit_s,
            )
            self._observer = self._watch = ReadObserver(
                placement=placement,
                era=seams.era,
                ledger=ledger,
                waiter=Waiter(ledger, timeouts.transfer_timeout, wait_all=hooks.wait_all()),
                metrics=ReadMetrics(
                    self._aggregate,
                    max_remotes=settings.max_remotes,
                    per_layer=settings.per_layer,
                ),
                action=policy.action,
                spans=ways_out.steps(self._aggregate),
                decided=self._guard.decided,
            )
            hooks.install(self._observer, self._guard, fails_steps=policy.fails_steps)
            warning = upstream.effective_warning(placement, seams.era, vllm_config)
            if warning:
                logger.warning(warning)
            logger.info(
                "moriio_observed %s: barrier %r, so waits stand %s; vLLM's own wait for %s",
                __version__,
                settings.barrier,
                placement.where,
                seams.era.value,
            )
            logger.info(policy.sentence(timeouts.transfer_timeout))
        self._say_installed(hooks.installed())

    def _open_ways_out(
        self, ways_out: WaysOut, vllm_config: Any, settings: config.Settings
    ) -> None:
        worker = getattr(self, "connector_worker", None)
        ways_out.open(_source(self._aggregate, vllm_config, settings, worker))

    def _stand_aside(self, seams: upstream.Seams) -> None:
        """Let vLLM reach upstream's own methods, whatever they have become."""
        self._watch = AlwaysArmed
        for name in upstream.OVERRIDDEN:
            if (method := getattr(upstream.MoRIIOConnector, name, None)) is not None:
                setattr(self, name, method.__get__(self))
        _say_unknown("; ".join(seams.missing))

    def _say_installed(self, hooks: Mapping[str, bool]) -> None:
        for hook, in_force in hooks.items():
            self._aggregate.gauge("hook_installed", hook=hook).set(int(in_force))

    def _say_unprotected(self, vllm_config: Any) -> None:
        """Claim no protection of FULL graphs: the API server has not seen what this worker has."""
        reads = upstream.is_read_consumer(vllm_config.kv_transfer_config)
        if reads and upstream.cudagraph_mode(vllm_config)[1]:
            self._aggregate.gauge("full_graph_protected").set(0)

    @classmethod
    def requires_piecewise_for_cudagraph(
        cls, extra_config: dict[str, Any], *args: Any, **kwargs: Any
    ) -> bool:
        """As upstream; where FULL graphs are configured vLLM asks before it loads a model.

        Raises:
            SettingsError: A setting is bad: better now than minutes later.
        """
        _checked_settings(extra_config)
        return bool(super().requires_piecewise_for_cudagraph(extra_config, *args, **kwargs))

    def shutdown(self) -> None:
        """As upstream; what waits to be sent is sent."""
        try:
            super().shutdown()
        finally:
            if self._ways_out is not None:
                self._ways_out.close()

    # The way out.

    def get_kv_connector_stats(self) -> ObservedStats | None:
        """What was counted since the last step that had something to say, else None."""
        if not self._has_news() and time.monotonic() < self._look_at:
            return None
        delta: Payload | None = self._statistics.tell(self._take_delta)
        if self._statistics.broken:
            with contextlib.suppress(Exception):
                delta = self._aggregate.delta()
        return None if delta is None else ObservedStats(data=delta)

    def _has_news(self) -> bool:
        """Whether anything was counted that should leave with this step."""
        hooks, observer, claims = self._hooks, self._observer, self._claims
        return (
            self._news
            # In a step that does nothing else, mori is asked when there is something to send.
            or (observer is not None and (observer.news or not observer.idle))
            or (hooks is not None and hooks.news)
            or (claims is not None and claims.news)
        )

    def _step_failed(self) -> bool:
        observer, hooks = self._observer, self._hooks
        return (
            observer is not None and hooks is not None and not hooks.broken and observer.step_failed
        )

    def _take_delta(self) -> Payload | None:
        if self._step_failed():
            # Runner V1 asks even then, and drops the answer: it is kept for the next step.
            return None
        if self._hooks is not None:
            for reason in self._peers.tell(self._hooks.peer_failures) or ():
                self._aggregate.counter("peer_failures_total", reason=reason).inc()
                self._news = True
        # Cleared before the counters are read, so that what comes meanwhile is told next time.
        for source in (self._hooks, self._observer, self._claims):
            if source is not None:
                self._news, source.news = self._news or source.news, False
        now = time.monotonic()
        if looks := now >= self._look_at:
            self._look_at = now + LOOK_S
        if not (self._news or now >= self._flush_at or (looks and self._gauges_move())):
            return None
        self._news = False
        self._flush_at = now + FLUSH_S
        self._sending.tell(self._count_losses)
        if self._hooks is not None and self._observer is not None:
            self._set_gauges(self._hooks, self._observer)
        if (held := self._held_sends()) is not None:
            self._held = held
            self._aggregate.gauge("deferred_sends").set(held)
        return self._aggregate.delta()

    def _held_sends(self) -> int | None:
        """How many sends this side defers; None where it is not one that sends."""
        if self._known and self.connector_scheduler is not None and self._claims is None:
            return upstream.deferred_sends(self.connector_scheduler)
        return None

    def _gauges_move(self) -> bool:
        """Whether a gauge is not as it was told: a read in flight ages, P holds more or fewer."""
        if self._observer is not None:
            return self._observer.ledger.in_flight > 0
        return self._held_sends() not in (None, self._held)

    def _count_losses(self) -> None:
        if self._ways_out is not None:
            self._ways_out.count_losses()

    def _set_gauges(self, hooks: upstream.Hooks, observer: ReadObserver) -> None:
        if hooks.broken:
            # Nobody knows any more what is in flight.
            observer.metrics.in_flight(math.nan, math.nan)
            self._say_installed(hooks.installed())
            if self._full_graphs is not None:
                self._aggregate.gauge("full_graph_protected").set(int(self._full_graphs))
        else:
            observer.gauge()

    @classmethod
    def build_kv_connector_stats(cls, data: Payload | None = None) -> ObservedStats:
        """Make statistics of what came over the wire."""
        return ObservedStats() if data is None else ObservedStats(data=data)

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: Any,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> ObservedPromMetrics:
        """Make the metrics of the API server's /metrics, all zero-initialised."""
        settings, *_ = _checked_settings(vllm_config.kv_transfer_config.kv_connector_extra_config)
        return ObservedPromMetrics(
            vllm_config,
            metric_types,
            labelnames,
            per_engine_labelvalues,
            settings=settings,
            layers=upstream.layer_count(vllm_config),
            tp_ranks=vllm_config.parallel_config.tensor_parallel_size,
            static=_static_gauges(vllm_config, settings),
        )


@functools.cache
def _say_unknown(missing: str) -> None:
    """Once in a process, however many connectors are built in it."""
    logger.error(
        "This vLLM's MoRIIO connector is not one that moriio_observed knows (%s); it runs as "
        "upstream wrote it and its reads are not observed.",
        missing,
    )


def _checked_settings(
    extra_config: Mapping[str, Any],
) -> tuple[config.Settings, upstream.Seams, Destination | None]:
    settings = config.of_connector(extra_config, os.environ)
    seams = upstream.Seams.detect()
    check_release(settings, seams)
    return settings, seams, destination(settings.otlp, os.environ)


def _source(
    aggregate: Aggregate, vllm_config: Any, settings: config.Settings, worker: Any
) -> Source:
    """Who counts here: a worker, or the scheduler where there is none."""
    scheduler = worker is None
    tp_rank = 0 if scheduler else int(getattr(worker, "tp_rank", 0))
    labels = upstream.metric_labels(vllm_config)
    parallel = vllm_config.parallel_config
    return Source(
        aggregate=aggregate,
        identity=Identity(
            role=str(vllm_config.kv_transfer_config.kv_role),
            tp_rank="" if scheduler else str(tp_rank),
            engine=labels["engine"],
            model=labels["model_name"],
            vllm_version=upstream.vllm_version(),
            mori_version=upstream.mori_version(),
            version=__version__,
        ),
        scopes={Scope.SCHEDULER, Scope.ALL} if scheduler else OF_A_RANK,
        static=_static_gauges(vllm_config, settings) if scheduler else {},
        labels=labels,
        layers=upstream.layer_count(vllm_config),
        tp_rank=tp_rank,
        number=None
        if scheduler
        else int(labels["engine"]) * parallel.tensor_parallel_size + tp_rank,
    )


def _placement(settings: config.Settings, era: Era, policy: Policy) -> Placement:
    """Where reads are waited for: a guard leaves a barrier nothing to wait for, or all."""
    if policy.waits:
        return Placement.GATE
    return Placement.STEP if policy.fails_steps else place(settings.barrier, era)


def _full_graphs_protected(vllm_config: Any, placement: Placement, era: Era) -> bool | None:
    """Whether a barrier protects FULL graph steps; None where no FULL graph is configured."""
    if not upstream.cudagraph_mode(vllm_config)[1]:
        return None
    return placement.protects_full_graphs(era, hidden_full=upstream.hides_full(vllm_config))


def _static_gauges(vllm_config: Any, settings: config.Settings) -> Mapping[str, float]:
    """The gauges that follow from the configuration, by payload key."""
    transfer_config = vllm_config.kv_transfer_config
    era = upstream.Seams.detect().era
    placement = Placement.GATE if settings.guard != "report" else place(settings.barrier, era)
    timeouts = upstream.deadlines(transfer_config.kv_connector_extra_config)
    graphs, _ = upstream.cudagraph_mode(vllm_config)
    info = {
        "role": str(transfer_config.kv_role),
        "mode": upstream.mode_name(transfer_config),
        "cudagraph_mode": graphs,
        "barrier": settings.barrier,
        "guard": settings.guard,
        "vllm_version": upstream.vllm_version(),
        "mori_version": upstream.mori_version(),
        "version": __version__,
    }
    gauges = {
        make_key("config_info", tuple(info[name] for name in CATALOG["config_info"].labels)): 1.0,
        "transfer_timeout_seconds": timeouts.transfer_timeout,
        "recv_abort_timeout_seconds": timeouts.recv_abort_timeout,
        "defer_timeout_seconds": timeouts.defer_timeout,
    }
    protected = _full_graphs_protected(vllm_config, placement, era)
    if protected is not None and upstream.is_read_consumer(transfer_config):
        gauges["full_graph_protected"] = float(protected)
    return gauges


MoRIIOConnector = ObservedMoRIIOConnector
"""For whoever keeps upstream's name and only adds our module path: ours is what they mean."""

register()
