"""Filtered ranking metrics for relations and entities, with four tie policies."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightcake_fast.data import SPLITS, KnowledgeGraph
from lightcake_fast.data.knowledge_graph import Ids

TIES = ("realistic", "optimistic", "pessimistic", "index")
PAIRS_PER_BLOCK = 4096
SCORES_PER_BLOCK = 2**22  # numbers per block: 16 MiB in float32


class NonFiniteScoresError(ArithmeticError):
    """Scores contain NaN or infinity, so ranks are meaningless."""


@dataclass(frozen=True)
class RankMetrics:
    """Means over `count` ranks. With `count` 0 all means are None.

    Attributes:
        count: Number of ranks: one per triple for relation ranking, two per triple for entity ranking.
        mrr: Mean of 1 / rank, in (0, 1]; higher is better.
        mr: Mean rank, from 1; lower is better.
        hits_at_1: Share of ranks of at most 1.
        hits_at_3: Share of ranks of at most 3.
        hits_at_10: Share of ranks of at most 10.
    """

    count: int
    mrr: float | None
    mr: float | None
    hits_at_1: float | None
    hits_at_3: float | None
    hits_at_10: float | None

    @classmethod
    def from_ranks(cls, ranks: Tensor) -> "RankMetrics":
        """Average `ranks`, float64 of any shape, each at least 1. Ties can give half ranks."""
        ranks = ranks.flatten()
        if not len(ranks):
            return cls(0, None, None, None, None, None)
        hits = [(ranks <= k).double().mean().item() for k in (1, 3, 10)]
        return cls(len(ranks), ranks.reciprocal().mean().item(), ranks.mean().item(), *hits)


@dataclass(frozen=True)
class Evaluation:
    """Metrics of a split.

    Attributes:
        all: Over every triple.
        seen: Over the triples with head and tail that both occur in training triples.
    """

    all: RankMetrics
    seen: RankMetrics

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return the metrics as plain values, ready for JSON."""
        return asdict(self)


class KnownAnswers:
    """Lookup table from questions to their known answers.

    Args:
        questions: int32 or int64 `[K, 2]`, pairs of ids; rows can repeat.
        answers: int32 or int64 `[K]`, one answer per question.
        limit: A number greater than every second id of a question.
    """

    def __init__(self, questions: Ids, answers: Ids, limit: int) -> None:
        self._limit = limit
        keys = self._keys(questions)
        order = np.argsort(keys, kind="stable")
        self._sorted = keys[order]
        self._answers = answers[order]

    def __call__(self, questions: Ids) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Look up `questions`, int32 or int64 `[B, 2]`.

        Returns:
            Row numbers in `questions` and the answers known there, both int64 `[K]`. Repeated answers appear
            repeatedly.
        """
        keys = self._keys(questions)
        start = np.searchsorted(self._sorted, keys, side="left")
        count = np.searchsorted(self._sorted, keys, side="right") - start
        rows = np.repeat(np.arange(len(questions), dtype=np.int64), count)
        within = np.arange(len(rows)) - np.repeat(np.cumsum(count) - count, count)
        return rows, self._answers[np.repeat(start, count) + within].astype(np.int64, copy=False)

    def _keys(self, questions: Ids) -> NDArray[np.int64]:
        keys = questions[:, 0].astype(np.int64)
        keys *= self._limit
        keys += questions[:, 1]
        return keys


class KnownRelations(KnownAnswers):
    """The known relations of each directed pair (head, tail), from all splits.

    Args:
        triples: int32 or int64 `[T, 3]`, rows of (head, relation, tail) ids; rows can repeat.
        num_entities: N, greater than every entity id.
    """

    def __init__(self, triples: Ids, num_entities: int) -> None:
        super().__init__(triples[:, [0, 2]], triples[:, 1], num_entities)

    @classmethod
    def of(cls, data: KnowledgeGraph) -> "KnownRelations":
        """Return the known relations from the three splits of `data`."""
        return cls(np.concatenate([data.split(name) for name in SPLITS]), data.num_entities)


class KnownEntities(KnownAnswers):
    """The known entities of (h, r), for tails, and of (t, r + R), for heads, from all splits.

    Args:
        triples: int32 or int64 `[T, 3]`, rows of (head, relation, tail) ids; rows can repeat.
        num_relations: R, greater than every relation id.
    """

    def __init__(self, triples: Ids, num_relations: int) -> None:
        super().__init__(*both_sides(triples, num_relations), 2 * num_relations)

    @classmethod
    def of(cls, data: KnowledgeGraph) -> "KnownEntities":
        """Return the known entities from the three splits of `data`."""
        return cls(np.concatenate([data.split(name) for name in SPLITS]), data.num_relations)


def both_sides(triples: Ids, num_relations: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the questions of triples and their answers: first for all tails, then for all heads.

    Args:
        triples: int32 or int64 `[T, 3]`, rows of (head, relation, tail) ids.
        num_relations: R.

    Returns:
        (h, r) and then (t, r + R), int64 `[2T, 2]`; t and then h, int64 `[2T]`.
    """
    head, relation, tail = triples.astype(np.int64, copy=False).T
    asked = np.stack([np.concatenate([head, tail]), np.concatenate([relation, relation + num_relations])], 1)
    return asked, np.concatenate([tail, head])


def relation_ranks(
    scores: Tensor,
    relations: Tensor,
    known: tuple[Tensor, Tensor] | None = None,
    *,
    ties: str = "realistic",
) -> Tensor:
    """Rank the true relation of each pair among all relations that are not known for this pair.

    It ranks entities in the same way: read entity for relation, question for pair, N for R.

    Args:
        scores: `[B, R]`, floating point; higher is more likely.
        relations: int64 `[B]`, the true relations.
        known: Rows and relations, both int64 `[K]`, to filter out (see `KnownRelations`). The true relations
            can be in it; they stay in the ranking.
        ties: Rank of the true relation among relations with the same score. "realistic" is the mean of the
            possible ranks, "optimistic" the first, "pessimistic" the last. "index" is the order of relation
            ids: a stable sort, as in the public code of published results.

    Returns:
        float64 `[B]`, ranks from 1.

    Raises:
        NonFiniteScoresError: A score is NaN or infinite.
        ValueError: `ties` is not one of the four names.
    """
    if ties not in TIES:
        raise ValueError(f"ties: expected one of {', '.join(TIES)}, got {ties!r}")
    if not all_finite(scores):
        broken = int((~torch.isfinite(scores)).sum())
        raise NonFiniteScoresError(f"{broken:,} of {scores.numel():,} scores are NaN or infinite")
    column = relations.unsqueeze(1)
    true = scores.gather(1, column)
    # -inf is below every finite score, so a relation with this score does not change a rank
    rivals = scores.scatter(1, column, -torch.inf)
    if known is not None:
        rivals[known] = -torch.inf
    before = torch.arange(scores.shape[1], device=scores.device) < column if ties == "index" else None
    return ranks_of(count_rivals(rivals, true, ties, before), ties)


def all_finite(scores: Tensor) -> bool:
    """Return whether all scores are finite. A minimum and a maximum are fast, and NaN shows in both."""
    return not scores.numel() or bool(torch.stack(torch.aminmax(scores)).isfinite().all())


def count_rivals(rivals: Tensor, true: Tensor, ties: str, before: Tensor | None = None) -> Tensor:
    """Count the rivals with a better score than the true answer, and the equal scores that count as well.

    Args:
        rivals: Scores `[B, R]`; -inf for answers that are filtered out.
        true: Scores `[B, 1]` of the true answers.
        ties: See `relation_ranks`.
        before: For "index" bool `[B, R]`, the rivals that come before the true answer.

    Returns:
        int64 `[B, 2]`. Counts over parts of the rivals add up to the counts over all rivals.
    """
    better = (rivals > true).sum(1)
    if ties == "optimistic":
        return torch.stack([better, torch.zeros_like(better)], 1)
    tied = rivals == true
    return torch.stack([better, (tied if before is None else tied & before).sum(1)], 1)


def ranks_of(rivals: Tensor, ties: str) -> Tensor:
    """Return the ranks, float64 `[B]` from 1, for the counts from `count_rivals`."""
    better, tied = rivals.unbind(1)
    return 1 + better + (0.5 if ties == "realistic" else 1.0) * tied.double()


def triple_ranks(
    score: Callable[[Tensor], Tensor],
    triples: Ids,
    known: KnownRelations,
    *,
    ties: str = "realistic",
    entries: int = 1,
) -> Tensor:
    """Rank the relation of every triple, in blocks of pairs.

    Args:
        score: Returns the scores `[B, R]` of pairs, int64 `[B, 2]` of (head, tail) in CPU memory.
        triples: int32 or int64 `[T, 3]`, the split to evaluate.
        known: The relations to filter by.
        ties: See `relation_ranks`.
        entries: Number of intermediate values per pair; it limits the pairs per block.

    Returns:
        float64 `[T]` in CPU memory, ranks from 1.

    Raises:
        NonFiniteScoresError: A score is NaN or infinite.
    """
    pairs = np.ascontiguousarray(triples[:, [0, 2]])
    return _ranks(score, pairs, triples[:, 1], known, ties, pairs_per_block(entries))


def pairs_per_block(entries: int) -> int:
    """Return the number of pairs per block, for `entries` intermediate values per pair."""
    return max(1, min(PAIRS_PER_BLOCK, SCORES_PER_BLOCK // entries))


def entity_ranks(
    score: Callable[[Tensor], Tensor],
    triples: Ids,
    num_entities: int,
    num_relations: int,
    known: KnownEntities,
    *,
    ties: str = "realistic",
) -> Tensor:
    """Rank the tail and the head of every triple, in blocks of at most `SCORES_PER_BLOCK` scores.

    Args:
        score: Returns the scores `[B, N]` of questions, int64 `[B, 2]` in CPU memory (see `both_sides`).
        triples: int32 or int64 `[T, 3]`, the split to evaluate.
        num_entities: N.
        num_relations: R.
        known: The entities to filter by.
        ties: See `relation_ranks`.

    Returns:
        float64 `[T, 2]` in CPU memory: ranks from 1 of the tail and of the head.

    Raises:
        NonFiniteScoresError: A score is NaN or infinite.
    """
    questions, answers = both_sides(triples, num_relations)
    ranks = _ranks(score, questions, answers, known, ties, max(1, SCORES_PER_BLOCK // num_entities))
    return ranks.view(2, -1).T.contiguous()


def _ranks(
    score: Callable[[Tensor], Tensor],
    questions: Ids,
    answers: Ids,
    known: KnownAnswers,
    ties: str,
    rows: int,
) -> Tensor:
    """Return the rank of each answer; score `rows` questions at a time."""
    ranks = [torch.empty(0, dtype=torch.float64)]
    for start in range(0, len(questions), rows):
        block = slice(start, start + rows)
        scores = score(torch.from_numpy(questions[block].astype(np.int64)))
        others = tuple(torch.from_numpy(ids).to(scores.device) for ids in known(questions[block]))
        true = torch.from_numpy(answers[block].astype(np.int64)).to(scores.device)
        ranks.append(relation_ranks(scores, true, (others[0], others[1]), ties=ties).cpu())
    return torch.cat(ranks)


def summarise_ranks(ranks: Tensor, triples: Ids, seen_entities: NDArray[np.bool_]) -> Evaluation:
    """Average the ranks over all triples, and over the triples with two seen entities.

    Args:
        ranks: float64 `[T]`, from `triple_ranks`, or `[T, 2]`, from `entity_ranks`.
        triples: int32 or int64 `[T, 3]`, the triples of the ranks.
        seen_entities: Bool `[N]`, entities with a training triple.
    """
    seen = torch.from_numpy(seen_entities[triples[:, [0, 2]]].all(axis=1))
    return Evaluation(all=RankMetrics.from_ranks(ranks), seen=RankMetrics.from_ranks(ranks[seen]))
