"""The relation counts of the entities of a pair."""

from typing import Any

import torch
from torch import Tensor, nn

from lightcake_fast.errors import InputError
from lightcake_fast.graph import ContextGraph
from lightcake_fast.models.evidence import Weighed, evidence_of
from lightcake_fast.models.terms.term import Term
from lightcake_fast.models.weights import check_choice, xavier

PROFILES = ("none", "score", "both")


class Profile(Term):
    """Adds the relation counts of entities to their rows in the score: p W_h + u_h and p W_t + u_t.

    p = log(1 + c), where c counts the entity's triples per relation. The softmax of a context is an average:
    it shows which relations an entity has, but not how often. Head and tail have separate weights. The rows u
    also distinguish the two sides of a symmetric score. With the option "both", p W_in is also added to all
    entity rows before the refinement, so that the context includes the profiles of neighbors.

    Args:
        num_relations: R, raw relations.
        dim: d.
        made: as in ``Term``.

    Shapes:
        ``of_head`` and ``of_tail`` (2R, d); ``head`` and ``tail`` (d,); W_in is ``input_profile`` (2R, d) of
        the model.
    """

    sides = ("head", "tail")

    def __init__(self, num_relations: int, dim: int, **made: Any) -> None:
        super().__init__()
        self.of_head, self.of_tail = (xavier(2 * num_relations, dim, **made) for _ in range(2))
        side = torch.full((dim,), 0.3, dtype=self.of_head.dtype, device=self.of_head.device)
        self.head, self.tail = nn.Parameter(side), nn.Parameter(side.clone())

    @classmethod
    def attach(cls, model: nn.Module, name: str, option: Any, *sizes: int, **made: Any) -> None:
        """See ``Term``; "both" needs a model with context."""
        check_choice(name, option or "none", PROFILES)
        if option == "both" and not model.has_context:
            raise InputError(f"{name}: expected 'none' or 'score' without context layers, got 'both'")
        super().attach(model, name, option, *sizes, **made)
        for_inputs = xavier(2 * sizes[0], sizes[1], **made) if option == "both" else None
        model.register_parameter("input_profile", for_inputs)

    @staticmethod
    def without_layers(option: Any) -> Any:
        """See ``Term``."""
        return "score" if option == "both" else option

    def for_inputs(self, model: nn.Module, graph: ContextGraph, mask: Tensor | None) -> Tensor | None:
        """See ``Term``."""
        table: Any = model.input_profile
        return None if table is None else evidence_of(graph).profiles_times(table, mask)

    def of(self, side: str, found: Weighed) -> Tensor:
        """See ``Term``."""
        if side == "head":
            return found.times(self.of_head) + self.head
        return found.times(self.of_tail) + self.tail
