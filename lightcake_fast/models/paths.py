"""Paths of two triples that join a pair, counted by their two relations."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from lightcake_fast.models.neighbours import bounds_of, sum_rows

Ids = NDArray[np.int64]


class PathKinds(NamedTuple):
    """The kinds of paths of B pairs, list after list: a triple leads from the head, another to the tail.

    Attributes:
        relation: int32 (K,), of the first triple of each kind; r + R where it leads backwards.
        second: int32 (K,), of the second, likewise.
        weight: (K,), log(1 + c), c the paths of the kind.
        bounds: int64 (B + 1,), where each list begins and ends.
    """

    relation: Tensor
    second: Tensor
    weight: Tensor
    bounds: Tensor

    def times(self, first: Tensor, second: Tensor) -> Tensor:
        """The weighted sum of the products first[r] ∘ second[s] of each list's kinds (r, s), (B, d)."""
        rows = functional.embedding(self.relation, first) * functional.embedding(self.second, second)
        return sum_rows(rows, torch.arange(len(rows), device=rows.device), self.bounds, self.weight)

    def without(self, entry: int) -> "PathKinds":
        """The same with an entry that weighs nothing."""
        kept = torch.arange(len(self.weight), device=self.weight.device) != entry
        return self._replace(weight=self.weight * kept)


@dataclass(frozen=True, eq=False)
class GraphPaths:
    """The distinct context triples of a graph, an entity's side by side and sorted by their other end.

    A path leads through a third entity, so that no triple is a part of its own pair's paths.

    Attributes:
        num_relations: R.
        bounds: int64 (N + 2,), the triples of each entity; one that is not in the graph, N, has none.
        other: int64 (D,), the other end of each.
        relation: int64 (D,), which leads there.
    """

    num_relations: int
    bounds: Ids
    other: Ids
    relation: Ids

    @classmethod
    def of(
        cls, triples: tuple[Tensor, Tensor, Tensor], num_entities: int, num_relations: int
    ) -> "GraphPaths":
        """Take the distinct context triples (h, r, t), int64 (D,) each, sorted by head, then tail."""
        head, relation, tail = (ids.cpu() for ids in triples)
        bounds = bounds_of(head, num_entities + 1).numpy()
        return cls(num_relations, bounds, tail.numpy(), relation.numpy())

    def of_pairs(self, pairs: Tensor, dtype: torch.dtype) -> PathKinds:
        """The kinds of paths of pairs.

        Args:
            pairs: int64 (B, 2) of (head, tail); N stands for an entity that is not in the graph.
            dtype: of the weights.
        """
        return self.counted(pairs).to(pairs.device).weighed(dtype)

    def counted(self, pairs: Tensor) -> "PathCounts":
        """What `of_pairs` weighs, in CPU memory."""
        heads, tails = (np.ascontiguousarray(ids) for ids in pairs.cpu().numpy().T)
        relations = 2 * self.num_relations
        kinds, numbers, bounds = _count(heads, tails, self.bounds, self.other, self.relation, relations)
        first, second = (torch.from_numpy(ids.astype(np.int32)) for ids in np.divmod(kinds, relations))
        return PathCounts(first, second, torch.from_numpy(numbers), torch.from_numpy(bounds))


class PathCounts(NamedTuple):
    """``PathKinds`` before they are weighed.

    Attributes:
        relation: as there.
        second: as there.
        number: int32 (K,), c.
        bounds: as there.
    """

    relation: Tensor
    second: Tensor
    number: Tensor
    bounds: Tensor

    def to(self, device: torch.device) -> "PathCounts":
        """The same on a device."""
        return PathCounts(*(tensor.to(device) for tensor in self))

    def of(self, lists: Tensor) -> "PathCounts":
        """The lists with these numbers, int64 (B,)."""
        start, end = (self.bounds.index_select(0, lists + side) for side in (0, 1))
        bounds = functional.pad((end - start).cumsum(0), (1, 0))
        place = (start - bounds[:-1]).repeat_interleave(end - start)
        place += torch.arange(len(place), device=place.device)
        relation, second, number = (column.index_select(0, place) for column in self[:3])
        return PathCounts(relation, second, number, bounds)

    def weighed(self, dtype: torch.dtype) -> PathKinds:
        """With the weights log(1 + c)."""
        return PathKinds(self.relation, self.second, self.number.to(dtype).log1p_(), self.bounds)


@numba.njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _count(
    heads: Ids, tails: Ids, bounds: Ids, other: Ids, relation: Ids, relations: int
) -> tuple[Ids, NDArray[np.int32], Ids]:
    """The kinds of paths of each pair in order, first relation x 2R + second, their numbers, and bounds."""
    ends = np.zeros(len(heads) + 1, np.int64)
    kinds, numbers = np.empty(2 * len(heads) + 16, np.int64), np.empty(2 * len(heads) + 16, np.int32)
    found, left = np.empty(1024, np.int64), 0
    for n in range(len(heads)):
        size, found = _find(heads[n], tails[n], bounds, other, relation, relations, found)
        while left + size > len(kinds):
            kinds, numbers = _doubled(kinds), _doubled(numbers)
        first = left
        for kind in np.sort(found[:size]):
            if left > first and kinds[left - 1] == kind:
                numbers[left - 1] += 1
            else:
                kinds[left], numbers[left] = kind, 1
                left += 1
        ends[n + 1] = left
    return kinds[:left].copy(), numbers[:left].copy(), ends


@numba.njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _find(
    head: int, tail: int, bounds: Ids, other: Ids, relation: Ids, relations: int, found: Ids
) -> tuple[int, Ids]:
    """How many paths join a pair, and the kind of each in a buffer: that given, or a longer one."""
    half, size = relations // 2, 0
    a, end_a = bounds[head], bounds[head + 1]
    b, end_b = bounds[tail], bounds[tail + 1]
    while a < end_a and b < end_b:
        middle = other[a]
        if middle < other[b]:
            a = _seek(other, a, end_a, other[b])
            continue
        if other[b] < middle:
            b = _seek(other, b, end_b, middle)
            continue
        start_b = b
        while b < end_b and other[b] == middle:
            b += 1
        while a < end_a and other[a] == middle:
            while size + b - start_b > len(found):
                found = _doubled(found)
            for back in relation[start_b:b]:  # which leads from the tail
                if middle != head and middle != tail:
                    found[size] = relation[a] * relations + (back - half if back >= half else back + half)
                    size += 1
            a += 1
    return size, found


@numba.njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _doubled(buffer: NDArray[Any]) -> NDArray[Any]:
    longer = np.empty(2 * len(buffer), buffer.dtype)
    longer[: len(buffer)] = buffer
    return longer


@numba.njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _seek(other: Ids, place: int, end: int, wanted: int) -> int:
    """The first place from this one on, below the end, of an entity that is not below the wanted one."""
    step = 1
    while place + step < end and other[place + step] < wanted:
        place += step
        step *= 2
    end = min(place + step, end)
    while place < end:
        middle = (place + end) // 2
        if other[middle] < wanted:
            place = middle + 1
        else:
            end = middle
    return place
