"""Reading a server's /metrics, and what changed between two looks."""

from collections.abc import Mapping
from dataclasses import dataclass

from moriio_observed.demo import web
from moriio_observed.doctor import exposition

Labels = frozenset[tuple[str, str]]


@dataclass(frozen=True)
class Scrape:
    """The samples of one scrape, or the difference between two.

    Attributes:
        samples: Each value under its sample name and labels.
    """

    samples: Mapping[tuple[str, Labels], float]

    def since(self, earlier: "Scrape") -> "Scrape":
        """What was added since an earlier scrape of the same server."""
        return Scrape(
            {key: value - earlier.samples.get(key, 0.0) for key, value in self.samples.items()}
        )

    def total(self, name: str, **labels: str) -> float:
        """The sum of all series of a name that have these labels; 0 when there are none."""
        wanted = labels.items()
        return sum(
            value
            for (sample, has), value in self.samples.items()
            if sample == name and wanted <= has
        )

    def quantile(self, name: str, q: float, **labels: str) -> float | None:
        """A quantile of a histogram, over all its series that have these labels.

        Interpolated in the bucket as Prometheus does; beyond the last finite bound it is
        that bound.

        Args:
            name: The histogram, without `_bucket`.
            q: 0 … 1.
            **labels: What the series must have.

        Returns:
            The quantile in the histogram's unit, None when it holds no observation.
        """
        bounds = self._buckets(name, labels)
        if not bounds or bounds[-1][1] <= 0:
            return None
        rank = q * bounds[-1][1]
        lower, below = 0.0, 0.0
        for upper, count in bounds:
            if count >= rank and count > below:
                if upper == float("inf"):
                    return lower
                return lower + (upper - lower) * (rank - below) / (count - below)
            lower, below = upper, count
        return lower

    def _buckets(self, name: str, labels: Mapping[str, str]) -> list[tuple[float, float]]:
        counts: dict[float, float] = {}
        for (sample, has), value in self.samples.items():
            if sample == f"{name}_bucket" and labels.items() <= has:
                bound = float(dict(has)["le"])
                counts[bound] = counts.get(bound, 0.0) + value
        return sorted(counts.items())


def parse(page: str) -> Scrape:
    """Parse a text exposition.

    Raises:
        NotMetricsError: It is not one.
    """
    return Scrape(
        {
            (name, frozenset(labels.items())): value
            for name, labels, value in exposition.parse(page).samples
        }
    )


def scrape(url: str) -> Scrape:
    """Scrape a server.

    Args:
        url: The server's address, without `/metrics`.

    Raises:
        OSError: When it does not answer, or with something else than metrics.
    """
    page = web.get(f"{url}/metrics")
    try:
        return parse(page)
    except exposition.NotMetricsError as error:
        raise OSError(f"{url}/metrics is not in Prometheus' text format: {error}") from error
