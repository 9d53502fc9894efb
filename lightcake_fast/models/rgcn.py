"""R-GCN: a graph convolution with one matrix per relation, followed by DistMult."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from lightcake_fast.errors import InputError
from lightcake_fast.models.base import RelationModel
from lightcake_fast.models.batches import batches
from lightcake_fast.models.neighbours import Neighbours, neighbours, sum_rows, threads_for
from lightcake_fast.models.scorers import distmult
from lightcake_fast.models.weights import check_at_least, check_choice, xavier
from lightcake_fast.sharding.layer import AnyGraph, with_halo

DECOMPOSITIONS = ("full", "basis", "block")


class RGCNLayer(nn.Module):
    """e_h' = W_0 e_h + sum over r of W_r (mean of e_t over the context triples (h, r, t)), inverses included.

    The layer sums neighbors first and multiplies the sums. So it makes no tensor with one row per context
    triple.

    Args:
        num_relations: R, raw relations; inverse relations have separate matrices.
        dim: d.
        decomposition: form of the 2R matrices W_r: "full", independent matrices; "basis", linear
            combinations of ``bases`` matrices; "block", block-diagonal with ``bases`` blocks.
        bases: B, at least 1; a divisor of d for "block"; not used by "full".
        generator: random generator for the initial values.
        dtype: floating-point dtype of the parameters.

    Shapes:
        ``root`` (d, d); ``matrices`` (2R, blocks, d / blocks, d / blocks), where "full" has one block; for
        "basis" ``matrices`` (B, d, d) and ``coefficients`` (2R, B). Rows are multiplied from the left.

    Raises:
        InputError: if d is not a multiple of B for "block".
        ValueError: if another argument is out of range.

    Source: Schlichtkrull et al., ESWC 2018, arXiv 1703.06103, equations 2-4, with c the number of neighbors
    of the entity by the relation.
    """

    def __init__(
        self,
        num_relations: int,
        dim: int,
        *,
        decomposition: str = "basis",
        bases: int = 4,
        generator: torch.Generator | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        check_choice("decomposition", decomposition, DECOMPOSITIONS)
        check_at_least(1, bases=bases)
        blocks = bases if decomposition == "block" else 1
        if dim % blocks:
            raise InputError(f"dim: expected a multiple of bases={blocks}, got {dim}: change dim or bases")
        made: dict[str, Any] = {"generator": generator, "dtype": dtype}
        self.root = xavier(dim, dim, **made)
        if decomposition == "basis":
            self.matrices = xavier(bases, dim, dim, **made)
            self.coefficients: nn.Parameter | None = xavier(2 * num_relations, bases, **made)
        else:
            self.matrices = xavier(2 * num_relations, blocks, dim // blocks, dim // blocks, **made)
            self.coefficients = None

    def forward(self, entities: Tensor, graph: AnyGraph, mask: Tensor | None = None) -> Tensor:
        """Return the new rows (N, d) of the entities, without an activation function.

        Args:
            entities: (N, d); with a shard, the rows that this rank owns.
            graph: the context on the same device, or a shard of it.
            mask: bool (T,), triples to leave out together with their inverses, or None.
        """
        rows, whole = with_halo(entities, graph)
        found = neighbours(whole)
        weights = found.mean_weights(mask, entities.dtype)
        matrices: Tensor = self.matrices
        if self.coefficients is not None:
            matrices = torch.tensordot(self.coefficients, matrices, 1)[:, None]
        sums: Tensor = _RelationProducts.apply(rows, matrices, weights, found)  # type: ignore[no-untyped-call]
        return entities @ self.root + sums[: len(entities)]


class _RelationProducts(torch.autograd.Function):
    """The sum over r of (A_r x) W_r, with A_r the weighted adjacency matrix, one batch at a time."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, matrices: Tensor, weights: Tensor, found: Neighbours) -> Tensor:
        ctx.save_for_backward(x, matrices, weights)
        ctx.found = found
        out = torch.zeros_like(x)
        for batch in batches(found, x.shape[1], matrices[0].numel()):
            with threads_for(batch.entries, x.shape[1]):
                sums = sum_rows(x, found.tail[batch.entries], batch.bounds, weights[batch.entries])
                batch.add_to_heads(out, _product(sums, matrices[batch.relations]))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, None, None]:
        x, matrices, weights = ctx.saved_tensors
        found, inverse_weights = ctx.found, weights.index_select(0, ctx.found.inverse)
        dx, dmatrices = torch.zeros_like(x), torch.zeros_like(matrices)
        for batch in batches(found, x.shape[1], matrices[0].numel()):
            with threads_for(batch.entries, x.shape[1]):
                tail, own = found.tail[batch.entries], matrices[batch.inverses]
                sums = sum_rows(x, tail, batch.bounds, weights[batch.entries])
                rows = _blocks(g.index_select(0, batch.heads), own)
                products = torch.bmm(_blocks(sums, own).mT, rows)
                batch.add_to_relations(dmatrices, products.view_as(own))
                # A_r^T g: the neighbors by r are the heads of r's inverse
                sums = sum_rows(g, tail, batch.bounds, inverse_weights[batch.entries])
                batch.add_to_heads(dx, _product(sums, own.mT))
        return dx, dmatrices, None, None


def _blocks(rows: Tensor, matrices: Tensor) -> Tensor:
    """Split rows (M, d) into the parts for each block, (tiles blocks, M / tiles, d / blocks)."""
    (blocks, width), tiles = matrices.shape[-3:-1], len(matrices) if matrices.ndim == 4 else 1
    return rows.view(tiles, len(rows) // tiles, blocks, width).transpose(1, 2).flatten(0, 1)


def _product(rows: Tensor, matrices: Tensor) -> Tensor:
    """Multiply rows (M, d) by a block-diagonal matrix (blocks, d / blocks, d / blocks), or one per tile."""
    products = torch.bmm(_blocks(rows, matrices), matrices.flatten(0, -3))
    return products.view(-1, matrices.shape[-3], *products.shape[1:]).transpose(1, 2).reshape(rows.shape)


class RGCN(RelationModel):
    """R-GCN layers with ReLU between them, scored by DistMult.

    Args:
        num_entities: N.
        num_relations: R, raw relations.
        dim: d, the width of all layers.
        layers: L, at least 1.
        decomposition: as in ``RGCNLayer``.
        bases: as in ``RGCNLayer``.
        options: the options of ``RelationModel``.

    Shapes:
        ``entities`` (N, d); ``relations`` (R, d), for DistMult; each of ``convolutions`` as in
        ``RGCNLayer``.

    Source: Schlichtkrull et al., ESWC 2018, arXiv 1703.06103.
    """

    entity_score = "distmult"

    def __init__(
        self,
        num_entities: int,
        num_relations: int,
        *,
        dim: int,
        layers: int,
        decomposition: str = "basis",
        bases: int = 4,
        **options: Any,
    ) -> None:
        check_at_least(1, layers=layers)
        super().__init__(num_entities, num_relations, dim=dim, has_context=True, **options)
        self.convolutions = nn.ModuleList(
            RGCNLayer(
                num_relations,
                dim,
                decomposition=decomposition,
                bases=bases,
                generator=options.get("generator"),
                dtype=self.entities.dtype,
            )
            for _ in range(layers)
        )

    def _encode(
        self, entities: Tensor, relations: Tensor, graph: AnyGraph, mask: Tensor | None, backend: str
    ) -> tuple[Tensor, Tensor]:
        for n, convolution in enumerate(self.convolutions):
            entities = convolution(entities.relu() if n else entities, graph, mask)
        return entities, relations

    def _score(self, heads: Tensor, relations: Tensor, tails: Tensor) -> Tensor:
        return distmult(heads, relations, tails)
