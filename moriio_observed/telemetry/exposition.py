"""What of the catalogue stands on a Prometheus page, and how, whoever serves the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from moriio_observed.config import Settings
from moriio_observed.telemetry.aggregate import make_key, split_key
from moriio_observed.telemetry.catalog import CATALOG, Fold, Instrument, Scope, label_sets

MEASURED: frozenset[Scope] = frozenset(Scope) - {Scope.START}
"""Whose series stand at 0 from the start. What is set once is absent until somebody knows it."""

OF_A_RANK: frozenset[Scope] = MEASURED - {Scope.SCHEDULER}
"""What a worker rank counts. A 0 for what only others count would say that it never happens."""

_FOLDS: Mapping[Fold, Callable[[Iterable[float]], float]] = {
    Fold.SUM: sum,
    Fold.MAX: max,
    Fold.MIN: min,
}


def folded(fold: Fold, values: Sequence[float]) -> float:
    """One value of several sources; what one source does not know (NaN), nobody knows."""
    return math.nan if any(map(math.isnan, values)) else _FOLDS[fold](values)


class Exposition:
    """The catalogue as the settings leave it.

    Args:
        settings: What the user set.

    Attributes:
        instruments: What is shown, in the catalogue's order.
    """

    def __init__(self, settings: Settings) -> None:
        self.instruments: Mapping[str, Instrument] = {
            name: instrument
            for name, instrument in CATALOG.items()
            if settings.per_layer or "layer" not in instrument.labels
        }
        self._wait_buckets = settings.wait_buckets
        self._hidden = frozenset[str]() if settings.rank_label else frozenset({"tp_rank"})

    def labels(self, instrument: Instrument) -> tuple[str, ...]:
        """The names of an instrument's labels, beyond vLLM's own."""
        return tuple(label for label in instrument.labels if label not in self._hidden)

    def bounds(self, instrument: Instrument) -> Sequence[float]:
        """The upper bounds of a histogram's buckets, without the infinite one."""
        return instrument.buckets or self._wait_buckets

    def find(self, key: str) -> tuple[Instrument, dict[str, str]] | None:
        """What a payload key means: its instrument and all its labels.

        Returns:
            None where the settings leave the instrument out.

        Raises:
            KeyError: The catalogue has no such instrument.
            ValueError: These are not its labels.
        """
        name, values = split_key(key)
        instrument = CATALOG[name]
        if name not in self.instruments:
            return None
        labels = dict(zip(instrument.labels, values, strict=True))
        for label, allowed in instrument.closed.items():
            if labels[label] not in allowed:
                raise ValueError(f"{name}: {label} is one of {allowed}, not {labels[label]!r}")
        return instrument, labels

    def zero_keys(
        self, scopes: Collection[Scope], *, layers: int, tp_ranks: Collection[int]
    ) -> Iterator[str]:
        """The keys of every series that can be known beforehand.

        Args:
            scopes: Whose.
            layers: How many layers the model has.
            tp_ranks: The TP ranks that report.
        """
        for instrument in self.instruments.values():
            if instrument.scope not in scopes:
                continue
            for values in label_sets(instrument, layers=layers, tp_ranks=max(tp_ranks) + 1):
                rank = dict(zip(instrument.labels, values, strict=True)).get("tp_rank")
                if rank is None or int(rank) in tp_ranks:
                    yield make_key(instrument.name, values)
