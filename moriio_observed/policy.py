"""What a guard means on this engine: what vLLM does with KV that did not load, and to whom."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Policy"]

_ACTIONS = {"recompute": "recomputed", "fail": "failed"}


@dataclass(frozen=True, slots=True)
class Policy:
    """The guard of one engine.

    Attributes:
        guard: The setting: ``report``, ``recompute`` or ``fail``.
        load_failure: vLLM's ``kv_load_failure_policy``, for the whole engine.
        groups: How many groups of KV caches the model has. With more than one vLLM cannot tell
            requests by their blocks.
        partial: Whether the model keeps less than all the KV of a prompt: recurrent state, or a
            window. A request cannot go on from its first block that has loaded.
        spread: Whether one prompt's KV is spread over ranks (context parallelism).
        ahead: Whether vLLM schedules a step before it has seen the one before (asynchronous
            scheduling).
        repeats_ids: Whether two requests may have the same id, because vLLM takes it from clients
            as it is.
    """

    guard: str
    load_failure: str
    groups: int
    partial: bool
    spread: bool = False
    ahead: bool = False
    repeats_ids: bool = False

    @property
    def guarded(self) -> bool:
        """Whether exposed requests are stopped at all."""
        return self.guard != "report"

    @property
    def recovers(self) -> bool:
        """Whether vLLM can recover single requests whose KV has not loaded."""
        return self.groups <= 1 and not self.partial

    @property
    def waits(self) -> bool:
        """Whether the scheduler waits for reads before it runs their request."""
        return self.guarded and self.recovers

    @property
    def fails_steps(self) -> bool:
        """Whether a step fails whose reads have not all landed."""
        return self.guarded and not self.recovers

    @property
    def action(self) -> str:
        """What becomes of a request whose blocks are reported to vLLM."""
        if self.ahead and not self.guarded and self.load_failure == "recompute":
            # vLLM throws one token away and serves that of the next step, which follows on it.
            return "reported"
        return _ACTIONS[self.load_failure]

    @property
    def refusal(self) -> str:
        """Why this engine cannot honour the guard, empty if it can."""
        if not self.guarded:
            return ""
        if self.guard != self.load_failure:
            return (
                f"vLLM would do {self.load_failure!r}, its kv_load_failure_policy for the whole "
                "engine; set both the same, or use 'report'"
            )
        if self.spread:
            return (
                "with context parallelism a block of the scheduler's is not one of MoRIIO's, and "
                "the guard cannot tell which are read; use 'report'"
            )
        if self.repeats_ids:
            return (
                "with VLLM_DISABLE_REQUEST_ID_RANDOMIZATION=1 two requests can have one id, and "
                "what is known of the one's reads would be taken for the other's; unset it, or "
                "use 'report'"
            )
        if self.guard == "recompute" and not self.recovers:
            return (
                "vLLM cannot recompute single requests of a model with recurrent state, a sliding "
                "window or several KV cache groups; use 'fail', which fails the step, or 'report'"
            )
        return ""

    def sentence(self, transfer_timeout: float) -> str:
        """What the guard will do, for the log.

        Args:
            transfer_timeout: The deadline of reads, seconds.
        """
        if not self.guarded:
            return "guard 'report': exposed requests are told and answered all the same"
        if self.fails_steps:
            return (
                "guard 'fail' on a model whose requests vLLM cannot recover one by one: a step "
                f"fails, and the engine with it, if a read fails or takes {transfer_timeout:g} s"
            )
        then = "computed here" if self.guard == "recompute" else "answered with an error"
        return (
            f"guard {self.guard!r}, as vLLM's kv_load_failure_policy: a request is run only once "
            f"all its reads have landed; if one fails or takes {transfer_timeout:g} s the request "
            f"is {then}"
        )
