"""The known relations between the entities of a pair."""

from typing import Any

from torch import Tensor

from lightcake_fast.models.evidence import Weighed
from lightcake_fast.models.terms.term import Term
from lightcake_fast.models.weights import xavier


class Links(Term):
    """Adds the known relations between the entities of a pair to the score of relation r: (l W) . e_r.

    l is 1 for each relation known from head to tail, and for the inverse of each one known from tail to head.

    Args:
        num_relations: R, raw relations.
        dim: the width of a relation's row.
        made: as in ``Term``.

    Shapes:
        ``of_link`` (2R, d).
    """

    def __init__(self, num_relations: int, dim: int, **made: Any) -> None:
        super().__init__()
        self.of_link = xavier(2 * num_relations, dim, **made)

    def of(self, side: str, found: Weighed) -> Tensor:
        """See ``Term``: the rows l W."""
        return found.times(self.of_link)

    def counts(self, found: Weighed) -> Tensor:
        """See ``Term``."""
        return found.weight
