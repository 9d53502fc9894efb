"""Paths of two triples that join a pair, counted by their two relations."""

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from lightcake_fast.compiled import run_compiled
from lightcake_fast.models import blocks
from lightcake_fast.models.neighbours import Ids, Lists, bounds_of, entries_of, sum_rows

Found = tuple[Ids, NDArray[np.int32], Ids]  # the result of `path_search.count_paths`
TOGETHER = 2**14  # pairs per call; Ctrl-C works between calls


class PathKinds(NamedTuple):
    """The kinds of paths of B pairs, concatenated: one triple starts at the head, one ends at the tail.

    Attributes:
        relation: int32 (K,), the relation of the first triple of each kind; r + R if it leads backwards.
        second: int32 (K,), the relation of the second triple; r + R if it leads backwards.
        weight: (K,), log(1 + c), where c is the number of paths of this kind.
        bounds: int64 (B + 1,), start and end of each list.
    """

    relation: Tensor
    second: Tensor
    weight: Tensor
    bounds: Tensor

    def times(self, first: Tensor, second: Tensor) -> Tensor:
        """Return the weighted sum of the products first[r] ∘ second[s] over each list's kinds (r, s), (B, d).

        Above ``blocks.BLOCK`` numbers, rows are computed in blocks of lists, and again for the gradient.
        """
        size = blocks.block_size(first.shape[1])
        if len(self.relation) <= size:
            return self._times(first, second)
        parts = [blocks.computed_again(part._times, first, second) for part in self._split(size)]
        return torch.cat(parts)

    def _split(self, size: int) -> Iterator["PathKinds"]:
        """Split into blocks of whole lists. A block of several lists has at most ``size`` entries."""
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
    """A graph's triples, prepared for the search for paths.

    A path leads through a third entity. So a triple is never part of a path of its pair.

    Attributes:
        num_relations: R.
        lists: the lists of all entities; the entity N, which is not in the graph, has an empty list.
    """

    num_relations: int
    lists: Lists

    @classmethod
    def of(
        cls, triples: tuple[Tensor, Tensor, Tensor], num_entities: int, num_relations: int
    ) -> "GraphPaths":
        """Build from the distinct context triples (h, r, t), int64 (D,) each, sorted by head, then tail."""
        head, relation, tail = (ids.cpu() for ids in triples)
        bounds = bounds_of(head, num_entities + 1).numpy()
        return cls(num_relations, Lists(bounds, tail.numpy(), relation.numpy()))

    def of_pairs(self, pairs: Tensor, dtype: torch.dtype) -> PathKinds:
        """Return the kinds of paths of pairs.

        Args:
            pairs: int64 (B, 2) of (head, tail); N stands for an entity that is not in the graph.
            dtype: dtype of the weights.
        """
        return self.counted(pairs).to(pairs.device).weighed(dtype)

    def counted(self, pairs: Tensor) -> "PathCounts":
        """Return the counts for `of_pairs`, in CPU memory."""
        parts = []
        for some in torch.split(pairs.cpu(), TOGETHER):
            heads, tails = (ids.contiguous().numpy() for ids in some.unbind(1))
            parts.append(
                find_paths(heads, tails, (heads, self.lists), (tails, self.lists), self.num_relations)
            )
        return PathCounts.joined(parts, self.num_relations)


def find_paths(
    heads: Ids, tails: Ids, of_heads: tuple[Ids, Lists], of_tails: tuple[Ids, Lists], num_relations: int
) -> Found:
    """Find the kinds of paths of B pairs, in CPU memory, for ``PathCounts.joined``.

    Args:
        heads: int64 (B,), with the ids of the lists.
        tails: int64 (B,), with the ids of the lists.
        of_heads: the list number of each head, int64 (B,), and these lists.
        of_tails: the same for the tails.
        num_relations: R.
    """
    from lightcake_fast.models.path_search import count_paths  # imports Numba, which other models do not need

    found: Found = run_compiled(count_paths, heads, tails, *of_heads, *of_tails, 2 * num_relations)
    return found


class PathCounts(NamedTuple):
    """``PathKinds`` with counts instead of weights.

    Attributes:
        relation: as in ``PathKinds``.
        second: as in ``PathKinds``.
        number: int32 (K,), c.
        bounds: as in ``PathKinds``.
    """

    relation: Tensor
    second: Tensor
    number: Tensor
    bounds: Tensor

    @classmethod
    def joined(cls, parts: Sequence[Found], num_relations: int) -> "PathCounts":
        """Concatenate the results for several parts of the pairs."""
        kinds, numbers, sizes = (np.concatenate(column) for column in zip(*parts, strict=True))
        bounds = np.concatenate([[0], sizes.cumsum()])
        first, second = (
            torch.from_numpy(ids.astype(np.int32)) for ids in np.divmod(kinds, 2 * num_relations)
        )
        return cls(first, second, torch.from_numpy(numbers), torch.from_numpy(bounds))

    def to(self, device: torch.device) -> "PathCounts":
        """Return the same counts on a device."""
        return PathCounts(*(tensor.to(device) for tensor in self))

    def of(self, lists: Tensor) -> "PathCounts":
        """Return the lists with these numbers, int64 (B,)."""
        start, end = (self.bounds.index_select(0, lists + side) for side in (0, 1))
        place, _, bounds = entries_of(start, end - start)
        relation, second, number = (column.index_select(0, place) for column in self[:3])
        return PathCounts(relation, second, number, bounds)

    def weighed(self, dtype: torch.dtype) -> PathKinds:
        """Return the kinds with the weights log(1 + c)."""
        return PathKinds(self.relation, self.second, self.number.to(dtype).log1p_(), self.bounds)
