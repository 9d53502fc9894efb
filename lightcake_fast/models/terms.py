"""Terms beside the context, for every model: relations of an entity counted, links and paths of a pair."""

from typing import Any

import torch
from torch import Generator, Tensor, nn

from lightcake_fast.models.evidence import Weighed
from lightcake_fast.models.paths import PathKinds
from lightcake_fast.models.weights import xavier

PROFILES = ("none", "score", "both")


class RelationProfile(nn.Module):
    """What an entity's relations, counted, add to its row in the score: p W_h + u_h and p W_t + u_t.

    p = log(1 + c), c the entity's triples by relation. The softmax of a context averages: it tells which
    relations an entity has, not how often. Head and tail have weights of their own, and rows u that also tell
    apart the two sides of a score that is symmetric.

    Args:
        num_relations: R, raw relations.
        dim: d.
        generator: source of the initial values.
        dtype: floating-point type of the parameters.

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
        """What is added to the rows of B entities on a side, "head" or "tail": (B, d)."""
        if side == "head":
            return entities.times(self.of_head) + self.head
        return entities.times(self.of_tail) + self.tail


class Links(nn.Module):
    """What the relations that are known to join a pair add to the score of relation r: (l W) . e_r.

    l is 1 for each relation known from head to tail, and for the inverse of each known from tail to head.

    Args:
        num_relations: R, raw relations.
        dim: the width of a relation's row.
        generator: source of the initial values.
        dtype: floating-point type of the parameters.

    Shapes:
        ``of_link`` (2R, d).
    """

    def __init__(
        self, num_relations: int, dim: int, *, generator: Generator | None, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.of_link = xavier(2 * num_relations, dim, generator=generator, dtype=dtype)

    def of(self, links: Weighed) -> Tensor:
        """The rows l W of B pairs, (B, d)."""
        return links.times(self.of_link)


class Paths(nn.Module):
    """What the paths of two triples that join a pair add to the score of relation r: v . e_r.

    v = sum over kinds (p, q) of log(1 + c_pq) A_p ∘ B_q, c_pq the entities that a triple of relation p leads
    to from the head and one of relation q on to the tail, inverses included, head and tail themselves left
    out. A starts at zero, B about one: at first nothing is added, and every kind has a gradient.

    Args:
        num_relations: R, raw relations.
        dim: the width of a relation's row.
        generator: source of the initial values.
        dtype: floating-point type of the parameters.

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
        """The rows v of B pairs, (B, d)."""
        return paths.times(self.of_first, self.of_second)
