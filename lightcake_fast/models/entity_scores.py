"""Questions (h, r, ?): scores of all entities and their cross-entropy, in blocks of entities.

The tail side of a triple asks (h, r, ?), the head side (t, r⁻¹, ?). One matrix product scores a block of
entities. Its other factor is a point per question, or, for a distance, comes from the expanded square.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from lightcake_fast.errors import InputError
from lightcake_fast.models import blocks
from lightcake_fast.scores import score_named


class Questions(Protocol):
    """B questions, prepared for comparison with entities."""

    @property
    def entries(self) -> int:
        """The number of intermediate values per scored entity."""

    def scores(self, entities: Tensor) -> Tensor:
        """Return scores (B, n) of entities (n, d)."""

    def score_of(self, entities: Tensor, question: Tensor) -> Tensor:
        """Return scores (M,) of entities (M, d); entity m answers question ``question[m]``, int64 (M,)."""

    def log_sums(self, entities: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-sum-exp of all scores, and their sum, each (B,), over all entities (N, d)."""


@dataclass(frozen=True)
class _Products:
    """Scores that are a product with points (B, d)."""

    points: Tensor

    @property
    def entries(self) -> int:
        return len(self.points)

    def scores(self, entities: Tensor) -> Tensor:
        return self.points @ entities.T

    def score_of(self, entities: Tensor, question: Tensor) -> Tensor:
        return (functional.embedding(question, self.points) * entities).sum(1)

    def log_sums(self, entities: Tensor) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = _LogSums.apply(self.points, entities, None)  # type: ignore[no-untyped-call]
        return found


class Spread(NamedTuple):
    """The mean of all entities (d,), and the largest squared distance from it, a scalar."""

    centre: Tensor
    largest: Tensor

    @classmethod
    def of(cls, entities: Tensor) -> "Spread":
        """Compute the spread of rows (N, d)."""
        rows = entities.detach()
        centre = rows.mean(0)
        largest = [_squares(block - centre).max() for block in _blocks(rows.shape[1], rows)]
        return cls(centre, torch.stack(largest).max())


@dataclass(frozen=True)
class _Distances:
    """Scores that are a negative distance from points (B, d), with the spread of the entities.

    In ||q - e||² = |q|² + |e|² - 2 <q, e> the terms cancel where q and e are close. So q and e are taken
    relative to the mean of the entities. A square below its rounding error is set to this error, with
    gradient zero.
    """

    points: Tensor
    spread: Spread

    @property
    def entries(self) -> int:
        return len(self.points)

    def scores(self, entities: Tensor) -> Tensor:
        points, entities = self.points - self.spread.centre, entities - self.spread.centre
        squared = torch.addmm(_squares(entities), points, entities.T, alpha=-2) + _squares(points)[:, None]
        return -squared.maximum(self._floor(points)).sqrt()

    def score_of(self, entities: Tensor, question: Tensor) -> Tensor:
        squared = (functional.embedding(question, self.points) - entities).square().sum(1)
        return -squared.clamp_min(torch.finfo(squared.dtype).tiny).sqrt()

    def log_sums(self, entities: Tensor) -> tuple[Tensor, Tensor]:
        points, entities = self.points - self.spread.centre, entities - self.spread.centre
        floor = self._floor(points)
        found: tuple[Tensor, Tensor] = _LogSums.apply(points, entities, floor)  # type: ignore[no-untyped-call]
        return found

    def _floor(self, points: Tensor) -> Tensor:
        """Return the rounding error of a square with terms that cancel, (B, 1), greater than zero."""
        kind = torch.finfo(points.dtype)
        largest = _squares(points.detach())[:, None] + self.spread.largest
        return (4 * kind.eps * largest).clamp_min(kind.tiny)


def _squares(rows: Tensor) -> Tensor:
    return rows.square().sum(1)


@dataclass(frozen=True)
class _Psi:
    """A score without a matrix product: uses a tensor of B x n x d."""

    psi: Callable[[Tensor, Tensor, Tensor], Tensor]
    heads: Tensor
    relations: Tensor

    @property
    def entries(self) -> int:
        return self.heads.numel()

    def scores(self, entities: Tensor) -> Tensor:
        return self.psi(self.heads[:, None], self.relations[:, None], entities)

    def score_of(self, entities: Tensor, question: Tensor) -> Tensor:
        heads, relations = (functional.embedding(question, rows) for rows in (self.heads, self.relations))
        return self.psi(heads, relations, entities)

    def log_sums(self, entities: Tensor) -> tuple[Tensor, Tensor]:
        def summed(block: Tensor) -> tuple[Tensor, Tensor]:
            scores = self.scores(block)
            return scores.logsumexp(1), scores.sum(1)

        parts = [blocks.computed_again(summed, block) for block in _blocks(self.entries, entities)]
        logs, sums = (torch.stack(values) for values in zip(*parts, strict=True))
        return logs.logsumexp(0), sums.sum(0)


class _LogSums(torch.autograd.Function):
    """``log_sums`` of points (B, d) with entities (N, d), for products or negative distances.

    ``floor`` (B, 1) is the minimum of squared distances; None selects products.

    One buffer holds each block of scores, for any N. Otherwise large temporary tensors alternate with small
    ones that stay, and this fragments CPU memory.
    """

    @staticmethod
    def forward(ctx: Any, points: Tensor, entities: Tensor, floor: Tensor | None) -> tuple[Tensor, Tensor]:
        keeps = len(points) * len(entities) <= blocks.KEPT
        highest = points.new_full((len(points), 1), -torch.inf)
        total, sums = points.new_zeros(len(points), 1), points.new_zeros(len(points))
        buffer, kept = _buffer(points, entities), []
        for block in _blocks(len(points), entities):
            scores = _scored(points, block, floor, buffer)
            if keeps:
                kept.append(scores.clone())
            sums += scores.sum(1)
            before, highest = highest, highest.maximum(scores.amax(1, keepdim=True))
            total *= (before - highest).exp()
            total += scores.sub_(highest).exp_().sum(1, keepdim=True)
        log_sum = highest + total.log()
        ctx.save_for_backward(points, entities, floor, log_sum, *kept)
        return log_sum[:, 0], sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g_log: Tensor, g_sum: Tensor) -> tuple[Tensor, Tensor, None]:
        points, entities, floor, log_sum, *kept = ctx.saved_tensors
        g_points, g_entities = torch.zeros_like(points), torch.empty_like(entities)
        weights, buffer = _buffer(points, entities), _buffer(points, entities)
        parts = _blocks(len(points), entities), _blocks(len(points), g_entities)
        for n, (block, g_block) in enumerate(zip(*parts, strict=True)):
            scores = kept[n] if kept else _scored(points, block, floor, buffer)
            grad = weights[: scores.numel()].view_as(scores)
            torch.sub(scores, log_sum, out=grad).exp_().mul_(g_log[:, None]).add_(g_sum[:, None])
            if floor is not None:  # the gradient of the squares, then of the distances
                grad.div_(scores).mul_(scores < -floor.sqrt())
                g_points += points * grad.sum(1, keepdim=True)
                torch.mul(block, grad.sum(0)[:, None], out=g_block)
                grad.neg_()
            else:
                g_block.zero_()
            g_points.addmm_(grad, block)
            g_block.addmm_(grad.T, points)
        return g_points, g_entities, None


def _buffer(points: Tensor, entities: Tensor) -> Tensor:
    """Allocate memory for the scores of a block."""
    return points.new_empty(len(points) * min(len(entities), blocks.block_size(len(points))))


def _scored(points: Tensor, entities: Tensor, floor: Tensor | None, buffer: Tensor) -> Tensor:
    """Compute scores (B, n) of a block in the buffer."""
    scores = buffer[: len(points) * len(entities)].view(len(points), len(entities))
    torch.mm(points, entities.T, out=scores)
    if floor is not None:
        scores.mul_(-2).add_(_squares(points)[:, None]).add_(_squares(entities))
        torch.maximum(scores, floor, out=scores).sqrt_().neg_()
    return scores


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


_COMPLEX = ("complex", "rotate")  # rows of complex numbers: real parts, then imaginary parts


def cubed_moduli(score: str | None, rows: Tensor) -> Tensor:
    """Return the cubes of the moduli (B, n) in rows (B, d): of d/2 complex numbers, or of d real numbers.

    Source: the nuclear 3-norm of Lacroix et al., ICML 2018, arXiv 1806.07297.
    """
    if score not in _COMPLEX:
        return rows.abs().pow(3)
    real, imaginary = rows.chunk(2, 1)
    squared = real.square() + imaginary.square()
    return squared * squared.clamp_min(torch.finfo(rows.dtype).tiny).sqrt()


def distinct_questions(heads: Tensor, relations: Tensor, kinds: int) -> tuple[Tensor, Tensor]:
    """Remove repeated questions.

    Args:
        heads: int64 (M,).
        relations: int64 (M,), less than ``kinds``.
        kinds: 2R.

    Returns:
        Distinct questions, int64 (B, 2), ascending, and the number of each input question in them, int64
        (M,).
    """
    keys, question = torch.unique(heads * kinds + relations, return_inverse=True)
    return torch.stack([keys // kinds, keys % kinds], 1), question


def measures_distance(score: str | None) -> bool:
    """Return whether a score is a negative distance; then ``ask`` needs the ``Spread`` of the entities."""
    return score in _DISTANCES


def ask(score: str, heads: Tensor, relations: Tensor, spread: Spread | None) -> Questions:
    """Prepare questions (h, r, ?) for a score.

    Args:
        score: As in ``scorers``, or the name of a registered score.
        heads: Rows (B, d).
        relations: Rows (B, d), the relations.
        spread: The spread of the candidate entities, for a negative distance.

    Raises:
        ValueError: If the score is a negative distance and ``spread`` is None.
    """
    if score in _PRODUCTS:
        return _Products(_PRODUCTS[score](heads, relations))
    if score in _DISTANCES:
        if spread is None:
            raise ValueError(f"spread: expected the spread of the entities for score {score!r}, got None")
        return _Distances(_DISTANCES[score](heads, relations), spread)
    return _Psi(score_named(score).psi, heads, relations)


def all_scores(questions: Questions, entities: Tensor) -> Tensor:
    """Return scores (B, N) of all entities (N, d)."""
    return torch.cat([questions.scores(block) for block in _blocks(questions.entries, entities)], 1)


def cross_entropy(
    questions: Questions, entities: Tensor, answers: Tensor, question: Tensor, label_smoothing: float = 0.0
) -> Tensor:
    """Return the mean cross-entropy of answers under a softmax over all entities.

    Args:
        questions: B questions.
        entities: All entity rows, (N, d).
        answers: int64 (M,), the entities that are answers.
        question: int64 (M,), the question number of each answer.
        label_smoothing: The share of the target weight that is spread evenly over all entities.

    Returns:
        A scalar. Its backward keeps at most ``blocks.KEPT`` scores.
    """
    log_sums, sums = questions.log_sums(entities)
    given = questions.score_of(functional.embedding(answers, entities), question)
    loss = values_at(log_sums, question) - (1 - label_smoothing) * given
    if label_smoothing:
        loss = loss - label_smoothing / len(entities) * values_at(sums, question)
    return loss.mean()


def values_at(values: Tensor, places: Tensor) -> Tensor:
    """Return values (B,) at int64 positions (M,), with repeats; the gradient uses no atomics on a GPU."""
    return functional.embedding(places, values[:, None])[:, 0]


def _blocks(entries: int, entities: Tensor) -> Iterator[Tensor]:
    """Split the entity rows so that the scores of a part take at most ``blocks.BLOCK`` numbers."""
    yield from torch.split(entities, blocks.block_size(entries))


class RanksEntities(nn.Module):
    """The part of a model that scores entities.

    Attributes:
        entity_score: the score that ranks entities (see ``ask``); None for a model that does not.
        num_relations: R, raw relations.
    """

    entity_score: str | None = None
    num_relations: int

    def entity_scores(self, refined: tuple[Tensor, Tensor], questions: Tensor) -> Tensor:
        """Score every entity as the answer to each question.

        Args:
            refined: the result of ``refine``.
            questions: int64 (B, 2) of (entity, relation): (h, r) asks for tails, (t, r + R) for heads.

        Returns:
            Scores (B, N), the logits of p(t | h, r).

        Raises:
            InputError: if the model does not rank entities.
        """
        return all_scores(self._asked(refined, questions), refined[0])

    def entity_loss(
        self,
        refined: tuple[Tensor, Tensor],
        questions: Tensor,
        answers: Tensor,
        question: Tensor,
        label_smoothing: float = 0.0,
    ) -> Tensor:
        """Return the mean cross-entropy of answers, int64 (M,), to questions number ``question``, int64 (M,).

        It keeps at most ``blocks.KEPT`` scores in memory; other arguments as in ``entity_scores``.
        """
        return cross_entropy(self._asked(refined, questions), refined[0], answers, question, label_smoothing)

    def _asked(self, refined: tuple[Tensor, Tensor], questions: Tensor) -> Questions:
        entities, relations = refined
        heads = functional.embedding(questions[:, 0], entities)
        spread = Spread.of(entities) if measures_distance(self.entity_score) else None
        return self.ask(heads, questions[:, 1], relations, spread)

    def ask(self, heads: Tensor, asked: Tensor, relations: Tensor, spread: Spread | None) -> Questions:
        """Prepare questions for entities.

        Args:
            heads: refined rows (B, d).
            asked: int64 (B,), the relations: r for tails, r + R for heads.
            relations: refined, (2R, d).
            spread: the spread of the candidate entities, for a score that measures distances.

        Raises:
            InputError: if the model does not rank entities.
        """
        if self.entity_score is None:
            raise InputError(
                f"model: expected one that ranks entities, got {type(self).__name__}, which does not"
            )
        if len(relations) < 2 * self.num_relations:
            raise InputError("model: expected inverses=True, got a model without rows for inverse relations")
        return ask(self.entity_score, heads, functional.embedding(asked, relations), spread)
