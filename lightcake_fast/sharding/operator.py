"""A shard's part of a layer, without communication.

A shard's rows are [own; halo]. A raw triple has two directions. A direction is live if its head is an own
row. The other directions have score -inf, and a halo row has a maximum of +inf and gradient zero. So the
passes of the whole graph and all formulas of docs/op.md apply unchanged. The triples of a relation lie in
many shards. Each shard computes the mean over its live triples, with its norm, and ``merge_relations``
combines them.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightcake_fast.backends import backend_named, layer_backend
from lightcake_fast.graph import ContextGraph
from lightcake_fast.ops import gathered


class Share(NamedTuple):
    """A shard's results of a layer.

    Attributes:
        entities: new rows (N, d); halo rows are unchanged.
        means: (2R, d), the softmax-weighted mean per relation over the shard's own triples.
        scores: (E,), in the back end's order.
        norm_entities: (N, 2), per row the maximum score, +inf in the halo, and one over the sum of
            exp(s - maximum).
        norm_relations: (2R, 2), the same for the means; +inf for a relation without a live triple here.
        gathered: (N, d), the copy that triples read; None where they read the rows themselves.
    """

    entities: Tensor
    means: Tensor
    scores: Tensor
    norm_entities: Tensor
    norm_relations: Tensor
    gathered: Tensor | None


def check_tables(x: Tensor, y: Tensor, score: str, backend: str) -> str:
    """Return the back end that "auto" selects.

    Raises:
        InputError: the back end cannot run here, or does not have the score.
        ValueError: the rows are not float32 or float64.
    """
    if x.dtype not in (torch.float32, torch.float64) or y.dtype != x.dtype:
        raise ValueError(f"rows: expected both torch.float32 or torch.float64, got {x.dtype} and {y.dtype}")
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
    """Compute a shard's share of a layer.

    Args:
        x: own rows, then halo rows, (N, d), contiguous.
        y: relations (2R, d), contiguous.
        graph: all raw triples that the shard holds.
        mask: bool (T, 2), True masks a direction of a raw triple: column 0 the triple, column 1 its inverse.
        score: as in ``context_layer``.
        context: as in ``context_layer``.
        residual: as in ``context_layer``.
        rows: as in ``context_layer``.
        backend: "triton", "numba" or "reference".
    """
    copy, used = gathered(x, rows), backend_named(backend)
    options: dict[str, Any] = {"residual": residual, "partial": True, "gathered": copy}
    new_x, means, s, norm_x, norm_y = used.forward(x, y, used.plan(graph), mask, score, context, **options)
    return Share(new_x, means, s, norm_x, norm_y, copy)


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
    """Return dL/dx (N, d), including halo rows, and the share of dL/dy (2R, d) without q.

    Args:
        g: gradient of the new rows (N, d), zero in the halo.
        q: gradient of the new relations (2R, d), summed over all ranks.
        x: as in ``forward``.
        y: as in ``forward``.
        share: the result of ``forward``.
        new_y: the merged relations from ``merge_relations``.
        norm_y: their norm from ``merge_relations``.
        graph: as in ``forward``.
        score: as in ``forward``.
        residual: as in ``forward``.
        backend: as in ``forward``.
    """
    new_x, _, s, norm_x, _, copy = share
    made, used = (new_x, new_y, s, norm_x, norm_y), backend_named(backend)
    options: dict[str, Any] = {"residual": residual, "partial": True, "gathered": copy}
    grad_x, grad_y = used.backward((g, q), (x, y), made, used.plan(graph), score, **options)
    return grad_x, grad_y


def merge_relations(y: Tensor | None, means: Tensor, norms: Tensor) -> tuple[Tensor, Tensor]:
    """Merge the relation means of all shards, in rank order.

    Args:
        y: relations (2R, d) to add to the mean; None returns only the mean.
        means: (P, 2R, d), the means of each shard.
        norms: (P, 2R, 2), their norms; +inf where a shard has no mean.

    Returns:
        The mean over all triples, plus y, (2R, d), and its norm (2R, 2).
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
