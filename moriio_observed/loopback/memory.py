"""Moving bytes between this process's memory and another's."""

import ctypes
import errno
import os
from array import array
from collections.abc import Callable, Iterable
from itertools import chain

from moriio_observed.loopback.process import ProcessId

IOV_MAX = 1024
_WORD = 8
_IOVEC_BYTES = 2 * _WORD  # struct iovec: an address and a length

_libc = ctypes.CDLL(None, use_errno=True)


def _system_call(name: str) -> Callable[..., int]:
    function = _libc[name]
    vector = (ctypes.c_void_p, ctypes.c_ulong)
    function.argtypes = (ctypes.c_int, *vector, *vector, ctypes.c_ulong)
    function.restype = ctypes.c_ssize_t
    return function


# ctypes lets go of the GIL for the duration of the call.
_readv = _system_call("process_vm_readv")
_writev = _system_call("process_vm_writev")


class Pieces:
    """A scattered copy: runs of bytes here, and as long there. Good for one copy."""

    __slots__ = ("count", "local", "remote", "total_bytes")

    def __init__(self, local: Iterable[int], remote: Iterable[int], sizes: Iterable[int]) -> None:
        """Take addresses here, addresses there and bytes of each; empty runs are left out."""
        runs = [run for run in zip(local, remote, sizes, strict=True) if run[2]]
        self.local = array("Q", chain.from_iterable((here, size) for here, _, size in runs))
        self.remote = array("Q", chain.from_iterable((there, size) for _, there, size in runs))
        self.count = len(runs)
        self.total_bytes = sum(size for _, _, size in runs)

    def advance(self, first: int, moved: int) -> int:
        """Account for bytes moved from run `first` on; return the run to go on with."""
        while first < self.count and moved >= self.local[2 * first + 1]:
            moved -= self.local[2 * first + 1]
            first += 1
        if moved:
            for side in (self.local, self.remote):
                side[2 * first] += moved
                side[2 * first + 1] -= moved
        return first


def read_memory(process: ProcessId, pieces: Pieces) -> None:
    """Copy pieces of another process's memory into ours.

    Raises:
        ProcessLookupError: The process is gone.
        OSError: What else the kernel answered, in words.
    """
    _move(_readv, process, pieces)


def write_memory(process: ProcessId, pieces: Pieces) -> None:
    """Copy pieces of our memory into another process's.

    Raises:
        ProcessLookupError: The process is gone.
        OSError: What else the kernel answered, in words.
    """
    _move(_writev, process, pieces)


def _move(call: Callable[..., int], process: ProcessId, pieces: Pieces) -> None:
    if not process.alive():
        raise _error(errno.ESRCH, process.pid)
    local, remote = pieces.local.buffer_info()[0], pieces.remote.buffer_info()[0]
    first = 0
    while first < pieces.count:
        runs = min(IOV_MAX, pieces.count - first)
        skip = first * _IOVEC_BYTES
        # Fewer bytes than asked for is no error: the kernel stops at 2 GiB, and before a bad page.
        moved = call(process.pid, local + skip, runs, remote + skip, runs, 0)
        if moved <= 0:
            raise _error(ctypes.get_errno() if moved else errno.EFAULT, process.pid)
        first = pieces.advance(first, moved)


_EXPLANATIONS = {
    errno.ESRCH: "process {pid} is gone",
    errno.EFAULT: "memory of process {pid} or of this one is not mapped any more",
    errno.EPERM: (
        "not allowed to access the memory of process {pid}: run both as one user, and either set "
        "kernel.yama.ptrace_scope to 0 or grant CAP_SYS_PTRACE (in a container: "
        "--cap-add SYS_PTRACE)"
    ),
}


def _error(code: int, pid: int) -> OSError:
    text = _EXPLANATIONS.get(code, os.strerror(code) + " (process {pid})")
    return OSError(code, text.format(pid=pid))
