"""The score of every raw relation for each of a batch of pairs, as one matrix."""

from collections.abc import Callable

import torch
from torch import Tensor


def distmult(heads: Tensor, relations: Tensor, tails: Tensor) -> Tensor:
    """Psi = sum_i h_i r_i t_i for heads and tails (B, d) and relations (R, d): shape (B, R)."""
    return (heads * tails) @ relations.T


def transe(heads: Tensor, relations: Tensor, tails: Tensor) -> Tensor:
    """Psi = -||t - r - h|| for heads and tails (B, d) and relations (R, d): shape (B, R).

    Through one matrix product; a squared length that rounding makes negative counts as zero, and a zero
    length has gradient zero.
    """
    difference = tails - heads
    squared = (
        difference.square().sum(1, keepdim=True) + relations.square().sum(1) - 2 * difference @ relations.T
    )
    smallest = torch.finfo(squared.dtype).tiny
    return -squared.clamp_min(smallest).sqrt()


SCORERS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {"distmult": distmult, "transe": transe}
