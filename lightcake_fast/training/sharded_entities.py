"""Entity prediction by several processes. Each rank compares every question with the entities that it owns.

The rank of a question's entity sends the entity's row to all ranks. Each rank sums over its entities: the
exponentials of a softmax, or the entities that rank above an answer. The sums are then added over the ranks.
"""

from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from lightcake_fast.data import SPLITS
from lightcake_fast.metrics import (
    SCORES_PER_BLOCK,
    Evaluation,
    KnownEntities,
    NonFiniteScoresError,
    all_finite,
    both_sides,
    count_rivals,
    ranks_of,
    summarise_ranks,
)
from lightcake_fast.models import RelationModel
from lightcake_fast.models.entity_scores import (
    Questions,
    Spread,
    all_scores,
    cubed_moduli,
    distinct_questions,
    measures_distance,
    values_at,
)
from lightcake_fast.sharding.data import ShardData
from lightcake_fast.sharding.shard import Ids
from lightcake_fast.sharding.world import World
from lightcake_fast.training.runtime import question_order

Tables = tuple[Tensor, Tensor]  # refined own rows (n, d) and relations (2R, d)


class ShardedQuestions:
    """Questions (h, r, ?) and (t, r + R, ?) about the entities of all ranks. All ranks must call its methods.

    Args:
        model: Model with this rank's entity rows.
        data: This rank's share of the data set.
        world: All ranks.
        device: Device of this rank.
    """

    def __init__(self, model: RelationModel, data: ShardData, world: World, device: torch.device) -> None:
        self._model, self._data, self._world, self._device = model, data, world, device
        self._train = self._whole("train").astype(np.int32)  # triples of all ranks, 12 bytes per triple

    def order(self, seed: int, epoch: int) -> Tensor:
        """Return the order of all ranks' context triples in an epoch, int64 (2T,) (see `question_order`)."""
        asked, _ = both_sides(self._train.astype(np.int64), self._data.num_relations)
        return question_order(seed, epoch, *torch.from_numpy(asked).unbind(1))

    def of(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Return questions, int64 (B, 2), and answers, int64 (B,), of context triples with numbers (B,)."""
        places, turned = batch % len(self._train), batch >= len(self._train)
        asked, answers = both_sides(self._train[places.numpy()].astype(np.int64), self._data.num_relations)
        which = torch.arange(len(batch)) + turned * len(batch)
        return torch.from_numpy(asked)[which], torch.from_numpy(answers)[which]

    def loss(
        self,
        tables: Tables,
        asked: Tensor,
        answers: Tensor,
        compared: Tensor | None,
        label_smoothing: float,
        n3: float,
    ) -> Tensor:
        """Return this rank's share of the mean loss of answers.

        Args:
            tables: Refined own rows and relations.
            asked: int64 (M, 2) in CPU memory, a question per answer. The same on all ranks.
            answers: int64 (M,) in CPU memory. The same on all ranks.
            compared: int64, ascending, the entities to compare with. None for all.
            label_smoothing: As in `RelationModel.entity_loss`.
            n3: Coefficient of the cubed moduli of head, relation and tail.

        Returns:
            A scalar. The sum over all ranks is the loss of a single process.
        """
        asked_once, question = distinct_questions(asked[:, 0], asked[:, 1], 2 * self._data.num_relations)
        own = tables[0] if compared is None else functional.embedding(self._own(compared)[1], tables[0])
        count = self._data.num_entities if compared is None else len(compared)
        questions, heads = self._ask(tables, asked_once, self._spread(own, count))
        if len(own):
            log_sums, sums = questions.log_sums(own)
        else:  # nothing to compare with here, but the other ranks wait for the gradients of their rows
            sums = 0 * heads.sum(1)
            log_sums = sums - torch.inf
        question = question.to(self._device)
        merged: Tensor = _Merged.apply(log_sums, self._world)  # type: ignore[no-untyped-call]
        loss = values_at(merged, question).sum()
        place, local = self._own(answers)
        rows = functional.embedding(local, tables[0])
        given = questions.score_of(rows, question.index_select(0, place))
        loss = loss - (1 - label_smoothing) * given.sum()
        if label_smoothing:
            loss = loss - label_smoothing / count * values_at(sums, question).sum()
        if n3:
            place, local = self._own(asked[:, 0])
            relations = functional.embedding(asked[:, 1].to(self._device).index_select(0, place), tables[1])
            rows = torch.cat([rows, functional.embedding(local, tables[0]), relations])
            loss = loss + n3 * cubed_moduli(self._model.entity_score, rows).sum()
        return loss / len(answers)

    def evaluate(self, split: str, tables: Tables, ties: str) -> Evaluation:
        """Return the metrics of a split from refined own rows and relations.

        Raises:
            NonFiniteScoresError: A score is NaN or infinite on any rank.
        """
        triples, seen = self._whole(split), torch.zeros(self._data.num_entities, dtype=torch.uint8)
        seen[torch.from_numpy(self._data.layout.rows)] = torch.from_numpy(self._data.seen).byte()
        seen = self._world.add(seen)
        return summarise_ranks(self._ranks(split, triples, tables, ties), triples, seen.numpy() > 0)

    def _ranks(self, split: str, triples: Ids, tables: Tables, ties: str) -> Tensor:
        """Return the filtered ranks of tails and heads, float64 (T, 2) in CPU memory, from 1."""
        asked, answers = both_sides(triples, self._data.num_relations)
        (most,) = self._world.agree(len(self._data.layout.rows))
        rows, finite = max(1, SCORES_PER_BLOCK // most), True
        spread = self._spread(tables[0], self._data.num_entities)
        found = [torch.zeros(0, 2, dtype=torch.int64)]
        for start in range(0, len(asked), rows):
            block = slice(start, start + rows)
            scores, true = self._scores(tables, spread, asked[block], answers[block])
            finite = finite and all_finite(scores)
            found.append(self._rivals(scores, true, asked[block], answers[block], ties).cpu())
        if any(self._world.agree(not finite)):
            raise NonFiniteScoresError(f"scores of {split} are NaN or infinite")
        return ranks_of(self._world.add(torch.cat(found)), ties).view(2, -1).T.contiguous()

    def _scores(
        self, tables: Tables, spread: Spread | None, asked: Ids, answers: Ids
    ) -> tuple[Tensor, Tensor]:
        """Return scores (B, n) of this rank's entities, and scores (B, 1) of all answers."""
        questions, _ = self._ask(tables, torch.from_numpy(asked), spread)
        scores = tables[0].new_zeros(len(asked), len(tables[0]))
        if scores.numel():
            scores = all_scores(questions, tables[0])
        place, local = self._own(torch.from_numpy(answers))
        true = scores.new_zeros(len(asked), 1)
        true[place, 0] = scores[place, local]
        return scores, self._world.add(true)

    def _rivals(self, scores: Tensor, true: Tensor, asked: Ids, answers: Ids, ties: str) -> Tensor:
        """Call `count_rivals` for the own entities that compete."""
        row, known = self._known(asked)
        local = self._data.layout.local(known)
        own = local < scores.shape[1]
        left_out = (torch.from_numpy(ids[own]).to(self._device) for ids in (row, local))
        rivals = scores.index_put(tuple(left_out), scores.new_tensor(-torch.inf))
        rivals[self._own(torch.from_numpy(answers))] = -torch.inf
        before = None
        if ties == "index":
            before = self._rows < torch.from_numpy(answers).to(self._device)[:, None]
        return count_rivals(rivals, true, ties, before)

    def _spread(self, own: Tensor, count: int) -> Spread | None:
        """Spread of `count` entities on all ranks, for a score that is a distance. None for other scores."""
        if not measures_distance(self._model.entity_score):
            return None
        rows = own.detach()
        centre = self._world.add(rows.sum(0)) / count
        squares = torch.cat([(rows - centre).square().sum(1), rows.new_zeros(1)])
        return Spread(centre, self._world.largest(squares.max()))

    def _ask(self, tables: Tables, asked: Tensor, spread: Spread | None) -> tuple[Questions, Tensor]:
        """Return questions, int64 (B, 2), and the rows (B, d) of their entities."""
        place, local = self._own(asked[:, 0])
        own = functional.embedding(local, tables[0])
        heads: Tensor = _Shared.apply(own, place, len(asked), self._world)  # type: ignore[no-untyped-call]
        return self._model.ask(heads, asked[:, 1].to(self._device), tables[1], spread), heads

    def _own(self, entities: Tensor) -> tuple[Tensor, Tensor]:
        """Find this rank's entities among entities, int64 (B,) in CPU memory: places and local rows."""
        local = torch.from_numpy(self._data.layout.local(entities.numpy()))
        place = (local < len(self._data.layout.rows)).nonzero()[:, 0]
        return place.to(self._device), local[place].to(self._device)

    def _whole(self, split: str) -> Ids:
        """Gather the triples of a split from all ranks, int64 (T, 3)."""
        held, whole = self._data.splits[split], torch.zeros(self._data.counts[split], 3, dtype=torch.int32)
        mine = held.owners[:, 0] == self._data.layout.rank
        whole[torch.from_numpy(held.number[mine])] = torch.from_numpy(held.triples[mine]).int()
        return self._world.add(whole).numpy().astype(np.int64)

    @cached_property
    def _known(self) -> KnownEntities:
        """The known answers of questions, for own entities and some others."""
        held = [self._data.splits[split].triples for split in SPLITS]
        return KnownEntities(np.concatenate(held), self._data.num_relations)

    @cached_property
    def _rows(self) -> Tensor:
        return torch.from_numpy(self._data.layout.rows).to(self._device)


class _Shared(torch.autograd.Function):
    """Rows (B, d) on all ranks. Each rank puts its rows (A, d) at their places (A,)."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, place: Tensor, count: int, world: World) -> Tensor:
        ctx.place, ctx.world = place, world
        return world.add(own.new_zeros(count, own.shape[1]).index_copy_(0, place, own))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        whole = ctx.world.add(g.clone(memory_format=torch.contiguous_format))
        return whole.index_select(0, ctx.place), None, None, None


class _Merged(torch.autograd.Function):
    """Log-sums (B,) over the entities of all ranks, divided by the number of ranks.

    The gradient of the result must be the same on all ranks.
    """

    @staticmethod
    def forward(ctx: Any, log_sums: Tensor, world: World) -> Tensor:
        merged = world.gather(log_sums).logsumexp(0)
        ctx.save_for_backward(log_sums, merged)
        return merged / world.ranks

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        log_sums, merged = ctx.saved_tensors
        return g * (log_sums - merged).exp(), None
