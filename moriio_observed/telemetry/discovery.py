"""Telling Prometheus where an endpoint listens, by its file-based service discovery."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import json
import os
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

PREFIX = "moriio-"
PATTERN = f"{PREFIX}*.json"
"""What to give Prometheus as `file_sd_configs`, within the folder."""

# Kept free for documentation: nothing is sent, the kernel only says by which address it would be.
_ANYWHERE = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}


def default_folder() -> Path:
    """Where the files go when no folder is set."""
    return Path(tempfile.gettempdir()) / "moriio_observed"


class DiscoveryFile:
    """One target in a file of its own, from `write` until `remove` or the end of the process.

    The process holds a lock on its file. So a file that nobody holds is one whose process died,
    whatever became of its number, also where containers share the folder.

    Args:
        folder: Where to; None: `default_folder`.
    """

    def __init__(self, folder: str | None) -> None:
        self._is_default = folder is None
        self._folder = default_folder() if folder is None else Path(folder).absolute()
        self._path: Path | None = None
        self._held: TextIO | None = None

    @property
    def pattern(self) -> Path:
        """What to give Prometheus as `file_sd_configs`."""
        return self._folder / PATTERN

    def write(self, target: str, labels: Mapping[str, str]) -> Path:
        """Write the file and remove those of processes that died.

        Args:
            target: Host and port.
            labels: What Prometheus shall put on every series of this target.

        Returns:
            Where it is.

        Raises:
            OSError: It cannot be written there.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        if self._is_default and self._folder.lstat().st_uid != os.geteuid():
            # Everybody can make a folder of this name, and then decide what is in it.
            raise PermissionError(f"{self._folder} belongs to somebody else")
        sweep(self._folder)
        descriptor, name = tempfile.mkstemp(".tmp", f"{PREFIX}{os.getpid()}-", self._folder)
        draft = Path(name)
        held = os.fdopen(descriptor, "w")
        try:
            # Prometheus runs as another user.
            os.fchmod(descriptor, 0o644)
            # A file system without locks has nobody sweep, either.
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            json.dump([{"targets": [target], "labels": dict(labels)}], held)
            held.flush()
            self._path = draft.rename(draft.with_suffix(".json"))
        except BaseException:
            draft.unlink(missing_ok=True)
            held.close()
            raise
        self._held = held
        return self._path

    def remove(self) -> None:
        """Remove the file; nothing the second time."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()
        self.let_go()

    def let_go(self) -> None:
        """Leave the file as it is: in a forked child, whose it is not."""
        if self._held is not None:
            self._held.close()
        self._path = self._held = None


def sweep(folder: Path) -> None:
    """Remove the files that no living process holds."""
    for path in folder.glob(PATTERN):
        # Gone meanwhile, held by its process, or somebody else's.
        with contextlib.suppress(OSError), path.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()


def target(address: str, port: int) -> str:
    """Host and port to scrape for a socket that is bound to `address`.

    An address that stands for all of a host's becomes the one by which the host reaches others,
    or the loopback where it reaches nobody.
    """
    ip = ipaddress.ip_address(address.partition("%")[0])
    if ip.is_unspecified:
        # A socket bound to :: is reached by IPv4 as well.
        families = [socket.AF_INET] if ip.version == 4 else [socket.AF_INET6, socket.AF_INET]
        loopback = "127.0.0.1" if ip.version == 4 else "::1"
        address = next(filter(None, map(_own_address, families)), loopback)
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _own_address(family: socket.AddressFamily) -> str | None:
    """The address by which this host reaches others, None if there is none."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((_ANYWHERE[family], 9))
            return str(probe.getsockname()[0])
    except OSError:
        return None
