"""What was counted between two looks at a server, which may have been started again since."""

from __future__ import annotations

from moriio_observed.demo.metrics import Scrape
from moriio_observed.top.snapshot import STARTED, cumulative


def restarted(earlier: Scrape, later: Scrape) -> bool:
    """Whether the process behind these numbers is another: its start, or a counter, tells."""
    if earlier.total(STARTED) != later.total(STARTED):
        return True
    return any(
        later.samples.get(series, value) < value
        for series, value in earlier.samples.items()
        if cumulative(series[0])
    )


def change(earlier: Scrape, later: Scrape) -> Scrape:
    """What the counters and histograms have gained; all they have where the process is another."""
    counted = Scrape(
        {series: value for series, value in later.samples.items() if cumulative(series[0])}
    )
    return counted if restarted(earlier, later) else counted.since(earlier)
