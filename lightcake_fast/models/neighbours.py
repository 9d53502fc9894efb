"""A graph's context triples in the orders in which the baselines sum over neighbours, made once a graph."""

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

# numbers gathered: with fewer, waking more of PyTorch's threads takes longer than they save
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
    """The entries of ``Neighbours``, those of a head side by side.

    Attributes:
        triple: int64 (E,), the place of each entry in ``ContextGraph.context_triples``.
        head: int64 (E,), of each entry; likewise relation and tail.
        inverse: int64 (E,), where in this order the inverse of each entry is.
        place: int64 (E,), where in this order each entry of ``Neighbours`` is.
        relations: segments of each head's relations.
        tails: segments of each head's tails.
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
    """The E = 2T context triples sorted by relation, then head: a group holds those of one relation and head.

    Attributes:
        triple: int64 (E,), the place of each entry in ``ContextGraph.context_triples``.
        inverse: int64 (E,), the entry of each entry's inverse triple.
        relation: int64 (E,), of each entry.
        tail: int64 (E,), of each entry.
        group: int64 (E,), of each entry.
        group_head: int64 (G,), the head of each group.
        by_head: int64 (E,), the entries sorted by head.
        head_bounds: int64 (N + 1,), the entries of each head in that order.
        group_bounds: int64 (G + 1,), the entries of each group.
        relation_groups: int64 (2R + 1,), the groups of each relation.
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
        """The entries in the order ``by_head``."""
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
        """Where each relation's entries begin and end, int64 (2R + 1,)."""
        return bounds_of(self.relation, len(self.relation_groups) - 1)

    def mean_weights(self, mask: Tensor | None, dtype: torch.dtype) -> Tensor:
        """1 / c of each entry, (E,): c is its group's number of entries that the mask leaves.

        Args:
            mask: bool (T,), triples to leave out with their inverses: they weigh 0; or None.
            dtype: of the weights.
        """
        live, count = self._left(mask)
        return live.to(dtype) / count.clamp_min(1).index_select(0, self.group).to(dtype)

    def direction_shares(self, mask: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """1 / c of each entry, (E,), and its sum over each group, (G,).

        c is the number of entries of the entry's head that the mask leaves, inverses and others apart;
        arguments as in ``mean_weights``.
        """
        live, count = self._left(mask)
        place, sides = self._side_of_head, 2 * (len(self.head_bounds) - 1)
        # sums of whole numbers are exact in any order, also where a GPU adds them as they come
        of_head = place.new_zeros(sides).index_add_(0, place, count).clamp_min_(1)
        share = 1 / of_head.index_select(0, place).to(dtype)
        return live * share.index_select(0, self.group), count * share

    @cached_property
    @torch.inference_mode(False)
    def _side_of_head(self) -> Tensor:
        """The head of each group, int64 (G,), plus N where its relation is an inverse."""
        groups = torch.arange(len(self.group_head), device=self.group_head.device)
        inverse = groups >= self.relation_groups[len(self.relation_groups) // 2]
        return self.group_head + inverse * (len(self.head_bounds) - 1)

    def _left(self, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """1 for each entry that the mask leaves, else 0, int64 (E,), and their numbers by group, (G,)."""
        live = torch.ones_like(self.tail) if mask is None else (~mask).long().repeat(2)[self.triple]
        return live, torch.zeros_like(self.group_head).index_add_(0, self.group, live)


def sum_rows(rows: Tensor, index: Tensor, bounds: Tensor, weights: Tensor) -> Tensor:
    """Weighted sums of rows (N, d) over segments, (M, d), without a tensor of a row for each entry.

    Args:
        rows: (N, d).
        index: int64 (E,), the row of each entry.
        bounds: int64 (M + 1,), the entries of each segment.
        weights: (E,), in the rows' type.
    """
    sums: Tensor = functional.embedding_bag(
        index, rows, bounds, mode="sum", per_sample_weights=weights, include_last_offset=True
    )
    return sums


@contextmanager
def threads_for(entries: slice, width: int) -> Iterator[None]:
    """All of PyTorch's threads for work on many entries' rows, in a `with` block; this one alone for few."""
    threads = torch.get_num_threads()
    if (entries.stop - entries.start) * width < WORTH_A_THREAD:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


_FOUND: "WeakKeyDictionary[ContextGraph, Neighbours]" = WeakKeyDictionary()


def neighbours(graph: ContextGraph) -> Neighbours:
    """The orders of a graph, kept as long as it lives."""
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
    """Where each of ``count`` ids begins and ends in a sorted list of them, (count + 1,)."""
    return functional.pad(torch.bincount(ids, minlength=count).cumsum(0), (1, 0))


def entries_of(first: Tensor, length: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The places of the entries of B lists, int64 (K,), one list after another.

    Args:
        first: int64 (B,), the place of each list's first entry.
        length: int64 (B,), its entries.

    Returns:
        The places; the number of each entry's list, int64 (K,); and the bounds of the lists, (B + 1,).
    """
    bounds = functional.pad(length.cumsum(0), (1, 0))
    row = torch.arange(len(length), device=length.device).repeat_interleave(length)
    place = (first - bounds[:-1]).index_select(0, row) + torch.arange(len(row), device=row.device)
    return place, row, bounds
