"""A graph's context triples, sorted for the sums over neighbors in the baselines; sorted once per graph."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from lightcake_fast.graph import ContextGraph
from lightcake_fast.segments import Segments

# gathered numbers: below this, PyTorch's threads take longer to wake than they save
WORTH_A_THREAD = 2**21

Ids = NDArray[np.int64]


class Lists(NamedTuple):
    """The distinct context triples of M entities, concatenated, and sorted by other end per entity.

    Attributes:
        bounds: int64 (M + 1,), start and end of each entity's triples.
        other: int64 (D,), the other end of each triple.
        relation: int64 (D,), the relation to this other end.
    """

    bounds: Ids
    other: Ids
    relation: Ids


class HeadOrder(NamedTuple):
    """The entries of ``Neighbours``, sorted by head.

    Attributes:
        triple: int64 (E,), the place of each entry in ``ContextGraph.context_triples``.
        head: int64 (E,), the head of each entry.
        relation: int64 (E,), the relation of each entry.
        tail: int64 (E,), the tail of each entry.
        inverse: int64 (E,), position in this order of each entry's inverse.
        place: int64 (E,), position in this order of each entry of ``Neighbours``.
        relations: one segment per head, with its relations.
        tails: one segment per head, with its tails.
    """

    triple: Tensor
    head: Tensor
    relation: Tensor
    tail: Tensor
    inverse: Tensor
    place: Tensor
    relations: Segments
    tails: Segments


@dataclass(frozen=True, eq=False)
class Neighbours:
    """The E = 2T context triples, sorted by relation, then head. Each pair of relation and head is a group.

    Attributes:
        triple: int64 (E,), the place of each entry in ``ContextGraph.context_triples``.
        inverse: int64 (E,), the entry of each entry's inverse triple.
        relation: int64 (E,), the relation of each entry.
        tail: int64 (E,), the tail of each entry.
        group: int64 (E,), the group of each entry.
        group_head: int64 (G,), the head of each group.
        by_head: int64 (E,), the entries sorted by head.
        head_bounds: int64 (N + 1,), start and end of each head's entries in ``by_head``.
        group_bounds: int64 (G + 1,), start and end of each group's entries.
        relation_groups: int64 (2R + 1,), start and end of each relation's groups.
    """

    triple: Tensor
    inverse: Tensor
    relation: Tensor
    tail: Tensor
    group: Tensor
    group_head: Tensor
    by_head: Tensor
    head_bounds: Tensor
    group_bounds: Tensor
    relation_groups: Tensor

    @cached_property
    @torch.inference_mode(False)
    def in_head_order(self) -> HeadOrder:
        """The entries in the order of ``by_head``."""
        order = self.by_head
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order), device=order.device)
        head, relation, tail, inverse = (
            column.index_select(0, order)
            for column in (self.group_head[self.group], self.relation, self.tail, place[self.inverse])
        )
        return HeadOrder(
            triple=self.triple.index_select(0, order),
            head=head,
            relation=relation,
            tail=tail,
            inverse=inverse,
            place=place,
            relations=Segments.from_csr(self.head_bounds, relation, len(self.relation_groups) - 1),
            tails=Segments.from_csr(self.head_bounds, tail, len(self.head_bounds) - 1),
        )

    @cached_property
    @torch.inference_mode(False)
    def relation_bounds(self) -> Tensor:
        """Start and end of each relation's entries, int64 (2R + 1,)."""
        return bounds_of(self.relation, len(self.relation_groups) - 1)

    def mean_weights(self, mask: Tensor | None, dtype: torch.dtype) -> Tensor:
        """Return 1 / c of each entry, (E,), where c is the number of unmasked entries in its group.

        Args:
            mask: bool (T,), triples to leave out together with their inverses, or None. Their weight is 0.
            dtype: dtype of the weights.
        """
        live, count = self._left(mask)
        return live.to(dtype) / count.clamp_min(1).index_select(0, self.group).to(dtype)

    def direction_shares(self, mask: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return 1 / c of each entry, (E,), and its sum over each group, (G,).

        c is the number of unmasked entries with the entry's head and direction (original or inverse). The
        arguments are as in ``mean_weights``.
        """
        live, count = self._left(mask)
        place, sides = self._side_of_head, 2 * (len(self.head_bounds) - 1)
        # integer sums are exact in any order, also with atomic additions on a GPU
        of_head = place.new_zeros(sides).index_add_(0, place, count).clamp_min_(1)
        share = 1 / of_head.index_select(0, place).to(dtype)
        return live * share.index_select(0, self.group), count * share

    @cached_property
    @torch.inference_mode(False)
    def _side_of_head(self) -> Tensor:
        """The head of each group, int64 (G,), plus N if the relation is an inverse."""
        groups = torch.arange(len(self.group_head), device=self.group_head.device)
        inverse = groups >= self.relation_groups[len(self.relation_groups) // 2]
        return self.group_head + inverse * (len(self.head_bounds) - 1)

    def _left(self, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return 1 for each unmasked entry and 0 for the others, int64 (E,), and the sums by group, (G,)."""
        live = torch.ones_like(self.tail) if mask is None else (~mask).long().repeat(2)[self.triple]
        return live, torch.zeros_like(self.group_head).index_add_(0, self.group, live)


def sum_rows(rows: Tensor, index: Tensor, bounds: Tensor, weights: Tensor) -> Tensor:
    """Return weighted sums of rows (N, d) over segments, (M, d), without a tensor with one row per entry.

    Args:
        rows: (N, d).
        index: int64 (E,), the row of each entry.
        bounds: int64 (M + 1,), start and end of each segment's entries.
        weights: (E,), in the dtype of the rows.
    """
    sums: Tensor = functional.embedding_bag(
        index, rows, bounds, mode="sum", per_sample_weights=weights, include_last_offset=True
    )
    return sums


@contextmanager
def threads_for(entries: slice, width: int) -> Iterator[None]:
    """Use one thread in a `with` block for few numbers, and all of PyTorch's threads for many."""
    threads = torch.get_num_threads()
    if (entries.stop - entries.start) * width < WORTH_A_THREAD:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


_FOUND: "WeakKeyDictionary[ContextGraph, Neighbours]" = WeakKeyDictionary()


def neighbours(graph: ContextGraph) -> Neighbours:
    """Return the sorted context triples of a graph. They are cached until the graph is freed."""
    if graph not in _FOUND:
        _FOUND[graph] = _sorted(graph)
    return _FOUND[graph]


@torch.inference_mode(False)
def _sorted(graph: ContextGraph) -> Neighbours:
    head, relation, tail = graph.context_triples
    count, relations = len(head), 2 * graph.num_relations
    triple = torch.argsort(relation * graph.num_entities + head, stable=True)
    place = torch.empty_like(triple).index_copy_(0, triple, torch.arange(count, device=triple.device))
    head, relation, tail = (column.index_select(0, triple) for column in (head, relation, tail))
    key = relation * graph.num_entities + head
    group_key, group = torch.unique_consecutive(key, return_inverse=True)
    return Neighbours(
        triple=triple,
        inverse=place.index_select(0, (triple + graph.num_triples) % max(count, 1)),
        relation=relation,
        tail=tail,
        group=group,
        group_head=group_key % graph.num_entities,
        by_head=torch.argsort(head, stable=True),
        head_bounds=bounds_of(head, graph.num_entities),
        group_bounds=bounds_of(group, len(group_key)),
        relation_groups=bounds_of(group_key // graph.num_entities, relations),
    )


def bounds_of(ids: Tensor, count: int) -> Tensor:
    """Return start and end of each of ``count`` ids in a sorted list of ids, (count + 1,)."""
    return functional.pad(torch.bincount(ids, minlength=count).cumsum(0), (1, 0))


def entries_of(first: Tensor, length: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the positions of the entries of B lists, int64 (K,), one list after another.

    Args:
        first: int64 (B,), position of each list's first entry.
        length: int64 (B,), number of entries per list.

    Returns:
        The positions; the list of each entry, int64 (K,); and the bounds of the lists, (B + 1,).
    """
    bounds = functional.pad(length.cumsum(0), (1, 0))
    row = torch.arange(len(length), device=length.device).repeat_interleave(length)
    place = (first - bounds[:-1]).index_select(0, row) + torch.arange(len(row), device=row.device)
    return place, row, bounds
