"""Additional terms for every model: relation counts of an entity, links and paths of a pair."""

from typing import Any

import torch
from torch import Generator, Tensor, nn

from lightcake_fast.models.evidence import Weighed
from lightcake_fast.models.paths import PathKinds
from lightcake_fast.models.weights import xavier

PROFILES = ("none", "score", "both")


class RelationProfile(nn.Module):
    """Adds the relation counts of entities to their rows in the score: p W_h + u_h and p W_t + u_t.

    p = log(1 + c), where c counts the entity's triples per relation. The softmax of a context is an average:
    it shows which relations an entity has, but not how often. Head and tail have separate weights. The rows u
    also distinguish the two sides of a symmetric score.

    Args:
        num_relations: R, raw relations.
        dim: d.
        generator: random generator for the initial values.
        dtype: floating-point dtype of the parameters.

    Shapes:
        ``of_head`` and ``of_tail`` (2R, d); ``head`` and ``tail`` (d,).
    """

    def __init__(
        self, num_relations: int, dim: int, *, generator: Generator | None, dtype: torch.dtype
    ) -> None:
        super().__init__()
        made: dict[str, Any] = {"generator": generator, "dtype": dtype}
        self.of_head, self.of_tail = (xavier(2 * num_relations, dim, **made) for _ in range(2))
        side = torch.full((dim,), 0.3, dtype=dtype, device=self.of_head.device)
        self.head, self.tail = nn.Parameter(side), nn.Parameter(side.clone())

    def of(self, side: str, entities: Weighed) -> Tensor:
        """Return the term for the rows of B entities on a side, "head" or "tail": (B, d)."""
        if side == "head":
            return entities.times(self.of_head) + self.head
        return entities.times(self.of_tail) + self.tail


class Links(nn.Module):
    """Adds the known relations between the entities of a pair to the score of relation r: (l W) . e_r.

    l is 1 for each relation known from head to tail, and for the inverse of each one known from tail to head.

    Args:
        num_relations: R, raw relations.
        dim: the width of a relation's row.
        generator: random generator for the initial values.
        dtype: floating-point dtype of the parameters.

    Shapes:
        ``of_link`` (2R, d).
    """

    def __init__(
        self, num_relations: int, dim: int, *, generator: Generator | None, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.of_link = xavier(2 * num_relations, dim, generator=generator, dtype=dtype)

    def of(self, links: Weighed) -> Tensor:
        """Return the rows l W of B pairs, (B, d)."""
        return links.times(self.of_link)


class Paths(nn.Module):
    """Adds the paths of two triples that join a pair to the score of relation r: v . e_r.

    v = sum over kinds (p, q) of log(1 + c_pq) A_p ∘ B_q. c_pq is the number of entities that relation p
    connects to the head and relation q to the tail. Inverses count as relations; head and tail themselves are
    excluded. A starts at zero and B near one. So the initial term is zero, and every kind has a gradient.

    Args:
        num_relations: R, raw relations.
        dim: the width of a relation's row.
        generator: random generator for the initial values.
        dtype: floating-point dtype of the parameters.

    Shapes:
        ``of_first`` and ``of_second`` (2R, d).
    """

    def __init__(
        self, num_relations: int, dim: int, *, generator: Generator | None, dtype: torch.dtype
    ) -> None:
        super().__init__()
        second = xavier(2 * num_relations, dim, generator=generator, dtype=dtype)
        self.of_first = nn.Parameter(torch.zeros_like(second))
        self.of_second = nn.Parameter(second.detach() + 1)

    def of(self, paths: PathKinds) -> Tensor:
        """Return the rows v of B pairs, (B, d)."""
        return paths.times(self.of_first, self.of_second)
