"""A page of /metrics as numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

Labels = Mapping[str, str]


class NotMetricsError(ValueError):
    """A page is not in Prometheus' text format; the message says where it stops to be."""


@dataclass(frozen=True)
class Page:
    """The samples of a page.

    Attributes:
        samples: Name, labels and value of each.
    """

    samples: tuple[tuple[str, Labels, float], ...]

    @property
    def names(self) -> frozenset[str]:
        """The names of its samples."""
        return frozenset(name for name, _, _ in self.samples)

    def of(self, name: str, **labels: str) -> Iterator[tuple[Labels, float]]:
        """The samples of a metric that carry these labels."""
        for sample, carried, value in self.samples:
            if sample == name and labels.items() <= carried.items():
                yield carried, value

    def total(self, name: str, **labels: str) -> float:
        """What they add up to; 0 where there are none."""
        return sum(value for _, value in self.of(name, **labels))


def parse(text: str) -> Page:
    """Read a page.

    Raises:
        NotMetricsError: It is not in Prometheus' text format.
    """
    try:
        return Page(
            tuple(
                (sample.name, sample.labels, float(sample.value))
                for family in text_string_to_metric_families(text)
                for sample in family.samples
            )
        )
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        # The parser says what it stumbles over in any of these ways.
        raise NotMetricsError(str(error)[:200] or type(error).__name__) from None
