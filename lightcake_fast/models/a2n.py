"""An attention baseline after A2N: neighbours weighed by learned projections, and DistMult behind it."""

from typing import Any

from torch import Tensor

from lightcake_fast.graph import ContextGraph
from lightcake_fast.models.base import RelationModel
from lightcake_fast.models.neighbours import neighbours
from lightcake_fast.models.scorers import distmult
from lightcake_fast.models.weights import xavier
from lightcake_fast.segments import segment_softmax_aggregate


class A2N(RelationModel):
    """One round of attention: e_h' = W_s e_h + W_a sum of alpha n over the neighbours of h.

    n = W_r e_r + W_t e_t for a context triple (h, r, t), and alpha is the softmax over h's context of
    <e_h, n> / sqrt(d). A re-implementation: in the paper the attention also sees the relation that is asked
    about, which here is the answer. Holds tensors of a row for each context triple.

    Args:
        num_entities: N.
        num_relations: R, raw relations; inverses have rows of their own.
        options: those of ``RelationModel``.

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
        self, entities: Tensor, relations: Tensor, graph: ContextGraph, mask: Tensor | None, backend: str
    ) -> tuple[Tensor, Tensor]:
        found = neighbours(graph)
        triple = found.triple.index_select(0, found.by_head)
        head, relation, tail = (ids.index_select(0, triple) for ids in graph.context_triples)
        messages = (relations @ self.of_relation).index_select(0, relation)
        messages = messages + (entities @ self.of_tail).index_select(0, tail)
        scores = (entities.index_select(0, head) * messages).sum(1) / entities.shape[1] ** 0.5
        hidden = None if mask is None else mask.repeat(2).index_select(0, triple)
        sums = segment_softmax_aggregate(scores, messages, found.rows_by_head, hidden, backend=backend)
        return entities @ self.of_self + sums @ self.of_neighbours, relations

    def _score(self, heads: Tensor, relations: Tensor, tails: Tensor) -> Tensor:
        return distmult(heads, relations, tails)
