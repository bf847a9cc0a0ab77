"""Spans on disk: bounded, written by one sink, read by anybody, by trace.

A line is what one post brought: a `TracesData` object of OTLP JSON.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

from moriio_observed.traces import otlp
from moriio_observed.traces.errors import TracesError
from moriio_observed.traces.spans import OURS, Span

NEWEST, OLDER = "spans.jsonl", "spans.older.jsonl"
LIMIT_BYTES = 64 * 2**20
"""How much of the disk the two files may take; then the older half goes."""
LONGEST_LINE = 64 * 2**20

DEMO_FOLDER = Path("build/demo/traces")
"""Where the demo, run from here, keeps its traces."""

Key = tuple[str, str, int]


def user_folder(environ: Mapping[str, str]) -> Path:
    """Where a user's traces are kept unless told otherwise: XDG's folder for state."""
    state = environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "moriio-observed" / "traces"


class SpanWriter:
    """The one writer of a folder of spans; may be called by several threads.

    Args:
        folder: The folder; made when missing, readable by the user alone.
        limit_bytes: How much it may hold; the oldest half goes when it is full.

    Raises:
        TracesError: When the folder cannot be written, or another process writes it.
    """

    def __init__(self, folder: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        self.folder = folder
        self._limit = limit_bytes // 2
        self._path = folder / NEWEST
        self._lock = Lock()
        self._owner: io.FileIO | None = None
        self._file: io.FileIO | None = None
        try:
            self._owner = self._owned()
            self._file = self._opened()
        except OSError as error:
            self.close()
            raise self._cannot(error) from error

    def append(self, data: Mapping[str, Any]) -> None:
        """Write one post's spans, all of them or none.

        Raises:
            TracesError: When they cannot be written; what was there before is unharmed.
        """
        line = json.dumps(data, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            try:
                _write(self._file_for(len(line)), line)
            except OSError as error:
                raise self._cannot(error) from error

    def close(self) -> None:
        """Let another process write here."""
        with self._lock:
            for file in (self._file, self._owner):
                if file is not None:
                    file.close()
            self._file = self._owner = None

    def _owned(self) -> io.FileIO:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # A lock the kernel lets go of however its owner ends.
        lock = _private(self.folder / "writer.lock")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise OSError(errno.EBUSY, "another sink keeps its traces there") from None
        return lock

    def _opened(self) -> io.FileIO:
        file = _private(self._path)
        size = os.fstat(file.fileno()).st_size
        # The last line of a writer that was killed may be torn: it must not take ours with it.
        if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
            _write(file, b"\n")
        return file

    def _file_for(self, needed: int) -> io.FileIO:
        """The file that the next so many bytes go to."""
        if self._file is None:
            raise TracesError("the store of traces is closed")
        mine = os.fstat(self._file.fileno())
        if not _is_at(self._path, mine):
            # Somebody tidied up: what is written from now on must be found again.
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        elif mine.st_size + needed > self._limit:
            self._path.replace(self.folder / OLDER)
        else:
            return self._file
        full, self._file = self._file, self._opened()
        full.close()
        return self._file

    def _cannot(self, error: OSError) -> TracesError:
        return TracesError(
            f"cannot keep traces in {self.folder}: {error.strerror}; make room or rights there, or"
            " name another folder"
        )


def _private(path: Path) -> io.FileIO:
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    return io.FileIO(os.open(path, flags, 0o600), "a+")


def _is_at(path: Path, file: os.stat_result) -> bool:
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    return os.path.samestat(there, file)


def _write(file: io.FileIO, line: bytes) -> None:
    size = os.fstat(file.fileno()).st_size
    left = memoryview(line)
    try:
        while left:
            left = left[file.write(left) :]
    except OSError:
        # Half a line is worth nothing, and giving it back works on a full disk too.
        with contextlib.suppress(OSError):
            file.truncate(size)
        raise


@dataclass
class Summary:
    """What a trace is about.

    Attributes:
        trace_id: Its id.
        start_ns: Its first span's start, in nanoseconds since the epoch.
        end_ns: Its last span's end.
        name: The name of its earliest root, or of its earliest span.
        failed: How many spans have the status ERROR.
        slow: How many waited long for reads.
        troubled: Whether one of ours is among these.
        request_ids: The requests its spans name.
        keys: What tells its spans apart.
    """

    trace_id: str
    start_ns: int = otlp.LATEST_NS
    end_ns: int = 0
    name: str = ""
    failed: int = 0
    slow: int = 0
    troubled: bool = False
    request_ids: set[str] = field(default_factory=set)
    keys: set[Key] = field(default_factory=set)
    _name_rank: tuple[bool, int] = (True, otlp.LATEST_NS)

    def add(self, span: Span, slow_s: float) -> None:
        """Take a span into account, once however often it was sent."""
        if _key(span) in self.keys:
            return
        self.keys.add(_key(span))
        self.start_ns = min(self.start_ns, span.start_ns)
        self.end_ns = max(self.end_ns, span.end_ns)
        rank = bool(span.parent_id), span.start_ns
        if not self.name or rank < self._name_rank:
            self.name, self._name_rank = span.name, rank
        slow = span.is_slow(slow_s)
        self.failed += span.failed
        self.slow += slow
        self.troubled |= slow or (span.failed and span.name.startswith(OURS))
        self.request_ids |= span.request_ids


class SpanStore:
    """Reads what sinks have kept, also while they write.

    Args:
        places: Folders of sinks, or files of OTLP JSON lines.

    Attributes:
        skipped: Lines and spans of the last reading that were not usable.
    """

    def __init__(self, places: Sequence[Path]) -> None:
        self.places = places
        self.skipped = 0

    def summaries(self, slow_s: float) -> list[Summary]:
        """Every trace, that which ended last at the end.

        Raises:
            TracesError: When a place cannot be read.
        """
        found: dict[str, Summary] = {}
        for span in self._spans():
            found.setdefault(span.trace_id, Summary(span.trace_id)).add(span, slow_s)
        return sorted(found.values(), key=lambda summary: summary.end_ns)

    def spans(self, trace_ids: Collection[str]) -> list[Span]:
        """The spans of these traces, each once, by their start.

        Raises:
            TracesError: When a place cannot be read.
        """
        wanted = set(trace_ids)
        found = {_key(span): span for span in self._spans(wanted) if span.trace_id in wanted}
        return sorted(found.values(), key=lambda span: (span.start_ns, -span.end_ns))

    def _spans(self, mentioning: Collection[str] = ()) -> Iterator[Span]:
        """All spans, or at least those of lines that mention one of these."""
        self.skipped = 0
        needles = [text.encode() for text in mentioning]
        for line in self._lines():
            if needles and not any(needle in line.lower() for needle in needles):
                continue
            try:
                spans, rejected = otlp.spans_of(otlp.from_json(line))
            except otlp.MalformedError:
                self.skipped += 1
                continue
            self.skipped += rejected
            yield from spans

    def _lines(self) -> Iterator[bytes]:
        for place in self.places:
            # The newest first: a file that becomes the older one meanwhile is then read twice,
            # which does no harm, and not passed over.
            for path in (place / NEWEST, place / OLDER) if place.is_dir() else (place,):
                try:
                    with path.open("rb") as file:
                        yield from self._lines_of(file)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    raise TracesError(f"cannot read {path}: {error.strerror}") from error

    def _lines_of(self, file: io.BufferedReader) -> Iterator[bytes]:
        while line := file.readline(LONGEST_LINE):
            if not line.endswith(b"\n") and len(line) == LONGEST_LINE:
                self.skipped += 1
                while (rest := file.readline(LONGEST_LINE)) and not rest.endswith(b"\n"):
                    pass
            elif line.strip():
                yield line


def _key(span: Span) -> Key:
    return span.span_id, span.name, span.start_ns
