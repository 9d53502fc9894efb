"""A split cut into groups, to see where a model is right."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lightcake_fast.data import KnowledgeGraph


@dataclass(frozen=True, eq=False)
class Group:
    """Triples of a split that belong together.

    Attributes:
        name: What they share.
        rows: int64 `[K]`, their places in the split.
    """

    name: str
    rows: NDArray[np.int64]


def by_relation(graph: KnowledgeGraph, split: str) -> list[Group]:
    """A group for each relation of the split, the most frequent first."""
    relations = graph.split(split)[:, 1]
    counts = np.bincount(relations, minlength=graph.num_relations)
    order = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    return [Group(graph.relations[r], np.flatnonzero(relations == r)) for r in order.tolist()]


def by_degree(graph: KnowledgeGraph, split: str) -> list[Group]:
    """A group for each range of degrees: 0, 1, 2-3, 4-7 and so on.

    A triple's degree is the smaller of those of its head and tail: the training triples of the entity that
    the model knows less of.
    """
    heads, tails = graph.train[:, 0], graph.train[:, 2]
    ends = np.concatenate([heads, tails[tails != heads]])
    degrees = np.bincount(ends, minlength=graph.num_entities)
    smaller = degrees[graph.split(split)[:, [0, 2]]].min(axis=1)
    bins = np.frexp(smaller)[1]  # the number of binary digits
    return [Group(_range(n), np.flatnonzero(bins == n)) for n in np.unique(bins).tolist()]


def _range(digits: int) -> str:
    """The numbers of so many binary digits."""
    low, high = (1 << digits) >> 1, (1 << digits) - 1
    return str(low) if low == high else f"{low}-{high}"


GROUPINGS = {"relation": by_relation, "degree": by_degree}
