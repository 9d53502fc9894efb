"""Memory of the CPU passes' large results, kept for the next ones of their size where a program asks for it.

What goes back to the system comes back page by page, each of them cleared; malloc, told to keep such blocks,
is left with holes that none fits.
"""

from __future__ import annotations

import math
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

_least = math.inf  # bytes from which results are kept
_idle: dict[int, list[Tensor]] = {}  # blocks of bytes by their size


def keep_results(least: float) -> None:
    """Keep the memory of results of ``least`` bytes and more once they are gone."""
    global _least
    _least = least
    _idle.clear()


def empty(like: Tensor, *shape: int) -> Tensor:
    """A result to be written, of the type of ``like``.

    Its memory is idle again when nothing reads it any more. A size that none idle has releases all that is
    idle first: a program whose sizes vary keeps nothing.
    """
    import torch  # not above: a process that compiles passes does not wait for it

    size = math.prod(shape) * like.itemsize
    if size < max(_least, 1):
        return like.new_empty(shape)
    try:
        block = _idle[size].pop()
    except LookupError:
        _idle.clear()
        block = torch.empty(size, dtype=torch.uint8)
    array = block.numpy().view(like[:0].numpy().dtype).reshape(shape)
    weakref.finalize(array, _give_back, block).atexit = False  # by whichever thread lets go of the tensor
    return torch.from_numpy(array)


def _give_back(block: Tensor) -> None:
    if len(block) >= _least:
        _idle.setdefault(len(block), []).append(block)
