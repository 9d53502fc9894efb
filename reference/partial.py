"""Part of a layer in plain PyTorch, for workers that hold only some triples of each relation."""

import torch
from torch import Tensor
from torch.nn import functional

from lightcake_fast.reference.scores import SCORES

Triples = tuple[Tensor, Tensor, Tensor]


def forward(
    x: Tensor,
    y: Tensor,
    triples: Triples,
    mask: Tensor,
    score: str,
    context: str,
    residual: bool,
    gathered: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute the layer from a part of the context triples.

    Args:
        x: entities (N, d).
        y: relations (2R, d), or (2R, 2 d) for a score with planes.
        triples: ids of all E context triples: (h, r, t), each int64 of shape (E,).
        mask: bool (E,). True masks the context triple.
        score: a key of ``SCORES``.
        context: "both", "entity" or "relation".
        residual: False returns only the sums, without the old rows.
        gathered: rows (N, d) that triples read in place of x; None for x.

    Returns:
        The new entities, the weighted means of relations without y (y itself outside the context), the scores
        (E,) with -inf for masked triples, and two softmax tables. The tables (N, 2) and (2R, 2) hold the
        maximum of each row and one over its sum of exp(s - maximum). The maximum is +inf without a live
        triple or outside the context.
    """
    h, r, _ = triples
    f = SCORES[score]
    e_h, e_r, e_t = f.gather(x if gathered is None else gathered, y, triples)
    s = f.psi(e_h, e_r, e_t).masked_fill(mask, -torch.inf)
    new_x, new_y = (rows.clone() if residual else torch.zeros_like(rows) for rows in (x, y))
    norm_x, norm_y = (rows.new_tensor([torch.inf, 0]).repeat(len(rows), 1) for rows in (x, y))
    if context != "relation":
        mean, norm_x = _weighted_means(s, h, len(x), f.phi_ent(e_r, e_t))
        new_x += mean
    if context != "entity":
        means, norm_y = _weighted_means(s, r, len(y), f.phi_rel(e_h, e_t))
        new_y = functional.pad(means, (0, y.shape[1] - means.shape[1]))
    return new_x, new_y, s, norm_x, norm_y


def backward(
    g: Tensor,
    q: Tensor,
    x: Tensor,
    y: Tensor,
    new_x: Tensor,
    new_y: Tensor,
    s: Tensor,
    norm_x: Tensor,
    norm_y: Tensor,
    triples: Triples,
    score: str,
    residual: bool,
    gathered: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute dL/dx and this part's share of dL/dy (without q) from the gradients of whole new rows.

    Without ``residual``, new_x and new_y are the sums alone.

    Autograd differentiates a sum with constant weights: ``alpha <g_h, phi_ent> + beta <q_r, phi_rel> + delta
    s``, where delta is dL/ds. Source: docs/op.md, "The gradient of one layer".
    """
    h, r, _ = triples
    alpha, beta = softmax_weights(s, norm_x, h), softmax_weights(s, norm_y, r)
    if residual:
        new_x, new_y = new_x - x, new_y - y
    dot_x, dot_y = (g * new_x).sum(1), (q * new_y).sum(1)
    with torch.enable_grad():
        x = (x if gathered is None else gathered).detach().requires_grad_()
        y = y.detach().requires_grad_()
        f = SCORES[score]
        e_h, e_r, e_t = f.gather(x, y, triples)
        of_head = (g.index_select(0, h) * f.phi_ent(e_r, e_t)).sum(1)
        of_relation = (q[:, : x.shape[1]].index_select(0, r) * f.phi_rel(e_h, e_t)).sum(1)
        delta = alpha * (of_head.detach() - dot_x.index_select(0, h))
        delta = delta + beta * (of_relation.detach() - dot_y.index_select(0, r))
        total = (alpha * of_head + beta * of_relation + delta * f.psi(e_h, e_r, e_t)).sum()
        grad_x, grad_y = torch.autograd.grad(total, (x, y))
    return g + grad_x if residual else grad_x, grad_y


def softmax_weights(s: Tensor, norm: Tensor, segment: Tensor) -> Tensor:
    """Compute softmax weights from the scores and the maxima and factors (M, 2) of their segments."""
    top, factor = norm.index_select(0, segment).unbind(-1)
    return (s - top).exp() * factor


def _weighted_means(s: Tensor, segment: Tensor, rows: int, phi: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax-weighted means of phi (E, d) in each segment, and its maximum and factor."""
    top = s.new_full((rows,), -torch.inf).scatter_reduce(0, segment, s, "amax")
    shift = top.masked_fill(top == -torch.inf, 0)  # a segment without a live triple
    weight = (s - shift.index_select(0, segment)).exp()
    total = s.new_zeros(rows).index_add(0, segment, weight)
    none = total == 0
    some = total.masked_fill(none, 1)
    sums = phi.new_zeros(rows, phi.shape[1]).index_add(0, segment, weight[:, None] * phi)
    return sums / some[:, None], torch.stack([shift.masked_fill(none, torch.inf), 1 / some], 1)
