"""TransR: TransE after a projection per relation."""

from typing import Any

import torch
from torch import Tensor, nn

from lightcake_fast.models.base import RelationModel
from lightcake_fast.models.scorers import negative_length


class TransR(RelationModel):
    """Psi = -||h M + r - t M|| with one matrix M per relation, initially the identity.

    The scores of B pairs need a tensor of B x R x d. Unlike the paper, this model does not limit the length
    of rows and does not square the distance, like TransE here.

    Args:
        num_entities: N.
        num_relations: R, raw relations.
        options: the options of ``RelationModel``.

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
