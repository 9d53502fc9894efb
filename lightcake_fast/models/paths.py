"""Paths of two triples that join a pair, counted by their two relations."""

import bisect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from lightcake_fast.compiled import run_compiled
from lightcake_fast.models import blocks
from lightcake_fast.models.neighbours import bounds_of, entries_of, sum_rows

Ids = NDArray[np.int64]
_TOGETHER = 2**14  # pairs between which Ctrl-C is heard


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
        """The weighted sum of the products first[r] ∘ second[s] of each list's kinds (r, s), (B, d).

        Rows of more than ``blocks.BLOCK`` numbers are made in blocks of lists, again for the gradient.
        """
        size = blocks.block_size(first.shape[1])
        if len(self.relation) <= size:
            return self._times(first, second)
        parts = [blocks.computed_again(part._times, first, second) for part in self._split(size)]
        return torch.cat(parts)

    def _split(self, size: int) -> Iterator["PathKinds"]:
        """Blocks of whole lists, with at most so many entries if they have several lists."""
        bounds, start = self.bounds.tolist(), 0
        while start + 1 < len(bounds):
            end = max(start + 1, bisect.bisect_right(bounds, bounds[start] + size) - 1)
            relation, second, weight = (column[bounds[start] : bounds[end]] for column in self[:3])
            yield PathKinds(relation, second, weight, self.bounds[start : end + 1] - bounds[start])
            start = end

    def _times(self, first: Tensor, second: Tensor) -> Tensor:
        rows = functional.embedding(self.relation, first) * functional.embedding(self.second, second)
        return sum_rows(rows, torch.arange(len(rows), device=rows.device), self.bounds, self.weight)


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
        from lightcake_fast.models.path_search import count_paths  # Numba, of which other models have no need

        graph, relations = (self.bounds, self.other, self.relation), 2 * self.num_relations
        parts = []
        for some in torch.split(pairs.cpu(), _TOGETHER):
            heads, tails = (ids.contiguous().numpy() for ids in some.unbind(1))
            parts.append(run_compiled(count_paths, heads, tails, *graph, relations))
        kinds, numbers, sizes = (np.concatenate(column) for column in zip(*parts, strict=True))
        bounds = np.concatenate([[0], sizes.cumsum()])
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
        place, _, bounds = entries_of(start, end - start)
        relation, second, number = (column.index_select(0, place) for column in self[:3])
        return PathCounts(relation, second, number, bounds)

    def weighed(self, dtype: torch.dtype) -> PathKinds:
        """With the weights log(1 + c)."""
        return PathKinds(self.relation, self.second, self.number.to(dtype).log1p_(), self.bounds)
