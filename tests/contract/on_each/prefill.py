"""A prefill engine in a process of its own, so that its memory is really another's."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from moriio_observed import loopback
from moriio_observed.demo.server import Ports, transfer_config, with_ports

MAX_STEPS = 100


class Prefill:
    """A prefill engine that computes prompts on request.

    Args:
        model: The folder of the tiny model.
        ports: Where it is to listen.
        recurrent: Layers that keep recurrent state.
        tree: The sources of another vLLM version than this process's, if it is to be of another.
    """

    def __init__(
        self, model: Path, ports: Ports, recurrent: Sequence[str] = (), tree: Path | None = None
    ) -> None:
        self.ports = ports
        self.recurrent = tuple(recurrent)
        self._ours, theirs = multiprocessing.Pipe()
        transfer = with_ports(transfer_config("kv_producer"), ports)
        what = json.dumps([str(model), transfer, self.recurrent])
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(theirs.fileno()), what],
            env=os.environ | (_environment(tree) if tree else {}),
            pass_fds=[theirs.fileno()],
        )
        theirs.close()

    def close(self) -> None:
        """End the process."""
        self._ours.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def leg(self, prompt: Sequence[int], decode: Ports) -> tuple[str, dict[str, Any]]:
        """Compute a prompt and hold its KV; return the request's id and what D must be told."""
        request_id = (
            f"___prefill_addr_{self.ports.zmq_address}"
            f"___decode_addr_{decode.zmq_address}_{uuid.uuid4().hex}"
        )
        return request_id, self._ask("leg", request_id, list(prompt))

    def held(self) -> int:
        """How many blocks are held for decode engines, after one more step."""
        blocks: int = self._ask("held")
        return blocks

    def _ask(self, *what: Any) -> Any:
        self._ours.send(what)
        answer = self._ours.recv()
        if isinstance(answer, BaseException):
            raise answer
        return answer


def _environment(tree: Path) -> dict[str, str]:
    """What makes a process one of that tree's version."""
    cache = Path(os.environ["VLLM_CACHE_ROOT"]).with_name(tree.name)
    return {"PYTHONPATH": str(tree), "VLLM_CACHE_ROOT": str(cache)}


def _serve(
    orders: Connection, model: Path, transfer: Mapping[str, Any], recurrent: Sequence[str]
) -> None:
    """Be the prefill engine until the other end is closed."""
    loopback.activate()
    from tests.contract.on_each.engine import Engine

    engine = Engine(model, transfer, recurrent=recurrent)
    doing = {"leg": _leg, "held": _held}
    while True:
        try:
            name, *arguments = orders.recv()
        except EOFError:
            break
        try:
            orders.send(doing[name](engine, *arguments))
        except Exception as error:  # noqa: BLE001  (the asking side raises it)
            orders.send(RuntimeError(f"{type(error).__name__}: {error}"))
    engine.shutdown()


def _leg(engine: Any, request_id: str, prompt: Sequence[int]) -> Any:
    params = {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "transfer_id": f"tx-{request_id[-32:]}",
    }
    engine.add(request_id, prompt, max_tokens=1, params=params)
    for _ in range(MAX_STEPS):
        finished = engine.step().finished
        if request_id in finished:
            return finished[request_id]
    raise RuntimeError(f"the prefill engine makes no progress; {_held(engine)} blocks are held")


def _held(engine: Any) -> int:
    engine.step()
    pool = engine.scheduler.kv_cache_manager.block_pool
    # One block is vLLM's own, for nothing.
    return int(pool.num_gpu_blocks - 1 - pool.get_num_free_blocks())


if __name__ == "__main__":
    folder, transfer_of_ours, recurrent_layers = json.loads(sys.argv[2])
    _serve(Connection(int(sys.argv[1])), Path(folder), transfer_of_ours, recurrent_layers)
