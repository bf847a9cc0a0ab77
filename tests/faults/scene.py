"""What a fault has at hand while it plays: the pair, prompts of its own, references, the log."""

from __future__ import annotations

import time
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from moriio_observed.demo.client import MAX_TOKENS, Answer, PairClient
from moriio_observed.demo.errors import DemoError
from moriio_observed.demo.exposures import LogFollower
from moriio_observed.demo.workload import prompts
from tests.faults.servers import Servers
from tests.faults.verdict import CERTAIN_BY_KIND, Asked, flags

REQUESTS = 16


class Scene:
    """One fault's.

    Args:
        name: The fault's; its prompts are drawn from it, so they are the same in every mode.
        servers: What runs.
    """

    def __init__(self, name: str, servers: Servers) -> None:
        self.servers = servers
        self._seed = zlib.crc32(name.encode())
        self._logs = [LogFollower(servers.decode.log)]
        self._began = time.monotonic()

    @property
    def client(self) -> PairClient:
        """Asks the pair."""
        return self.servers.client

    def prompts(self, count: int = REQUESTS, draw: int = 0) -> list[str]:
        """Prompts that no other fault and no other draw of this one has."""
        return prompts(self._seed + draw, count)

    def references(self, asked: Sequence[str], max_tokens: int = MAX_TOKENS) -> list[Answer]:
        """What the prefill engine answers alone.

        Raises:
            DemoError: When it does not.
        """
        answers = self.client.reference(asked, max_tokens)
        failed = [answer.error for answer in answers if answer.error is not None]
        if failed:
            raise DemoError(f"the prefill engine alone failed: {failed[0]}")
        return answers

    def harm(self, faults: Mapping[str, Any]) -> None:
        """Harm reads from now on; what is in flight stays as it is."""
        self.servers.faults.set(faults)

    def heal(self) -> None:
        """Harm no read from now on."""
        self.servers.faults.clear()

    def restart_decode(self) -> None:
        """Kill the decode engine and start it again, on the ports it had."""
        self.servers.restart_decode()
        self._logs.append(LogFollower(self.servers.decode.log, whole=True))

    def settle(self, lingers_s: float) -> dict[str, bool]:
        """End the fault: heal, and wait until no read of it can land any more.

        Args:
            lingers_s: How long after the fault's beginning a read may still land, seconds.

        Returns:
            The flagged request ids, with their certainty.
        """
        self.heal()
        time.sleep(max(0.0, self._began + lingers_s - time.monotonic()))
        # A few more steps, with which the decode engine says all it has to say.
        self.client.ask_decode(self.prompts(1, draw=-1), max_tokens=4)
        return flags(
            {
                marker: [event for log in self._logs for event in log.events(marker)]
                for marker in CERTAIN_BY_KIND
            }
        )


def asked(answers: Sequence[Answer], references: Sequence[Answer]) -> list[Asked]:
    """Answers beside their references."""
    return [Asked(*both) for both in zip(answers, references, strict=True)]
