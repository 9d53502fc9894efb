"""A shard's part of a layer, without communication.

A shard's rows are [own; halo]. Of the two directions of its raw triples those are live whose head is its own.
The others have score -inf and a halo row has a maximum of +inf and gradient zero: then the passes of the
whole graph, and every formula of docs/op.md, hold as they are. A relation's triples lie in many shards: each
gives the mean over its own with their norm, and ``merge_relations`` makes one row of them.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightcake_fast.graph import ContextGraph
from lightcake_fast.ops import gathered, layer_backend
from lightcake_fast.reference import partial as reference_partial


class Share(NamedTuple):
    """What a shard makes of a layer's rows.

    Attributes:
        entities: new rows (N, d), those of the halo as they were.
        means: (2R, d), the softmax-weighted mean over the shard's own triples of each relation.
        scores: (E,), in the back end's order.
        norm_entities: (N, 2), each row's maximum of scores, +inf in the halo, and one over its sum of
            exp(s - maximum).
        norm_relations: (2R, 2), of the means; +inf for a relation without a live triple here.
        gathered: (N, d), the copy that triples read; None where they read the rows themselves.
    """

    entities: Tensor
    means: Tensor
    scores: Tensor
    norm_entities: Tensor
    norm_relations: Tensor
    gathered: Tensor | None


def check_tables(x: Tensor, y: Tensor, score: str, backend: str) -> str:
    """The back end that "auto" stands for.

    Raises:
        InputError: it cannot run here, or lacks the score.
        ValueError: the rows are not float32 or float64.
    """
    if x.dtype not in (torch.float32, torch.float64) or y.dtype != x.dtype:
        raise ValueError(f"rows: got {x.dtype} and {y.dtype}, wanted both torch.float32 or torch.float64")
    return layer_backend(score, backend, x, y)


def forward(
    x: Tensor,
    y: Tensor,
    graph: ContextGraph,
    mask: Tensor,
    score: str,
    context: str,
    residual: bool,
    rows: str,
    backend: str,
) -> Share:
    """A shard's share of a layer.

    Args:
        x: own rows, then the halo's, (N, d), contiguous.
        y: relations (2R, d), contiguous.
        graph: all raw triples that the shard holds.
        mask: bool (T, 2), True leaves out a raw triple, or its inverse, for itself.
        score: as in ``context_layer``.
        context: as in ``context_layer``.
        residual: as in ``context_layer``.
        rows: as in ``context_layer``.
        backend: "triton", "numba" or "reference".
    """
    copy = gathered(x, rows)
    options: dict[str, Any] = {"residual": residual, "partial": True, "gathered": copy}
    if backend == "triton":
        from lightcake_fast.kernels import gpu_forward

        made = gpu_forward.forward(x, y, graph.gpu_plan, mask, score, context, **options)
        new_x, new_y, s, norm_x, norm_y = made
        return Share(new_x, new_y, s, norm_x, norm_y, copy)
    if backend == "numba":
        from lightcake_fast.kernels import cpu_forward

        return Share(*cpu_forward.forward(x, y, graph.plan, mask, score, context, **options), copy)
    both_ways, triples, wide = mask.T.reshape(-1), graph.context_triples, _as_wide(copy, x)
    found = reference_partial.forward(x, y, triples, both_ways, score, context, residual, wide)
    return Share(*found, copy)


def _as_wide(copy: Tensor | None, x: Tensor) -> Tensor | None:
    """A copy of rows, if there is one, in their type."""
    return None if copy is None else copy.to(x.dtype)


def backward(
    g: Tensor,
    q: Tensor,
    x: Tensor,
    y: Tensor,
    share: Share,
    new_y: Tensor,
    norm_y: Tensor,
    graph: ContextGraph,
    score: str,
    residual: bool,
    backend: str,
) -> tuple[Tensor, Tensor]:
    """dL/dx (N, d), of the halo's rows as well, and the share of dL/dy (2R, d) without q.

    Args:
        g: gradient of the new rows (N, d), zero in the halo.
        q: that of the new relations (2R, d), whole.
        x: as in ``forward``.
        y: as in ``forward``.
        share: what it returned.
        new_y: what ``merge_relations`` made of all shares.
        norm_y: likewise.
        graph: as in ``forward``.
        score: as in ``forward``.
        residual: as in ``forward``.
        backend: as in ``forward``.
    """
    new_x, _, s, norm_x, _, copy = share
    known = g, q, x, y, new_x, new_y, s, norm_x, norm_y
    options: dict[str, Any] = {"residual": residual, "partial": True, "gathered": copy}
    if backend == "triton":
        from lightcake_fast.kernels import gpu_backward

        return gpu_backward.backward(*known, graph.gpu_plan, score, **options)
    if backend == "numba":
        from lightcake_fast.kernels import cpu_backward

        return cpu_backward.backward(*known, graph.plan, score, **options)
    return reference_partial.backward(*known, graph.context_triples, score, residual, _as_wide(copy, x))


def merge_relations(y: Tensor | None, means: Tensor, norms: Tensor) -> tuple[Tensor, Tensor]:
    """New relations from the means of all shards, in their order.

    Args:
        y: relations (2R, d), to which the mean is added; None for the mean alone.
        means: (P, 2R, d), of each shard.
        norms: (P, 2R, 2), theirs, +inf where a shard has none.

    Returns:
        The mean over all triples, added to y, (2R, d), and its norm (2R, 2).
    """
    tops, factors = norms.unbind(-1)
    none = tops == torch.inf
    top = tops.masked_fill(none, -torch.inf).amax(0)
    shift = top.masked_fill(top == -torch.inf, 0)
    weights = ((tops - shift).exp() / factors).masked_fill(none, 0)
    total = weights.sum(0)
    nothing = total == 0
    some = total.masked_fill(nothing, 1)
    mean = (weights[..., None] * means).sum(0) / some[:, None]
    norm = torch.stack([shift.masked_fill(nothing, torch.inf), 1 / some], 1)
    return mean if y is None else y + mean, norm
