"""Models without context: TransE, DistMult, ComplEx, SimplE, RotatE and TransH."""

from typing import Any

from torch import Tensor

from lightcake_fast.errors import InputError
from lightcake_fast.models.base import RelationModel
from lightcake_fast.models.scorers import SCORERS
from lightcake_fast.models.weights import check_choice
from lightcake_fast.scores import score_named

HALVES = ("complex", "simple", "rotate")  # scores that read a row of d numbers as two halves


class PlainModel(RelationModel):
    """A score function of entity and relation rows (see ``scorers``), without context.

    Args:
        num_entities: N.
        num_relations: R, raw relations.
        dim: d, even for "complex", "simple" and "rotate".
        score: a key of ``SCORERS``.
        options: the options of ``RelationModel``.

    Shapes:
        ``entities`` (N, d); ``relations`` (R, d), for "rotate" (R, d/2): angles from which the rows are
        computed; ``normals`` (R, d) for "transh".

    Raises:
        InputError: if ``dim`` is odd and must be even.
        ValueError: as ``RelationModel``.
    """

    def __init__(
        self, num_entities: int, num_relations: int, *, dim: int, score: str, **options: Any
    ) -> None:
        check_choice("score", score, SCORERS)
        if score in HALVES and dim % 2:
            raise InputError(f"dim: expected an even number for {score}, got {dim}")
        planes = score_named(score).planes
        super().__init__(
            num_entities, num_relations, dim=dim, angles=score == "rotate", planes=planes, **options
        )
        self.score, self.entity_score = score, None if planes else score

    def _score(self, heads: Tensor, relations: Tensor, tails: Tensor) -> Tensor:
        return SCORERS[self.score](heads, self.read_relations(relations), tails)
