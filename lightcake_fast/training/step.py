"""One step of training: everything between a batch and the new weights."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from lightcake_fast.graph import ContextGraph
from lightcake_fast.models import RelationModel
from lightcake_fast.training.config import TrainingConfig


class TrainingStep:
    """One optimiser step on a batch.

    It reads nothing back from the device, and its own tensors live as long as it does: it can be captured as
    a CUDA graph (see `captured`).

    Attributes:
        optimizer: Adam, with l2 on the two embedding tables only.
        loss_sum: float64 scalar on the device; the losses of all triples since it was last zeroed.
    """

    def __init__(
        self,
        model: RelationModel,
        graph: ContextGraph,
        config: TrainingConfig,
        generator: torch.Generator,
    ) -> None:
        self._model, self._graph, self._backend, self._generator = model, graph, config.backend, generator
        self._mask = torch.zeros(graph.num_triples, dtype=torch.bool, device=graph.device)
        self._mask_targets = config.mask_targets
        self._lr, self._lr_decay = config.lr, config.lr_decay
        tables = [model.entities, model.relations]
        others = [weight for weight in model.parameters() if all(weight is not table for table in tables)]
        # Adam adds weight_decay times the weight to its gradient: the gradient of l2/2 times the square
        groups: list[dict[str, Any]] = [{"params": tables, "weight_decay": config.l2}, {"params": others}]
        # a tensor, which a captured step reads anew each time; Adam's GPU kernel takes it in float32 only
        real = torch.float64 if graph.device.type == "cpu" else torch.float32
        self._step_size = torch.tensor(config.lr, dtype=real, device=graph.device)
        self.optimizer = torch.optim.Adam(groups, lr=self._step_size, fused=True)
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=graph.device)

    def start_epoch(self, epoch: int) -> None:
        """Set the step size of epoch 0, 1, ...: a part of `lr` that shrinks by `lr_decay` each time."""
        self._step_size.fill_(self._lr * (1 - self._lr_decay) ** epoch)

    def __call__(self, batch: Tensor) -> None:
        """Step on the training triples numbered `batch`, int64 `(B,)`."""
        mask = self._mask.zero_().index_fill_(0, batch, True) if self._mask_targets else None
        refined = self._model.refine(self._graph, mask=mask, generator=self._generator, backend=self._backend)
        triples = self._graph.triples_at(batch)
        pairs, targets = triples[:, ::2], triples[:, 1]
        evidence = self._model.evidence(self._graph, pairs, targets)
        scores = self._model.relation_scores(refined, pairs, evidence, generator=self._generator)
        loss = functional.cross_entropy(scores, targets)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.loss_sum += loss.detach().double() * len(batch)
