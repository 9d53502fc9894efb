"""TransH and TransR: TransE after a projection that each relation has of its own."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lightcake_fast.models.base import RelationModel
from lightcake_fast.models.scorers import negative_length
from lightcake_fast.models.weights import xavier


class TransH(RelationModel):
    """Psi = -||h' + r - t'||, x' = x - <w, x> w: projected onto the plane with normal w of the relation.

    w is kept at length one by the model itself. The paper's soft constraint that r lie in the plane is left
    out, and the length is not squared, as in TransE here.

    Args:
        num_entities: N.
        num_relations: R, raw relations.
        options: those of ``RelationModel``.

    Shapes:
        ``entities`` (N, d); ``relations`` (R, d); ``normals`` (R, d).

    Source: Wang et al., AAAI 2014.
    """

    def __init__(self, num_entities: int, num_relations: int, **options: Any) -> None:
        super().__init__(num_entities, num_relations, **options)
        generator, like = options.get("generator"), self.relations
        self.normals = xavier(*like.shape, generator=generator, dtype=like.dtype)

    def _score(self, heads: Tensor, relations: Tensor, tails: Tensor) -> Tensor:
        normals = functional.normalize(self.normals, dim=1)
        difference = tails - heads
        along = difference @ normals.T  # the part of the difference that the projection takes away
        squared = (
            difference.square().sum(1, keepdim=True)
            - along.square()
            - 2 * (difference @ relations.T - along * (relations * normals).sum(1))
            + relations.square().sum(1)
        )
        return negative_length(squared)


class TransR(RelationModel):
    """Psi = -||h M + r - t M|| with a matrix M for each relation, at first the identity.

    The score of B pairs holds a tensor of B x R x d. The paper's limits on the lengths of rows are left out,
    and the length is not squared, as in TransE here.

    Args:
        num_entities: N.
        num_relations: R, raw relations.
        options: those of ``RelationModel``.

    Shapes:
        ``entities`` (N, d); ``relations`` (R, d); ``projections`` (R, d, d).

    Source: Lin et al., AAAI 2015.
    """

    def __init__(self, num_entities: int, num_relations: int, **options: Any) -> None:
        super().__init__(num_entities, num_relations, **options)
        identity = torch.eye(self.entities.shape[1], dtype=self.entities.dtype, device=self.entities.device)
        self.projections = nn.Parameter(identity.repeat(num_relations, 1, 1))

    @property
    def entries(self) -> int:
        """See ``RelationModel``."""
        return self.relations.numel()

    def _score(self, heads: Tensor, relations: Tensor, tails: Tensor) -> Tensor:
        projected = torch.einsum("bd,rde->bre", tails - heads, self.projections)
        return negative_length((projected - relations).square().sum(2))
