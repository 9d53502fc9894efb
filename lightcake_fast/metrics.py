"""Filtered relation prediction: which relations compete, ranks under four rules for ties, and their means."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightcake_fast.data import SPLITS, KnowledgeGraph

TIES = ("realistic", "optimistic", "pessimistic", "index")
PAIRS_PER_BLOCK = 4096


class NonFiniteScoresError(ArithmeticError):
    """Scores hold NaN or infinity, so that no rank means anything."""


@dataclass(frozen=True)
class RankMetrics:
    """Means over the ranks of `count` pairs; every mean is None where there is no pair.

    Attributes:
        count: Number of (head, relation, tail) triples ranked.
        mrr: Mean of 1 / rank, in (0, 1]; higher is better.
        mr: Mean rank, from 1; lower is better.
        hits_at_1: Share of ranks of at most 1; likewise 3 and 10.
        hits_at_3: See `hits_at_1`.
        hits_at_10: See `hits_at_1`.
    """

    count: int
    mrr: float | None
    mr: float | None
    hits_at_1: float | None
    hits_at_3: float | None
    hits_at_10: float | None

    @classmethod
    def from_ranks(cls, ranks: Tensor) -> "RankMetrics":
        """Average `ranks`, float64 `[B]`, each at least 1 (ties may give halves)."""
        if not len(ranks):
            return cls(0, None, None, None, None, None)
        hits = [(ranks <= k).double().mean().item() for k in (1, 3, 10)]
        return cls(len(ranks), ranks.reciprocal().mean().item(), ranks.mean().item(), *hits)


@dataclass(frozen=True)
class Evaluation:
    """Metrics of a split.

    Attributes:
        all: Over every triple.
        seen: Over the triples whose head and tail both occur in a training triple.
    """

    all: RankMetrics
    seen: RankMetrics

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """The metrics as plain values, ready for JSON."""
        return asdict(self)


class KnownRelations:
    """The relations that hold for each directed pair (head, tail) in any split.

    Args:
        triples: int64 `[T, 3]`, rows of (head, relation, tail) ids; rows may repeat.
        num_entities: N, above every entity id.
    """

    def __init__(self, triples: NDArray[np.int64], num_entities: int) -> None:
        self._num_entities = num_entities
        pairs = self._keys(triples[:, [0, 2]])
        order = np.argsort(pairs, kind="stable")
        self._pairs = pairs[order]
        self._relations = triples[order, 1]

    @classmethod
    def of(cls, data: KnowledgeGraph) -> "KnownRelations":
        """The known relations of all three splits of `data`."""
        return cls(np.concatenate([data.split(name) for name in SPLITS]), data.num_entities)

    def __call__(self, pairs: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Look up `pairs`, int64 `[B, 2]` of (head, tail).

        Returns:
            Rows of `pairs` and the relations known there, both int64 `[K]`: one entry for each triple
            of a pair.
        """
        keys = self._keys(pairs)
        start = np.searchsorted(self._pairs, keys, side="left")
        count = np.searchsorted(self._pairs, keys, side="right") - start
        rows = np.repeat(np.arange(len(pairs), dtype=np.int64), count)
        within = np.arange(len(rows)) - np.repeat(np.cumsum(count) - count, count)
        return rows, self._relations[np.repeat(start, count) + within]

    def _keys(self, pairs: NDArray[np.int64]) -> NDArray[np.int64]:
        return pairs[:, 0] * self._num_entities + pairs[:, 1]


def relation_ranks(
    scores: Tensor,
    relations: Tensor,
    known: tuple[Tensor, Tensor] | None = None,
    *,
    ties: str = "realistic",
) -> Tensor:
    """Rank the true relation of each pair among all relations not known to hold for it.

    Args:
        scores: `[B, R]`, floating point; higher is more likely.
        relations: int64 `[B]`, the true relations.
        known: Rows and relations, both int64 `[K]`, that do not compete (see `KnownRelations`); the true
            ones may be among them.
        ties: Place of the true relation among relations of equal score: "realistic" is the mean of the
            possible ranks, "optimistic" the first, "pessimistic" the last, "index" the order of relation
            ids (a stable sort, as the figures published with public code were made).

    Returns:
        float64 `[B]`, ranks from 1.

    Raises:
        NonFiniteScoresError: A score is NaN or infinite.
        ValueError: `ties` is none of the four.
    """
    if ties not in TIES:
        raise ValueError(f"ties: got {ties!r}, wanted one of {', '.join(TIES)}")
    broken = scores.numel() - int(torch.isfinite(scores).sum())
    if broken:
        raise NonFiniteScoresError(f"{broken:,} of {scores.numel():,} scores are NaN or infinite")
    column = relations.unsqueeze(1)
    true = scores.gather(1, column)
    # -inf is below and never equal to a finite true score: such a relation competes no more
    rivals = scores.scatter(1, column, -torch.inf)
    if known is not None:
        rivals[known] = -torch.inf
    better = (rivals > true).sum(1)
    tied = rivals == true
    if ties == "optimistic":
        return (1 + better).double()
    if ties == "index":
        ids = torch.arange(scores.shape[1], device=scores.device)
        return (1 + better + (tied & (ids < column)).sum(1)).double()
    share = 0.5 if ties == "realistic" else 1.0
    return 1 + better + share * tied.sum(1).double()


def triple_ranks(
    score: Callable[[Tensor], Tensor],
    triples: NDArray[np.int64],
    known: KnownRelations,
    *,
    ties: str = "realistic",
) -> Tensor:
    """Rank the relation of every triple, in blocks of pairs.

    Args:
        score: Gives the scores `[B, R]` of pairs, int64 `[B, 2]` of (head, tail) in CPU memory.
        triples: int64 `[T, 3]`, the split to evaluate.
        known: The relations to filter by.
        ties: See `relation_ranks`.

    Returns:
        float64 `[T]` in CPU memory, ranks from 1.

    Raises:
        NonFiniteScoresError: A score is NaN or infinite.
    """
    ranks = [torch.empty(0, dtype=torch.float64)]
    for start in range(0, len(triples), PAIRS_PER_BLOCK):
        block = triples[start : start + PAIRS_PER_BLOCK]
        pairs = np.ascontiguousarray(block[:, [0, 2]])
        scores = score(torch.from_numpy(pairs))
        rows, relations = (torch.from_numpy(ids).to(scores.device) for ids in known(pairs))
        true = torch.from_numpy(block[:, 1].copy()).to(scores.device)
        ranks.append(relation_ranks(scores, true, (rows, relations), ties=ties).cpu())
    return torch.cat(ranks)


def summarise_ranks(
    ranks: Tensor, triples: NDArray[np.int64], seen_entities: NDArray[np.bool_]
) -> Evaluation:
    """The means over all triples and over those with two seen entities.

    Args:
        ranks: float64 `[T]`, from `triple_ranks`.
        triples: int64 `[T, 3]`, the triples ranked.
        seen_entities: Bool `[N]`, entities with a training triple.
    """
    seen = torch.from_numpy(seen_entities[triples[:, [0, 2]]].all(axis=1))
    return Evaluation(all=RankMetrics.from_ranks(ranks), seen=RankMetrics.from_ranks(ranks[seen]))
