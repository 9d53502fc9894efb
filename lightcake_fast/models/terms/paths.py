"""Paths of two triples that join a pair, counted by their two relations."""

import bisect
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from lightcake_fast.compiled import run_compiled
from lightcake_fast.graph import ContextGraph
from lightcake_fast.models import blocks
from lightcake_fast.models.evidence import evidence_of
from lightcake_fast.models.neighbours import Ids, Lists, bounds_of, entries_of, sum_rows
from lightcake_fast.models.terms.term import HeldPairs, Pairs, Term
from lightcake_fast.models.weights import xavier
from lightcake_fast.sharding.layer import Shard
from lightcake_fast.sharding.shard import HeldTriples, Layout
from lightcake_fast.sharding.world import World

Found = tuple[Ids, NDArray[np.int32], Ids]  # the result of `count_paths`
TOGETHER = 2**14  # pairs per call; Ctrl-C works between calls


class PathKinds(NamedTuple):
    """The kinds of paths of B pairs, concatenated: one triple starts at the head, one ends at the tail.

    Attributes:
        relation: int32 (K,), the relation of the first triple of each kind; r + R if it leads backwards.
        second: int32 (K,), the relation of the second triple; r + R if it leads backwards.
        weight: (K,), log(1 + c), where c is the number of paths of this kind; int32, c, until ``weighed``.
        bounds: int64 (B + 1,), start and end of each list.
    """

    relation: Tensor
    second: Tensor
    weight: Tensor
    bounds: Tensor

    @classmethod
    def joined(cls, parts: Sequence[Found], num_relations: int) -> "PathKinds":
        """Concatenate the counts of several parts of the pairs."""
        kinds, numbers, sizes = (np.concatenate(column) for column in zip(*parts, strict=True))
        relations = (ids.astype(np.int32) for ids in np.divmod(kinds, 2 * num_relations))
        return cls(*map(torch.from_numpy, (*relations, numbers, np.concatenate([[0], sizes.cumsum()]))))

    def to(self, device: torch.device) -> "PathKinds":
        """Return the same kinds on a device."""
        return PathKinds(*(tensor.to(device) for tensor in self))

    def of(self, lists: Tensor) -> "PathKinds":
        """Return the lists with these numbers, int64 (B,)."""
        start, end = (self.bounds.index_select(0, lists + side) for side in (0, 1))
        place, _, bounds = entries_of(start, end - start)
        relation, second, weight = (column.index_select(0, place) for column in self[:3])
        return PathKinds(relation, second, weight, bounds)

    def weighed(self, dtype: torch.dtype) -> "PathKinds":
        """Return the kinds with weights instead of counts."""
        return self._replace(weight=self.weight.to(dtype).log1p_())

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


class Paths(Term):
    """Adds the paths of two triples that join a pair to the score of relation r: v . e_r.

    v = sum over kinds (p, q) of log(1 + c_pq) A_p ∘ B_q. c_pq is the number of entities that relation p
    connects to the head and relation q to the tail. Inverses count as relations; head and tail themselves are
    excluded. A starts at zero and B near one. So the initial term is zero, and every kind has a gradient.

    Args:
        num_relations: R, raw relations.
        dim: the width of a relation's row.
        made: as in ``Term``.

    Shapes:
        ``of_first`` and ``of_second`` (2R, d).
    """

    fixed_shapes = False  # the lengths of the lists differ too much for padding

    def __init__(self, num_relations: int, dim: int, **made: Any) -> None:
        super().__init__()
        second = xavier(2 * num_relations, dim, **made)
        self.of_first = nn.Parameter(torch.zeros_like(second))
        self.of_second = nn.Parameter(second.detach() + 1)

    def find(self, side: str, pairs: Pairs) -> PathKinds:
        """See ``Term``. The paths of training triples are counted only once per graph."""
        if pairs.held is not None:
            counts = _counted_on_ranks(pairs.held, training=pairs.targets is not None)
        elif pairs.numbers is not None:
            counts = _counted_once(pairs.graph, pairs.numbers)
        else:
            counts = counted(pairs.graph, pairs.ids)
        return counts.to(pairs.ids.device).weighed(pairs.dtype)

    def of(self, side: str, found: PathKinds) -> Tensor:
        """See ``Term``: the rows v."""
        return found.times(self.of_first, self.of_second)


def _search(
    heads: Ids, tails: Ids, of_heads: tuple[Ids, Lists], of_tails: tuple[Ids, Lists], num_relations: int
) -> Found:
    """Search for the paths of B pairs, in CPU memory, given the list number of each entity and the lists."""
    from lightcake_fast.models.terms.path_search import count_paths  # imports Numba, which is slow

    found: Found = run_compiled(count_paths, heads, tails, *of_heads, *of_tails, 2 * num_relations)
    return found


# the triples of each entity in a graph; the entity N, which is not in the graph, has an empty list
_LISTS: "WeakKeyDictionary[ContextGraph, Lists]" = WeakKeyDictionary()
# path counts of the distinct pairs in a graph's triples, and the pair number of each triple
_COUNTS: "WeakKeyDictionary[ContextGraph, tuple[PathKinds, Tensor]]" = WeakKeyDictionary()
_SHARED: "WeakKeyDictionary[Shard, SharedPaths]" = WeakKeyDictionary()


def counted(graph: ContextGraph, pairs: Tensor) -> PathKinds:
    """Count the paths of pairs, int64 (B, 2), in CPU memory.

    A path leads through a third entity. So a triple is never part of a path of its pair.
    """
    if graph not in _LISTS:
        head, relation, tail = (ids.cpu() for ids in evidence_of(graph).triples)
        bounds = bounds_of(head, graph.num_entities + 1)
        _LISTS[graph] = Lists(*(ids.numpy() for ids in (bounds, tail, relation)))
    lists, parts = _LISTS[graph], []
    for some in torch.split(pairs.cpu(), TOGETHER):
        heads, tails = (ids.contiguous().numpy() for ids in some.unbind(1))
        parts.append(_search(heads, tails, (heads, lists), (tails, lists), graph.num_relations))
    return PathKinds.joined(parts, graph.num_relations)


def _counted_once(graph: ContextGraph, numbers: Tensor) -> PathKinds:
    """Count the paths of a graph's triples, int64 (B,). The first call counts the paths of all triples."""
    if graph not in _COUNTS:
        with torch.inference_mode(False):  # training uses them
            head, _, tail = graph.triples.unbind(1)
            n = graph.num_entities
            pairs, pair = torch.unique(head * n + tail, return_inverse=True)
            counts = counted(graph, torch.stack([pairs // n, pairs % n], 1))
            _COUNTS[graph] = counts.to(graph.device), pair
    counts, pair = _COUNTS[graph]
    return counts.of(pair.index_select(0, numbers))


def _counted_on_ranks(pairs: HeldPairs, training: bool) -> PathKinds:
    """Count the paths of pairs with heads on this rank; all ranks must call it."""
    shard, held = pairs.shard, pairs.held
    if shard not in _SHARED:
        relations = shard.graph.num_relations
        _SHARED[shard] = SharedPaths(shard.held, shard.layout, pairs.num_entities, relations, shard.world)
    if training:
        return _SHARED[shard].of_training(pairs.places)
    return _SHARED[shard].counted(held.triples[pairs.places][:, ::2], held.owners[pairs.places, 1])


class SharedPaths:
    """Finds the paths of pairs with heads on this rank.

    A path begins with a triple of the head and ends with a triple of the tail. The owner of the tail has the
    list of its triples. All ranks must call the methods.

    Args:
        train: The held training triples.
        layout: The rank's rows.
        num_entities: N.
        num_relations: R.
        world: All ranks.
    """

    def __init__(
        self, train: HeldTriples, layout: Layout, num_entities: int, num_relations: int, world: World
    ) -> None:
        self._train, self._layout, self._world = train, layout, world
        self._in_training: tuple[PathKinds, Ids] | None = None
        self._num_entities, self._num_relations = num_entities, num_relations
        (head, relation, tail), (mine, its) = train.triples.T, (train.owners == layout.rank).T
        other = np.concatenate([tail[mine], head[its]])
        relation = np.concatenate([relation[mine], relation[its] + num_relations])
        row = np.searchsorted(layout.rows, np.concatenate([head[mine], tail[its]]))
        order = np.lexsort((relation, other, row))
        triples = np.stack([row, other, relation])[:, order]
        first = np.ones(len(order), bool)
        first[1:] = (triples[:, 1:] != triples[:, :-1]).any(0)
        row, other, relation = triples[:, first]
        bounds = np.concatenate([[0], np.bincount(row, minlength=len(layout.rows)).cumsum()])
        self._own = Lists(bounds, other, relation)

    def counted(self, pairs: Ids, owners: Ids) -> PathKinds:
        """Count the paths of pairs by their two relations, in CPU memory.

        Args:
            pairs: int64 (B, 2), (head, tail) with the ids of the data set; this rank owns the heads.
            owners: int64 (B,), the ranks that own the tails.
        """
        (rounds,) = self._world.agree(max(1, -(-len(pairs) // TOGETHER)))
        parts = []
        for n in range(rounds):
            some = slice(n * TOGETHER, (n + 1) * TOGETHER)
            parts.append(self._counted(pairs[some], owners[some]))
        return PathKinds.joined(parts, self._num_relations)

    def of_training(self, places: Ids) -> PathKinds:
        """Count the paths of training triples with own heads, int64 (B,), once for all distinct pairs."""
        if self._in_training is None:
            own = np.flatnonzero(self._train.owners[:, 0] == self._layout.rank)
            heads, _, tails = self._train.triples[own].T
            keys, first, number = np.unique(
                heads * self._num_entities + tails, return_index=True, return_inverse=True
            )
            pair = np.zeros(len(self._train), np.int64)
            pair[own] = number
            pairs = np.stack(np.divmod(keys, self._num_entities), 1)
            self._in_training = self.counted(pairs, self._train.owners[own[first], 1]), pair
        counts, pair = self._in_training
        return counts.of(torch.from_numpy(pair[places]))

    def _counted(self, pairs: Ids, owners: Ids) -> Found:
        keys, place = np.unique(owners * self._num_entities + pairs[:, 1], return_inverse=True)
        owner, wanted = np.divmod(keys, self._num_entities)
        of_tails = self._lists_of(wanted, np.bincount(owner, minlength=self._layout.ranks))
        heads, tails = (ids.copy() for ids in pairs.T)
        rows = np.searchsorted(self._layout.rows, heads)
        return _search(heads, tails, (rows, self._own), (place, of_tails), self._num_relations)

    def _lists_of(self, entities: Ids, counts: Ids) -> Lists:
        """Fetch the lists of entities, which are sorted by owner, with ``counts`` entities per rank."""
        exchange, one = self._world.exchange, [1] * self._layout.ranks
        wanted = counts.tolist()
        asked = exchange(torch.from_numpy(counts), one, one).tolist()
        theirs = exchange(torch.from_numpy(entities), wanted, asked).numpy()
        rows = np.searchsorted(self._layout.rows, theirs)
        first, end = (torch.from_numpy(self._own.bounds[rows + side]) for side in (0, 1))
        length = end - first
        place, *_ = entries_of(first, length)
        lengths = exchange(length, asked, wanted)
        sent, received = _sums(length, asked), _sums(lengths, wanted)
        other, relation = (
            exchange(torch.from_numpy(ids).index_select(0, place), sent, received).numpy()
            for ids in self._own[1:]
        )
        return Lists(np.concatenate([[0], lengths.numpy().cumsum()]), other, relation)


def _sums(numbers: Tensor, sizes: list[int]) -> list[int]:
    """Return the sum of each part of the numbers."""
    return [int(part.sum()) for part in torch.split(numbers, sizes)]
