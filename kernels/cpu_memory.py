"""Memory of the CPU passes' large results, kept for the next ones of their size where a program asks for it.

What goes back to the system comes back page by page, each of them cleared; malloc, told to keep such blocks,
is left with holes that none fits.
"""

from __future__ import annotations

import math
import threading
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy.typing as npt
    from torch import Tensor

PATIENCE = 256  # results after which memory that none of them took is released

_least = math.inf  # bytes from which results are kept
_lock = threading.Lock()
_idle: dict[int, list[tuple[Tensor, int]]] = {}  # blocks of bytes by their size, and since which result
_leases: dict[int, _Lease] = {}  # of results that are alive
_ended: list[_Lease] = []
_results = 0


class _Lease(weakref.ref):  # type: ignore[type-arg]
    """A block and the array that it was lent to.

    Whoever lets go of the last tensor ends it, in any thread and within C: there a callback in Python would
    swallow a Ctrl-C.
    """

    block: Tensor


def keep_results(least: float) -> None:
    """Keep the memory of results of ``least`` bytes and more once they are gone."""
    global _least
    _least = least
    release_results()


def release_results() -> None:
    """Give the memory of results that are gone back to the system."""
    with _lock:
        _collect()
        _idle.clear()


def new_result(like: Tensor, *shape: int) -> Tensor:
    """A result to be written, of the type of ``like``, on the CPU.

    Its memory is idle again when nothing reads it any more. A size that none idle has releases all that is
    idle first, and what stays idle for long is released as well: a program whose sizes vary keeps nothing.
    """
    size = math.prod(shape) * like.itemsize
    if math.isinf(_least) or size == 0:
        return like.new_empty(shape)
    import torch  # not above: a process that compiles passes does not wait for it

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
    """Note what has become idle, and release what has been for long."""
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
