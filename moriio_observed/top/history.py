"""What is known of a server so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from moriio_observed.demo.metrics import Scrape
from moriio_observed.telemetry.catalog import PREFIX
from moriio_observed.top.change import change, restarted
from moriio_observed.top.snapshot import Key, Snapshot, of_engines

STEPS = f"{PREFIX}steps_total"


@dataclass(frozen=True)
class History:
    """A server's last two answers, and what has to be remembered beyond them.

    Attributes:
        url: Its address.
        earlier: The last answer but one; None until there are two.
        latest: The last answer; None until there is one.
        trouble: Why the last question was not answered; empty if it was.
        restarted_at: When its process was found to be another, in seconds of the clock of the
            snapshots; None if it never was.
        stepped_at: When each engine was last found to have done a forward step, or was first seen.
    """

    url: str
    earlier: Snapshot | None = None
    latest: Snapshot | None = None
    trouble: str = "has not answered yet"
    restarted_at: float | None = None
    stepped_at: Mapping[Key, float] = field(default_factory=dict)

    def saw(self, snapshot: Snapshot) -> History:
        """This and one more answer."""
        before = self.latest
        again = before is not None and restarted(before.scrape, snapshot.scrape)
        return replace(
            self,
            earlier=before,
            latest=snapshot,
            trouble="",
            restarted_at=snapshot.at if again else self.restarted_at,
            stepped_at=self._stepped(snapshot),
        )

    def missed(self, trouble: str) -> History:
        """This and a question that was not answered."""
        return replace(self, trouble=trouble)

    @property
    def gained(self) -> Scrape | None:
        """What was counted between the last two answers; None until there are two."""
        if self.earlier is None or self.latest is None:
            return None
        return change(self.earlier.scrape, self.latest.scrape)

    @property
    def seconds(self) -> float | None:
        """The time between the last two answers; None until there are two."""
        if self.earlier is None or self.latest is None:
            return None
        return self.latest.at - self.earlier.at

    def _stepped(self, snapshot: Snapshot) -> dict[Key, float]:
        before = self.latest.scrape if self.latest else Scrape({})
        return {
            key: snapshot.at if gained.total(STEPS) > 0 else self.stepped_at.get(key, snapshot.at)
            for key, gained in of_engines(change(before, snapshot.scrape)).items()
        }
