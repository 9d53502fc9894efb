"""Paths of two triples between entities of different ranks: owners of tails send the lists of tails."""

import numpy as np
import torch
from torch import Tensor

from lightcake_fast.models.neighbours import Lists, entries_of
from lightcake_fast.models.paths import TOGETHER, Found, PathCounts, find_paths
from lightcake_fast.sharding.shard import HeldTriples, Ids, Layout
from lightcake_fast.sharding.world import World


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
        self._layout, self._world = layout, world
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

    def counted(self, pairs: Ids, owners: Ids) -> PathCounts:
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
        return PathCounts.joined(parts, self._num_relations)

    def _counted(self, pairs: Ids, owners: Ids) -> Found:
        keys, place = np.unique(owners * self._num_entities + pairs[:, 1], return_inverse=True)
        owner, wanted = np.divmod(keys, self._num_entities)
        of_tails = self._lists_of(wanted, np.bincount(owner, minlength=self._layout.ranks))
        heads, tails = (ids.copy() for ids in pairs.T)
        rows = np.searchsorted(self._layout.rows, heads)
        return find_paths(heads, tails, (rows, self._own), (place, of_tails), self._num_relations)

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
