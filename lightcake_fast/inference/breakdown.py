"""Groups of triples of a split, for a breakdown of the metrics."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lightcake_fast.data import KnowledgeGraph


@dataclass(frozen=True, eq=False)
class Group:
    """A group of triples of a split.

    Attributes:
        name: Name of the group.
        rows: int64 `[K]`, row numbers in the split.
    """

    name: str
    rows: NDArray[np.int64]


def by_relation(graph: KnowledgeGraph, split: str) -> list[Group]:
    """One group per relation of the split, the most frequent first."""
    relations = graph.split(split)[:, 1]
    counts = np.bincount(relations, minlength=graph.num_relations)
    order = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    return [Group(graph.relations[r], np.flatnonzero(relations == r)) for r in order.tolist()]


def by_degree(graph: KnowledgeGraph, split: str) -> list[Group]:
    """One group per range of degrees: 0, 1, 2-3, 4-7 and so on.

    The degree of an entity is its number of training triples. The degree of a triple is the smaller degree of
    its head and tail.
    """
    heads, tails = graph.train[:, 0], graph.train[:, 2]
    ends = np.concatenate([heads, tails[tails != heads]])
    degrees = np.bincount(ends, minlength=graph.num_entities)
    smaller = degrees[graph.split(split)[:, [0, 2]]].min(axis=1)
    bins = np.frexp(smaller)[1]  # the number of binary digits
    return [Group(_range(n), np.flatnonzero(bins == n)) for n in np.unique(bins).tolist()]


def _range(digits: int) -> str:
    """Range of the numbers with this number of binary digits, as text."""
    low, high = (1 << digits) >> 1, (1 << digits) - 1
    return str(low) if low == high else f"{low}-{high}"


GROUPINGS = {"relation": by_relation, "degree": by_degree}
