"""One training step: from a batch to the new weights."""

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
    """One optimizer step on a batch.

    It reads nothing back from the device, and its tensors are reused: it can be captured as a CUDA graph (see
    `captured`).

    Attributes:
        optimizer: Adam, with L2 regularization of the two embedding tables only.
        average: Exponential moving average (EMA) of the weights.
        loss_sum: float64 scalar on the device: sum of the losses of all triples since it was last set to
            zero.
        weight: Number of training triples per element of a batch.
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
        # a captured step reads a tensor anew at each replay; on a GPU, Adam takes this tensor in float32 only
        real = torch.float64 if graph.device.type == "cpu" else torch.float32
        self._step_size = torch.tensor(config.lr, dtype=real, device=graph.device)
        self.optimizer = torch.optim.Adam(groups, lr=self._step_size, fused=True)
        self.average = WeightAverage(model, config.weight_average)
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=graph.device)

    def start_epoch(self, epoch: int) -> None:
        """Set the learning rate of epoch 0, 1, ...: `lr` times (1 - `lr_decay`)^epoch."""
        self._step_size.fill_(self._config.lr * (1 - self._config.lr_decay) ** epoch)

    def __call__(self, batch: Tensor) -> None:
        """Run a step on the training triples with these numbers, int64 `(B,)`."""
        loss = self._loss(batch)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self._add_shares()
        self.optimizer.step()
        self.average.update()
        self.loss_sum += loss.detach().double() * (len(batch) * self.weight)

    def _add_shares(self) -> None:
        """Add the gradients of other processes. One process has nothing to add."""

    def _loss(self, batch: Tensor) -> Tensor:
        """Compute the mean loss of a batch."""
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
        """Refine the tables, with these triples (int64 numbers) masked in the context if configured.

        ``rows`` are the entities whose refined rows are needed (see ``RelationModel.refine``).
        """
        mask = self._mask.zero_().index_fill_(0, triples, True) if self._config.mask_targets else None
        return self._model.refine(
            self._graph, mask=mask, generator=self._generator, backend=self._config.backend, rows=rows
        )


class EntityStep(TrainingStep):
    """Training step of entity prediction. A context triple (h, r, t) is the question (h, r, ?) with answer t.

    A batch holds numbers below 2T. Numbers from T on are the inverses of the training triples and ask for
    heads. A question with several answers is scored once, so that the shapes depend on the batch.
    """

    weight = 0.5  # a training triple gives two questions

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
    """Return the entities that are compared with a batch's answers: the batch's own and random ones.

    Args:
        heads: int64 (M,), entities of the batch's questions.
        answers: int64 (M,).
        drawn: Number of random draws with replacement. 0, and N or more, stand for all entities.
        num_entities: N.
        generator: Random generator on the device of heads and answers.

    Returns:
        int64, ascending, without duplicates. None for all entities.
    """
    if not 0 < drawn < num_entities:
        return None
    random = torch.randint(num_entities, (drawn,), generator=generator, device=heads.device)
    found: Tensor = torch.unique(torch.cat([heads, answers, random]))
    return found
