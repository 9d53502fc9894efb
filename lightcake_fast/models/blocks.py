"""The budget of scores: what a batch holds of them at once does not grow with the batch or the answers."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

BLOCK = 2**22  # numbers that a block of scores is made of, 16 MiB in float32
KEPT = 2**25  # scores of all entities that are kept for the backward; more are computed again, block by block


def block_size(entries: int) -> int:
    """The rows of a block, if the scores of each are made of so many numbers."""
    return max(1, BLOCK // max(1, entries))


def computed_again(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function without randomness returns; the backward calls it again and keeps nothing of it."""
    return checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)


def sum_over_blocks(
    function: Callable[..., Tensor],
    size: int,
    split: Sequence[Tensor],
    whole: Sequence[Tensor],
    weights: Sequence[Tensor],
) -> Tensor:
    """The sum of a function over blocks of rows, with its gradient at once: nothing else of a block is kept.

    Args:
        function: of a block of each of ``split`` and of all of ``whole``, without randomness; a scalar.
        size: rows of a block.
        split: tensors of B rows; those of floating-point numbers get a gradient.
        whole: tensors that get one as well.
        weights: leaves that the function knows of itself and that get one if they take part.

    Returns:
        A scalar, differentiable once.
    """
    tensors, given = (*split, *whole, *weights), len(split) + len(whole)
    total: Tensor = _BlockSum.apply(function, size, len(split), given, *tensors)  # type: ignore[no-untyped-call]
    return total


class _BlockSum(torch.autograd.Function):
    """A block is differentiated when it is made.

    Tensors of its size that come and go between small ones that stay would leave holes in the memory of a
    CPU, as many as blocks.
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
