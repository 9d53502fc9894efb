"""Memory limit for scores: blocks keep it independent of the batch size and the number of answers."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

BLOCK = 2**22  # numbers per block of scores, 16 MiB in float32
KEPT = 2**25  # maximum number of entity scores kept for the backward; further blocks are recomputed


def block_size(entries: int) -> int:
    """Return the number of rows per block, for `entries` intermediate values per row."""
    return max(1, BLOCK // max(1, entries))


def computed_again(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function without randomness; the backward recomputes it and keeps no intermediate values."""
    return checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)


def sum_over_blocks(
    function: Callable[..., Tensor],
    size: int,
    split: Sequence[Tensor],
    whole: Sequence[Tensor],
    weights: Sequence[Tensor],
) -> Tensor:
    """Sum a function over blocks of rows, and compute its gradient at once, to free each block's memory.

    Args:
        function: returns a scalar for a block of each tensor in ``split`` and all of ``whole``; it must not
            use random numbers.
        size: rows per block.
        split: tensors of B rows; floating-point tensors get a gradient.
        whole: tensors that each block reads completely; they get a gradient too.
        weights: leaf tensors that the function uses directly; they get a gradient if they take part.

    Returns:
        A scalar, differentiable once.
    """
    tensors, given = (*split, *whole, *weights), len(split) + len(whole)
    total: Tensor = _BlockSum.apply(function, size, len(split), given, *tensors)  # type: ignore[no-untyped-call]
    return total


class _BlockSum(torch.autograd.Function):
    """Differentiate a block as soon as it is computed.

    Otherwise large temporary tensors alternate with small ones that stay, and this fragments CPU memory.
    """

    @staticmethod
    def forward(
        ctx: Any, function: Callable[..., Tensor], size: int, num_split: int, given: int, *tensors: Tensor
    ) -> Tensor:
        wanted = [n for n, want in enumerate(ctx.needs_input_grad[4:]) if want]
        gradients: dict[int, Tensor] = {}
        total = tensors[0].new_zeros(())
        for start in range(0, len(tensors[0]), size):
            block = slice(start, start + size)
            inputs = [t[block] if n < num_split else t for n, t in enumerate(tensors)]
            inputs[:given] = [t.detach().requires_grad_(n in wanted) for n, t in enumerate(inputs[:given])]
            with torch.enable_grad():
                part = function(*inputs[:given])
            found = _gradients(part, [inputs[n] for n in wanted])
            for n, gradient in zip(wanted, found, strict=True):
                if gradient is not None and n not in gradients:
                    gradients[n] = torch.zeros_like(tensors[n])
                if gradient is not None:
                    (gradients[n][block] if n < num_split else gradients[n]).add_(gradient)
            total += part.detach()
        ctx.save_for_backward(*(gradients.get(n) for n in range(len(tensors))))
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        scaled = (None if gradient is None else gradient * g for gradient in ctx.saved_tensors)
        return None, None, None, None, *scaled


def _gradients(part: Tensor, inputs: list[Tensor]) -> tuple[Tensor | None, ...]:
    return torch.autograd.grad(part, inputs, allow_unused=True) if inputs else ()
