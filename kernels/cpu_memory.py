"""Memory of large results of the CPU passes. A program can ask to keep it for later results of equal size.

Memory that is returned to the system comes back page by page, and the system clears each page. If malloc
keeps such blocks instead, it leaves holes that fit no later block.
"""

from __future__ import annotations

import math
import threading
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy.typing as npt
    from torch import Tensor

PATIENCE = 256  # results after which unused memory is released

_least = math.inf  # size in bytes from which results are kept
_lock = threading.Lock()
_idle: dict[int, list[tuple[Tensor, int]]] = {}  # blocks by bytes, with the result that freed each
_leases: dict[int, _Lease] = {}  # of living results
_ended: list[_Lease] = []
_results = 0


class _Lease(weakref.ref):  # type: ignore[type-arg]
    """A weak reference to an array, with the block of memory that the array uses.

    The lease ends when the last tensor of the array is freed. This can happen in any thread and inside C
    code. A Python callback there would swallow a Ctrl-C, so the callback is a C function.
    """

    block: Tensor


def keep_results(least: float) -> None:
    """Keep the memory of freed results that have ``least`` bytes or more."""
    global _least
    _least = least
    release_results()


def release_results() -> None:
    """Return the memory of freed results to the system."""
    with _lock:
        _collect()
        _idle.clear()


def new_result(like: Tensor, *shape: int) -> Tensor:
    """Allocate a result on the CPU with the dtype of ``like``.

    Its memory becomes idle when nothing reads it any more. If no idle block has the required size, all idle
    blocks are released first. Blocks that stay idle for long are released too. So a program with varying
    sizes keeps no memory.
    """
    size = math.prod(shape) * like.itemsize
    if math.isinf(_least) or size == 0:
        return like.new_empty(shape)
    import torch  # not at the top: a process that only compiles passes does not load torch

    with _lock:
        _collect()
        if size < _least:
            return like.new_empty(shape)
        if _idle.get(size):
            block, _ = _idle[size].pop()
        else:
            _idle.clear()
            block = torch.empty(size, dtype=torch.uint8, device="cpu")
        array = block.numpy().view(like[:0].numpy().dtype).reshape(shape)
        _lend(block, array)
    return torch.from_numpy(array)


def _lend(block: Tensor, array: npt.NDArray[Any]) -> None:
    lease = _Lease(array, _ended.append)
    lease.block = block
    _leases[id(lease)] = lease


def _collect() -> None:
    """Add the blocks of ended leases to the idle blocks, and release blocks that were idle for long."""
    global _results
    _results += 1
    while _ended:
        lease = _ended.pop()
        del _leases[id(lease)]
        if len(lease.block) >= _least:
            _idle.setdefault(len(lease.block), []).append((lease.block, _results))
    if _results % PATIENCE == 0:
        for size, blocks in [*_idle.items()]:
            _idle[size] = [(block, since) for block, since in blocks if since > _results - PATIENCE]
