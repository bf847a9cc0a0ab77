"""A vLLM that nobody has released yet: a real one whose MoRIIO package was changed in one place.

As a program, on the real tree of one version, it says what becomes of our connector on each of the
changed packages it is given: in a process for each, it writes the facts beside the package.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

V1 = "vllm.distributed.kv_transfer.kv_connector.v1"
FACTS = "facts.json"
RENAMED = "renamed.json"


@dataclass(frozen=True)
class Change:
    """What was changed in a version's MoRIIO package.

    Attributes:
        name: What the next release did.
        version: The release it was done to.
        edits: Pattern and replacement of each; all are applied to every file of the package.
        files: Files renamed, with their old and new names.
        renamed: Attributes of the built worker, with their old and new names.
    """

    name: str
    version: str
    edits: tuple[tuple[str, str], ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()


def doctor(change: Change, tree: Path, into: Path) -> Path:
    """Make the changed package; the answer is the folder that holds it.

    Raises:
        ValueError: The real package has nothing that one of the edits would change.
    """
    package = into / "moriio"
    shutil.copytree(tree.joinpath(*V1.split("."), "moriio"), package)
    for pattern, replacement in change.edits:
        changed = 0
        for path in package.glob("*.py"):
            text, times = re.subn(pattern, replacement, path.read_text())
            path.write_text(text)
            changed += times
        if not changed:
            raise ValueError(f"{change.name}: nothing in {change.version} matches {pattern!r}")
    for old, new in change.files:
        package.joinpath(old).rename(package / new)
    into.joinpath(RENAMED).write_text(json.dumps(dict(change.renamed)))
    return into


def facts_of(folder: Path) -> dict[str, Any]:
    """What the program wrote about a changed package."""
    facts: dict[str, Any] = json.loads((folder / FACTS).read_text())
    return facts


class Lines(logging.Handler):
    """What our own loggers say."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append((record.levelname, record.getMessage()))


def find_facts(renamed: dict[str, str]) -> dict[str, Any]:
    """What our connector does on the MoRIIO package that is first on the module path."""
    try:
        from moriio_observed import connector as module
    except ImportError as error:
        return {"refused": str(error)}
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
    from vllm.distributed.kv_transfer.kv_connector.v1.moriio import moriio_connector

    from moriio_observed import upstream
    from moriio_observed.config import SettingsError
    from tests.unit import scripted

    class Worker(scripted.ScriptedWorker):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            for old, new in renamed.items():
                vars(self)[new] = vars(self).pop(old)

    class Scheduler(moriio_connector.MoRIIOConnectorScheduler):
        def __init__(self, vllm_config: Any, *_: Any) -> None:
            self.mode = upstream.moriio.moriio_common.get_moriio_mode(
                vllm_config.kv_transfer_config
            )
            self.is_producer = False
            self._reqs_need_recv: dict[str, Any] = {}
            self._req_kv_params: dict[str, Any] = {}
            self._deferred_send_deadlines: dict[str, Any] = {}

    lines = Lines()
    logging.getLogger("vllm.moriio_observed").addHandler(lines)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scripted, "ScriptedWorker", Worker)
        patch.setattr(moriio_connector, "MoRIIOConnectorScheduler", Scheduler)
        patch.setattr(module, "LOOK_S", 0)
        patch.setattr(module, "FLUSH_S", 0)
        bare = scripted.Decode(patch, connector=moriio_connector.MoRIIOConnector)
        upstream_trace, _ = play(bare)
        ours = scripted.Decode(patch)
        trace, stats = play(ours)
        scheduler = module.ObservedMoRIIOConnector(
            ours.config,
            KVConnectorRole.SCHEDULER,
            SimpleNamespace(kv_cache_groups=[], transfer_groups=[]),
        )
        refusal = None
        try:
            scripted.Decode(patch, {"barrier": "step"})
        except SettingsError as error:
            refusal = str(error)
        return {
            "trace": trace,
            "upstream's trace": upstream_trace,
            "hooked": [hasattr(ours.worker, "_moriio_observed"), scheduler._claims is not None],
            "upstream's methods": [stands_aside(each) for each in (ours.connector, scheduler)],
            "lines": lines.said,
            "refusal": refusal,
            "metrics": exposition(ours, stats),
        }


def stands_aside(connector: Any) -> bool:
    """Whether vLLM reaches upstream's own methods."""
    from moriio_observed import upstream

    return all(
        getattr(connector, name).__func__ is getattr(upstream.MoRIIOConnector, name)
        for name in upstream.OVERRIDDEN
    )


def play(decode: Any) -> tuple[list[Any], Any]:
    """One step whose reads land when they are looked at a third time, and what was seen of it.

    How often each read was looked at when the forward ran and after the step tells waits apart:
    a look more or less is another wait.
    """
    from tests.unit import fakes, scripted

    class Patient(fakes.FakeStatus):
        def Succeeded(self) -> bool:  # noqa: N802
            if self.looks == 2:
                self.land()
            return super().Succeeded()

    class Session(scripted.Session):
        def batch_read(self, *_: Any) -> Any:
            self.posted.append(Patient())
            return self.posted[-1]

    session = decode.worker.session = Session()
    trace: list[Any] = []

    def look() -> None:
        trace.append([(status.state, status.looks) for status in session.posted])

    result = decode.step("r", reading=["r"], during=look)
    look()
    trace += [len(decode.sent), sorted(result.invalid)]
    return trace, result.stats


def exposition(decode: Any, stats: Any) -> list[str]:
    """The lines of /metrics that say what is in force."""
    from prometheus_client import Counter, Gauge, Histogram, generate_latest

    metrics = type(decode.connector).build_prom_metrics(
        decode.config,
        {Gauge: Gauge, Counter: Counter, Histogram: Histogram},
        ["model_name", "engine"],
        {0: ["m", "0"]},
    )
    metrics.observe(stats.to_dict())
    wanted = ("moriio_hook_installed{", "moriio_config_info{", "moriio_reads_posted_total{")
    return [line for line in generate_latest().decode().splitlines() if line.startswith(wanted)]


@contextmanager
def forked() -> Iterator[bool]:
    """A process of its own for what stands inside; it is told so, and waited for."""
    child = os.fork()
    if child:
        yield False
        _, status = os.waitpid(child, 0)
        if status:
            raise SystemExit(f"process {child} ended with status {status}")
        return
    code = 1
    try:
        yield True
        code = 0
    except BaseException:  # noqa: BLE001  (whatever it is, it ends this process)
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def import_everything_else() -> Any:
    """Import what MoRIIO needs, so that no process has to do it again, and forget MoRIIO itself."""
    import importlib

    from moriio_observed import loopback

    loopback.activate({"MORIIO_OBSERVED_LOOPBACK": "auto"})
    importlib.import_module(f"{V1}.moriio.moriio_connector")
    for name in [name for name in sys.modules if name.startswith(f"{V1}.moriio")]:
        del sys.modules[name]
    package = sys.modules[V1]
    del package.moriio
    return package


def main(folders: list[str]) -> None:
    package = import_everything_else()
    for folder in folders:
        with forked() as inside:
            if inside:
                package.__path__.insert(0, folder)
                renamed = json.loads(Path(folder, RENAMED).read_text())
                Path(folder, FACTS).write_text(json.dumps(find_facts(renamed)))


if __name__ == "__main__":
    main(sys.argv[1:])
