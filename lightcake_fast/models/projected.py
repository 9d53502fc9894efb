"""TransR: TransE after a projection that each relation has of its own."""

from typing import Any

import torch
from torch import Tensor, nn

from lightcake_fast.models.base import RelationModel
from lightcake_fast.models.scorers import negative_length


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
