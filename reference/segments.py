"""Softmax over segments and the weighted sum of gathered rows, in plain PyTorch."""

import torch
from torch import Tensor

from lightcake_fast.reference.layer import segment_softmax


def segment_softmax_aggregate(
    scores: Tensor, values: Tensor, segment: Tensor, index: Tensor, num_segments: int, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """``out[m] = sum of w_e values[index_e]`` over the entries e of segment m, with softmax weights w.

    Args:
        scores: shape (E, H), any float dtype.
        values: shape (N, H, d), same dtype.
        segment: int64 (E,), below ``num_segments``.
        index: int64 (E,), below N.
        num_segments: M.
        mask: bool (E,) or None. True masks an entry.

    Returns:
        The sums (M, H, d), zero for segments without a live entry, and the weights (E, H).
    """
    columns = [segment_softmax(head, segment, num_segments, mask) for head in scores.unbind(1)]
    w = torch.stack(columns, 1)
    out = values.new_zeros(num_segments, *values.shape[1:])
    return out.index_add(0, segment, w[..., None] * values.index_select(0, index)), w
