"""One step of training: everything between a batch and the new weights."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from lightcake_fast.graph import ContextGraph
from lightcake_fast.models import RelationModel
from lightcake_fast.models.entity_scores import cubed_moduli, distinct_questions
from lightcake_fast.training.average import WeightAverage
from lightcake_fast.training.config import TrainingConfig


class TrainingStep:
    """One optimiser step on a batch.

    It reads nothing back from the device, and its own tensors live as long as it does: it can be captured as
    a CUDA graph (see `captured`).

    Attributes:
        optimizer: Adam, with l2 on the two embedding tables only.
        average: Of the weights over the steps so far.
        loss_sum: float64 scalar on the device; the losses of all triples since it was last zeroed.
        weight: The part of a triple that one of a batch stands for.
    """

    weight = 1.0

    def __init__(
        self,
        model: RelationModel,
        graph: ContextGraph,
        config: TrainingConfig,
        generator: torch.Generator,
    ) -> None:
        self._model, self._graph, self._config, self._generator = model, graph, config, generator
        self._mask = torch.zeros(graph.num_triples, dtype=torch.bool, device=graph.device)
        tables = [model.entities, model.relations]
        others = [weight for weight in model.parameters() if all(weight is not table for table in tables)]
        # Adam adds weight_decay times the weight to its gradient: the gradient of l2/2 times the square
        groups: list[dict[str, Any]] = [{"params": tables, "weight_decay": config.l2}, {"params": others}]
        # a tensor, which a captured step reads anew each time; Adam's GPU kernel takes it in float32 only
        real = torch.float64 if graph.device.type == "cpu" else torch.float32
        self._step_size = torch.tensor(config.lr, dtype=real, device=graph.device)
        self.optimizer = torch.optim.Adam(groups, lr=self._step_size, fused=True)
        self.average = WeightAverage(model, config.weight_average)
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=graph.device)

    def start_epoch(self, epoch: int) -> None:
        """Set the step size of epoch 0, 1, ...: a part of `lr` that shrinks by `lr_decay` each time."""
        self._step_size.fill_(self._config.lr * (1 - self._config.lr_decay) ** epoch)

    def __call__(self, batch: Tensor) -> None:
        """Step on the training triples numbered `batch`, int64 `(B,)`."""
        loss = self._loss(batch)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self._add_shares()
        self.optimizer.step()
        self.average.update()
        self.loss_sum += loss.detach().double() * (len(batch) * self.weight)

    def _add_shares(self) -> None:
        """Add what other processes found of the gradients: there are none."""

    def _loss(self, batch: Tensor) -> Tensor:
        """The mean loss of a batch."""
        triples = self._graph.triples_at(batch)
        pairs, targets = triples[:, ::2], triples[:, 1]
        refined = self._refined(batch, pairs.T.reshape(-1))
        evidence = self._model.evidence(self._graph, pairs, targets, batch)
        return self._model.relation_loss(
            refined,
            targets,
            evidence,
            generator=self._generator,
            label_smoothing=self._config.label_smoothing,
        )

    def _refined(self, triples: Tensor, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The tables without these triples, int64 numbers, in the context, if they are to be masked.

        ``rows`` are the entities that are wanted (see ``RelationModel.refine``).
        """
        mask = self._mask.zero_().index_fill_(0, triples, True) if self._config.mask_targets else None
        return self._model.refine(
            self._graph, mask=mask, generator=self._generator, backend=self._config.backend, rows=rows
        )


class EntityStep(TrainingStep):
    """The step that learns to rank entities: a context triple (h, r, t) asks (h, r, ?) and answers t.

    A batch holds numbers below 2T: training triples and, as triple + T, their inverses, which ask for heads.
    A question with several answers in it is scored once, so that shapes depend on the batch.
    """

    weight = 0.5  # a training triple asks twice

    def _loss(self, batch: Tensor) -> Tensor:
        heads, relations, answers = (ids.index_select(0, batch) for ids in self._graph.context_triples)
        compared = entities_compared(
            heads, answers, self._config.negatives, self._graph.num_entities, self._generator
        )
        refined = self._refined(batch % self._graph.num_triples, compared)
        if compared is not None:
            heads, answers = torch.searchsorted(compared, heads), torch.searchsorted(compared, answers)
        questions, question = distinct_questions(heads, relations, 2 * self._graph.num_relations)
        loss = self._model.entity_loss(refined, questions, answers, question, self._config.label_smoothing)
        if not self._config.n3:
            return loss
        of_entities = functional.embedding(torch.cat([heads, answers]), refined[0])
        rows = torch.cat([of_entities, functional.embedding(relations, refined[1])])
        return loss + self._config.n3 / len(batch) * cubed_moduli(self._model.entity_score, rows).sum()


def entities_compared(
    heads: Tensor, answers: Tensor, drawn: int, num_entities: int, generator: torch.Generator
) -> Tensor | None:
    """The entities among which a batch's answers are sought: its own, and some drawn at random.

    Args:
        heads: int64 (M,), of the batch's questions.
        answers: int64 (M,).
        drawn: How many are drawn, of N, some perhaps twice; none and N or more stand for all.
        num_entities: N.
        generator: Source of the draws, on the device of heads and answers.

    Returns:
        int64, ascending, each once; None for all.
    """
    if not 0 < drawn < num_entities:
        return None
    random = torch.randint(num_entities, (drawn,), generator=generator, device=heads.device)
    found: Tensor = torch.unique(torch.cat([heads, answers, random]))
    return found
