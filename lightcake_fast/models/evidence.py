"""Counts from the graph: relations per entity, with their frequency, and relations per pair."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from lightcake_fast.graph import ContextGraph
from lightcake_fast.models.neighbours import bounds_of, entries_of, sum_rows

_PIECE = 512  # entries of a relation that one task sums in sequence


class Weighed(NamedTuple):
    """B lists of relations with weights, concatenated: a sparse matrix (B, 2R).

    Attributes:
        relation: int64 (K,), the relation of each entry.
        weight: (K,), the weight of each entry; 0 for padding.
        bounds: int64 (B + 1,), start and end of each list.
    """

    relation: Tensor
    weight: Tensor
    bounds: Tensor

    def times(self, table: Tensor) -> Tensor:
        """Return the weighted sum of the rows of ``table`` (2R, d) for each list, (B, d)."""
        if table.device.type != "cpu":
            return sum_rows(table, self.relation, self.bounds, self.weight)
        sums: Tensor = _ListProduct.apply(table, *self)  # type: ignore[no-untyped-call]
        return sums


class _ListProduct(torch.autograd.Function):
    """``Weighed.times`` on a CPU, where PyTorch's own gradient takes three times as long as this one."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, relation: Tensor, weight: Tensor, bounds: Tensor) -> Tensor:
        ctx.save_for_backward(relation, weight, bounds)
        ctx.relations = len(table)
        return sum_rows(table, relation, bounds, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None, None]:
        relation, weight, bounds = ctx.saved_tensors
        rows = torch.arange(len(g)).repeat_interleave(bounds.diff())
        # NumPy uses radix sort for 16-bit integers, in a tenth of the time
        short = relation.numpy().astype(np.uint16 if ctx.relations < 2**16 else np.int64)
        order = torch.from_numpy(np.argsort(short, kind="stable"))
        ends = np.bincount(short, minlength=ctx.relations).cumsum()
        by_relation = rows.index_select(0, order), torch.from_numpy(np.concatenate([[0], ends]))
        return sum_rows(g.contiguous(), *by_relation, weight.index_select(0, order)), None, None, None


@dataclass(frozen=True, eq=False)
class RelationLists:
    """M lists of distinct relations, as a CSR.

    Attributes:
        first: int64 (M,), the first entry of each list.
        length: int64 (M,), the number of its entries.
        relation: int64 (K,), the relation of each entry.
        longest: the number of entries in the longest list.
    """

    first: Tensor
    length: Tensor
    relation: Tensor
    longest: int

    @classmethod
    def of(cls, owner: Tensor, relation: Tensor, lists: int) -> "RelationLists":
        """Build the lists from entries, int64 (K,), that are sorted by owner, the number of their list."""
        bounds = bounds_of(owner, lists)
        length = bounds.diff()
        return cls(bounds[:-1], length, relation, int(length.max()))

    def entries(self, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Locate the entries of the lists ``chosen``, int64 (B,).

        On a GPU, shapes must not depend on the batch, so each list is padded to the longest one.

        Returns:
            The position of each entry; the number of its list in ``chosen``; the bounds of the lists, (B +
            1,); and a mask of the padding, None without padding.
        """
        first, length = self.first.index_select(0, chosen), self.length.index_select(0, chosen)
        if chosen.device.type == "cpu":
            return *entries_of(first, length), None
        return self.filled_up(first, length, torch.arange(len(chosen), device=chosen.device))

    def filled_up(self, first: Tensor, length: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """``entries`` for a GPU, for lists with these first entries, lengths and numbers ``rows``."""
        step = torch.arange(self.longest, device=rows.device)
        place = (first[:, None] + step).clamp_(max=len(self.relation) - 1).flatten()
        bounds = torch.arange(len(rows) + 1, device=rows.device) * self.longest
        row = rows[:, None].expand(-1, self.longest).flatten()
        return place, row, bounds, (step >= length[:, None]).flatten()


@dataclass(frozen=True, eq=False)
class GraphEvidence:
    """The D distinct context triples of a graph, counted per entity and listed per pair.

    Attributes:
        num_entities: N.
        num_relations: R.
        distinct: int64 (2T,), the number of each context triple among the distinct ones; copies share it.
        entry: int64 (D,), the entry of ``by_entity`` that counts each distinct triple.
        by_entity: N + 1 lists; the last is for entities that are not in the graph.
        entity: int64 (K,), the entity of each entry of ``by_entity``.
        count: int64 (K,), the number of distinct triples of each entry.
        by_pair: P + 1 lists; the last is for all pairs without a triple.
        pairs: int64 (P + 1,), head x (N + 1) + tail of each pair, sorted, and the largest int64 as the last.
    """

    num_entities: int
    num_relations: int
    distinct: Tensor
    entry: Tensor
    by_entity: RelationLists
    entity: Tensor
    count: Tensor
    by_pair: RelationLists
    pairs: Tensor

    @classmethod
    def of_graph(cls, graph: ContextGraph) -> "GraphEvidence":
        """Sort a graph's triples. Use ``evidence_of``, which caches the result."""
        n, relations = graph.num_entities, 2 * graph.num_relations
        head, relation, tail = graph.context_triples
        # in two steps, because head, tail and relation together can exceed 64 bits
        pairs, pair = torch.unique(head * (n + 1) + tail, return_inverse=True)
        triples, distinct = torch.unique(pair * relations + relation, return_inverse=True)
        pair, relation = triples // relations, triples % relations
        head = pairs.index_select(0, pair) // (n + 1)
        counted, entry, count = torch.unique(
            head * relations + relation, return_inverse=True, return_counts=True
        )
        entity = counted // relations
        return cls(
            num_entities=n,
            num_relations=graph.num_relations,
            distinct=distinct,
            entry=entry,
            by_entity=RelationLists.of(entity, counted % relations, n + 1),
            entity=entity,
            count=count,
            by_pair=RelationLists.of(pair, relation, len(pairs) + 1),
            pairs=torch.cat([pairs, pairs.new_full((1,), torch.iinfo(pairs.dtype).max)]),
        )

    def of(self, side: str, pairs: Tensor, dtype: torch.dtype, targets: Tensor | None = None) -> Weighed:
        """Return the evidence of one side of pairs.

        Args:
            side: "head" or "tail": the relations r < R in which the entity is the head, and r + R in which it
                is the tail. Each has the weight log(1 + c), where c is the number of its triples. "pair": the
                relations r from head to tail, and r + R from tail to head, with the weight 1.
            pairs: int64 (B, 2) of (head, tail); N stands for an entity that is not in the graph.
            dtype: dtype of the weights.
            targets: int64 (B,); the pairs are triples of the graph with these relations, and each triple is
                excluded from the evidence of its pair. None excludes nothing.
        """
        (heads, tails), own = pairs.unbind(1), self._own(pairs, targets)
        if side == "head":
            return self._of_entities(heads, dtype, own[:2])
        if side == "tail":
            return self._of_entities(tails, dtype, own[2:])
        key = heads * (self.num_entities + 1) + tails
        place = torch.searchsorted(self.pairs, key)
        place = torch.where(self.pairs.index_select(0, place) == key, place, len(self.pairs) - 1)
        place, row, bounds, none = self.by_pair.entries(place)
        relation = self.by_pair.relation.index_select(0, place)
        left = torch.ones_like(relation, dtype=torch.bool) if none is None else ~none
        for target in own[:2]:
            left &= relation != target.index_select(0, row)
        return Weighed(relation, left.to(dtype), bounds)

    def _own(self, pairs: Tensor, targets: Tensor | None) -> tuple[Tensor, ...]:
        """Return the relations that a target triple gives its head (two) and its tail (two); -1 for none."""
        if targets is None:
            return ()
        loops, inverse = pairs[:, 0] == pairs[:, 1], targets + self.num_relations
        # an entity linked to itself has the triple in both directions
        return targets, torch.where(loops, inverse, -1), inverse, torch.where(loops, targets, -1)

    def _of_entities(self, entities: Tensor, dtype: torch.dtype, own: tuple[Tensor, ...]) -> Weighed:
        place, row, bounds, none = self.by_entity.entries(entities)
        relation, count = self.by_entity.relation.index_select(0, place), self.count.index_select(0, place)
        for target in own:
            count = count - (relation == target.index_select(0, row)).long()
        weight = count.to(dtype).log1p_()
        return Weighed(relation, weight if none is None else weight.masked_fill_(none, 0), bounds)

    @property
    def triples(self) -> tuple[Tensor, Tensor, Tensor]:
        """The distinct context triples (h, r, t), int64 (D,) each, sorted by head, then tail."""
        n = self.num_entities
        pair = self.pairs[:-1].repeat_interleave(self.by_pair.length[:-1])
        return pair // (n + 1), self.by_pair.relation, pair % (n + 1)

    def profiles_times(self, table: Tensor, mask: Tensor | None = None) -> Tensor:
        """Multiply the profiles of all entities, as a sparse matrix (N, 2R), by a table.

        Args:
            table: (2R, d); it gets a gradient.
            mask: bool (T,), the graph's triples to mask together with their inverses, or None.

        Returns:
            (N, d).
        """
        weight = self._counts(mask).to(table.dtype).log1p_()
        sums: Tensor = _ProfileProduct.apply(table, weight, self)  # type: ignore[no-untyped-call]
        return sums

    def _counts(self, mask: Tensor | None) -> Tensor:
        if mask is None:
            return self.count
        # integer sums are exact in any order, so atomics on a GPU do no harm
        live = torch.zeros_like(self.entry).index_add_(0, self.distinct, (~mask).long().repeat(2))
        return torch.zeros_like(self.count).index_add_(0, self.entry, live.clamp_(max=1))

    @cached_property
    @torch.inference_mode(False)
    def by_relation(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The entries by relation, cut into pieces: order, pieces, piece bounds, relation bounds."""
        relations = 2 * self.num_relations
        order = torch.argsort(self.by_entity.relation, stable=True)
        bounds = bounds_of(self.by_entity.relation, relations)
        pieces = -(-bounds.diff() // _PIECE)
        of_relation = functional.pad(pieces.cumsum(0), (1, 0))
        piece = torch.arange(int(of_relation[-1]), device=order.device)
        relation = torch.arange(relations, device=order.device).repeat_interleave(pieces)
        first = bounds[relation] + _PIECE * (piece - of_relation[relation])
        return order, piece, torch.cat([first, bounds[-1:]]), of_relation


class _ProfileProduct(torch.autograd.Function):
    """Gather over entities in the forward, over relations in the backward, without atomics or sorting."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, weight: Tensor, found: GraphEvidence) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.found = found
        lists = found.by_entity
        return sum_rows(table, lists.relation, lists.first, weight)  # the last list has no entity

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        (weight,) = ctx.saved_tensors
        order, piece, bounds, of_relation = ctx.found.by_relation
        index = ctx.found.entity.index_select(0, order)
        parts = sum_rows(g, index, bounds, weight.index_select(0, order))
        return sum_rows(parts, piece, of_relation, torch.ones_like(parts[:, 0])), None, None


_FOUND: "WeakKeyDictionary[ContextGraph, GraphEvidence]" = WeakKeyDictionary()


def evidence_of(graph: ContextGraph) -> GraphEvidence:
    """Return the evidence of a graph, cached as long as the graph exists."""
    if graph not in _FOUND:
        with torch.inference_mode(False):  # training uses it too
            _FOUND[graph] = GraphEvidence.of_graph(graph)
    return _FOUND[graph]
