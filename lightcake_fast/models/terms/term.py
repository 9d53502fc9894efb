"""The protocol of a term: its option, its parameters, its evidence, and the rows that it adds."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lightcake_fast.graph import ContextGraph
from lightcake_fast.models.evidence import evidence_of
from lightcake_fast.sharding.layer import Shard
from lightcake_fast.sharding.shard import HeldTriples, Ids

SIDES = ("head", "tail", "pair")

# Known facts about B pairs, by side, then by term. A value is what `Term.find` returns.
Evidence = dict[str, dict[str, Any]]


class HeldPairs(NamedTuple):
    """The triples of B pairs on one rank.

    Attributes:
        shard: the rank's part of the context.
        num_entities: N of all ranks.
        held: the rank's triples of a split.
        places: int64 (B,), the positions of the pairs in ``held``.
    """

    shard: Shard
    num_entities: int
    held: HeldTriples
    places: Ids


class Pairs(NamedTuple):
    """B pairs of entities that need evidence.

    Attributes:
        graph: the context, with the ids of ``ids``.
        ids: int64 (B, 2) of (head, tail); N stands for an entity that is not in the graph.
        dtype: dtype of the weights.
        targets: int64 (B,), in training: the pairs are triples of the graph with these relations. Each triple
            is excluded from the evidence of its pair, to avoid label leakage. None excludes nothing.
        numbers: int64 (B,), the positions of these triples in the graph, if known.
        held: the triples of the pairs if the graph is one rank's part of the context.
    """

    graph: ContextGraph
    ids: Tensor
    dtype: torch.dtype
    targets: Tensor | None = None
    numbers: Tensor | None = None
    held: HeldPairs | None = None


def chosen(option: Any) -> bool:
    """Whether the option of a term asks for the term."""
    return bool(option) and option != "none"


class Term(nn.Module):
    """A learned addition to the scores of pairs. A model has it as a submodule with the name of its option.

    Args:
        num_relations: R, raw relations.
        dim: d.
        made: random generator for the initial values, and the dtype of the parameters.

    Attributes:
        sides: the parts of a pair that it adds to. "head" and "tail": it adds rows to the refined rows of the
            entities. "pair": it adds the product of a row and each relation row to the scores.
        fixed_shapes: whether the shapes of its evidence on a GPU depend only on the number of pairs. A CUDA
            graph needs this.
    """

    sides: tuple[str, ...] = ("pair",)
    fixed_shapes = True

    @classmethod
    def attach(cls, model: nn.Module, name: str, option: Any, *sizes: int, **made: Any) -> None:
        """Add the term to a model if the option asks for it; other arguments as in ``Term``.

        Raises:
            InputError: if the option does not fit the model.
        """
        model.add_module(name, cls(*sizes, **made) if chosen(option) else None)

    @staticmethod
    def without_layers(option: Any) -> Any:
        """Return the option of a preset as it fits a model without layers."""
        return option

    def for_inputs(self, model: nn.Module, graph: ContextGraph, mask: Tensor | None) -> Tensor | None:
        """Return rows (N, d) to add to all entity rows before the first layer, or None.

        ``mask`` is bool (T,), the graph's triples to mask together with their inverses, or None.
        """
        return None

    def find(self, side: str, pairs: Pairs) -> Any:
        """Return the evidence of one side of pairs; by default see ``GraphEvidence.of``.

        ``relation`` and ``weight`` (K,) have an entry per relation; ``second`` (K,) is optional.
        """
        return evidence_of(pairs.graph).of(side, pairs.ids, pairs.dtype, pairs.targets)

    def of(self, side: str, found: Any) -> Tensor:
        """Return the rows (B, d) to add, from the result of ``find``."""
        raise NotImplementedError

    def counts(self, found: Any) -> Tensor:
        """Return the counts behind the weights of the result of ``find``."""
        counts: Tensor = found.weight.double().expm1()
        return counts
