"""An attention baseline after A2N: learned projections weight the neighbors, DistMult scores the result."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lightcake_fast.models.base import RelationModel
from lightcake_fast.models.neighbours import Neighbours, neighbours, sum_rows
from lightcake_fast.models.scorers import distmult
from lightcake_fast.models.weights import xavier
from lightcake_fast.segments import segment_softmax_aggregate
from lightcake_fast.sharding.layer import AnyGraph, with_halo

_BLOCK = 4096  # triples per block of rows


class A2N(RelationModel):
    """One round of attention: e_h' = W_s e_h + W_a sum of alpha n over the neighbors of h.

    n = W_r e_r + W_t e_t for a context triple (h, r, t), and alpha is the softmax over h's context of <e_h,
    n> / sqrt(d). This model differs from the paper: there the attention also depends on the queried relation,
    which in relation prediction is the answer. The model makes no tensor with one row per context triple.

    Args:
        num_entities: N.
        num_relations: R, raw relations; inverses have separate rows.
        options: the options of ``RelationModel``.

    Shapes:
        ``entities`` (N, d); ``relations`` (2R, d); ``of_relation``, ``of_tail``, ``of_self`` and
        ``of_neighbours`` (d, d). Rows are multiplied from the left.

    Source: after Bansal et al., A2N: Attending to Neighbors for Knowledge Graph Inference, ACL 2019.
    """

    entity_score = "distmult"

    def __init__(self, num_entities: int, num_relations: int, **options: Any) -> None:
        super().__init__(
            num_entities, num_relations, relation_rows=2 * num_relations, has_context=True, **options
        )
        dim, like = self.entities.shape[1], self.entities
        made: dict[str, Any] = {"generator": options.get("generator"), "dtype": like.dtype}
        self.of_relation, self.of_tail, self.of_self, self.of_neighbours = (
            xavier(dim, dim, **made) for _ in range(4)
        )

    def _encode(
        self, entities: Tensor, relations: Tensor, graph: AnyGraph, mask: Tensor | None, backend: str
    ) -> tuple[Tensor, Tensor]:
        rows, whole = with_halo(entities, graph)
        found = neighbours(whole)
        order = found.in_head_order
        of_relation, of_tail = relations @ self.of_relation, rows @ self.of_tail
        scores: Tensor = _Products.apply(rows, of_relation, of_tail, found)  # type: ignore[no-untyped-call]
        scores = scores / entities.shape[1] ** 0.5
        hidden = None if mask is None else mask.repeat(2).index_select(0, order.triple)
        sums = segment_softmax_aggregate(scores, of_relation, order.relations, hidden, backend=backend)
        sums = sums + segment_softmax_aggregate(scores, of_tail, order.tails, hidden, backend=backend)
        return entities @ self.of_self + sums[: len(entities)] @ self.of_neighbours, relations

    def _score(self, heads: Tensor, relations: Tensor, tails: Tensor) -> Tensor:
        return distmult(heads, relations, tails)


class _Products(torch.autograd.Function):
    """<x_h, a_r + b_t> of every context triple, (E,), sorted by head, computed in blocks of triples."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, a: Tensor, b: Tensor, found: Neighbours) -> Tensor:
        ctx.save_for_backward(x, a, b)
        ctx.found = found
        order, out = found.in_head_order, x.new_empty(len(found.tail))
        columns = (torch.split(column, _BLOCK) for column in (out, order.head, order.relation, order.tail))
        for part, head, relation, tail in zip(*columns, strict=True):
            rows = a.index_select(0, relation).add_(b.index_select(0, tail))
            torch.sum(rows.mul_(x.index_select(0, head)), 1, out=part)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        x, a, b = ctx.saved_tensors
        found, order = ctx.found, ctx.found.in_head_order
        dx = sum_rows(a, order.relation, found.head_bounds, g)
        dx += sum_rows(b, order.tail, found.head_bounds, g)
        heads, of_entry = found.group_head[found.group], g.index_select(0, order.place)
        da = sum_rows(x, heads, found.relation_bounds, of_entry)
        # the triples with tail t are the inverses of the triples with head t
        db = sum_rows(x, order.tail, found.head_bounds, g.index_select(0, order.inverse))
        return dx, da, db, None
