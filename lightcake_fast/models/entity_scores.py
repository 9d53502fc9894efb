"""Questions (h, r, ?): the scores of all entities for each, and their cross-entropy, in blocks of entities.

The tail side of a triple asks (h, r, ?), the head side (t, r⁻¹, ?). One matrix product scores a block:
that of the entities with a point that the question alone decides, or, for a distance, of the expanded square.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from lightcake_fast.scores import score_named

BLOCK = 2**22  # numbers that a block of scores is made of, 16 MiB in float32
KEPT = 2**25  # scores of a batch that are kept for the backward; more are computed again, a block at a time


class Questions(Protocol):
    """B questions, ready to be compared with entities."""

    @property
    def entries(self) -> int:
        """The numbers that scoring one entity takes."""

    def scores(self, entities: Tensor) -> Tensor:
        """Scores (B, n) of entities (n, d)."""

    def score_of(self, entities: Tensor, question: Tensor) -> Tensor:
        """Scores (M,) of entities (M, d), each for the one question numbered there, int64 (M,)."""


@dataclass(frozen=True)
class _Products:
    """Scores that are a product: points (B, d)."""

    points: Tensor

    @property
    def entries(self) -> int:
        return len(self.points)

    def scores(self, entities: Tensor) -> Tensor:
        return self.points @ entities.T

    def score_of(self, entities: Tensor, question: Tensor) -> Tensor:
        return (self.points.index_select(0, question) * entities).sum(1)


@dataclass(frozen=True)
class _Distances:
    """Scores that are a negative distance: points (B, d), and where the entities lie on the average, (d,).

    ||q - e||² = |q|² + |e|² - 2 <q, e>, whose terms cancel where q and e are close: lengths are taken from
    the entities' mean, and a square below what rounding makes of it counts as that, with gradient zero.
    """

    points: Tensor
    centre: Tensor

    @property
    def entries(self) -> int:
        return len(self.points)

    def scores(self, entities: Tensor) -> Tensor:
        points, entities = self.points - self.centre, entities - self.centre
        ours, theirs = points.square().sum(1, keepdim=True), entities.square().sum(1)
        squared = torch.addmm(theirs, points, entities.T, alpha=-2) + ours
        rounding = 4 * torch.finfo(squared.dtype).eps * (ours + theirs.max()).detach()
        return -squared.maximum(rounding).sqrt()

    def score_of(self, entities: Tensor, question: Tensor) -> Tensor:
        squared = (self.points.index_select(0, question) - entities).square().sum(1)
        return -squared.clamp_min(torch.finfo(squared.dtype).tiny).sqrt()


@dataclass(frozen=True)
class _Psi:
    """A score that is known triple by triple: holds a tensor of B x n x d."""

    psi: Callable[[Tensor, Tensor, Tensor], Tensor]
    heads: Tensor
    relations: Tensor

    @property
    def entries(self) -> int:
        return self.heads.numel()

    def scores(self, entities: Tensor) -> Tensor:
        return self.psi(self.heads[:, None], self.relations[:, None], entities)

    def score_of(self, entities: Tensor, question: Tensor) -> Tensor:
        return self.psi(
            self.heads.index_select(0, question), self.relations.index_select(0, question), entities
        )


def _times(heads: Tensor, relations: Tensor) -> Tensor:
    (a, b), (c, d) = heads.chunk(2, 1), relations.chunk(2, 1)
    return torch.cat([a * c - b * d, a * d + b * c], 1)


def _simple(heads: Tensor, relations: Tensor) -> Tensor:
    (as_head, as_tail), (forward, back) = heads.chunk(2, 1), relations.chunk(2, 1)
    return torch.cat([as_tail * back, as_head * forward], 1) / 2


_PRODUCTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "distmult": torch.mul,
    "complex": _times,
    "simple": _simple,
}
_DISTANCES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "transe": torch.add,
    "rotate": _times,
}


def ask(score: str, heads: Tensor, relations: Tensor, entities: Tensor) -> Questions:
    """The questions (h, r, ?) under a score.

    Args:
        score: As in ``scorers``, or the name of a registered one.
        heads: Rows (B, d).
        relations: Rows (B, d), of the relations.
        entities: Those among which the answers are sought, (N, d).
    """
    if score in _PRODUCTS:
        return _Products(_PRODUCTS[score](heads, relations))
    if score in _DISTANCES:
        return _Distances(_DISTANCES[score](heads, relations), entities.detach().mean(0))
    return _Psi(score_named(score).psi, heads, relations)


def all_scores(questions: Questions, entities: Tensor) -> Tensor:
    """Scores (B, N) of all entities (N, d)."""
    return torch.cat([questions.scores(block) for block in _blocks(questions, entities)], 1)


def cross_entropy(
    questions: Questions, entities: Tensor, answers: Tensor, question: Tensor, label_smoothing: float = 0.0
) -> Tensor:
    """The mean cross-entropy of answers under a softmax over all entities.

    Args:
        questions: B of them.
        entities: All, (N, d).
        answers: int64 (M,), the entities that are answers.
        question: int64 (M,), the question that each answers.
        label_smoothing: The share of an answer's weight that goes to all entities alike.

    Returns:
        A scalar. For its gradient at most ``KEPT`` scores are kept.
    """
    again = questions.entries * len(entities) > KEPT

    def summed(block: Tensor) -> tuple[Tensor, Tensor]:
        scores = questions.scores(block)
        return scores.logsumexp(1), scores.sum(1) if label_smoothing else scores[:, 0]

    parts = [
        checkpoint(summed, block, use_reentrant=False, preserve_rng_state=False) if again else summed(block)
        for block in _blocks(questions, entities)
    ]
    logs, sums = (torch.stack(values) for values in zip(*parts, strict=True))
    given = questions.score_of(entities.index_select(0, answers), question)
    loss = logs.logsumexp(0).index_select(0, question) - (1 - label_smoothing) * given
    if label_smoothing:
        loss = loss - label_smoothing / len(entities) * sums.sum(0).index_select(0, question)
    return loss.mean()


def _blocks(questions: Questions, entities: Tensor) -> Iterator[Tensor]:
    """The rows of the entities, so many at a time that their scores take at most ``BLOCK`` numbers."""
    yield from torch.split(entities, max(1, BLOCK // max(1, questions.entries)))
