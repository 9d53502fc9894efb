"""Exponential moving average (EMA) of a model's weights. Validation and checkpoints use the average."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import swa_utils

TOTAL = "total"  # sum of the shares of all steps: 1 - decay^steps


class WeightAverage:
    """Exponential moving average (EMA) of a model's weights over the steps.

    The shares of the steps add up to one. Updates need no synchronization and can be captured as a CUDA
    graph.

    Args:
        model: Model on its device.
        decay: Share of the average that a step keeps. 0 disables the average.

    Attributes:
        tensors: Unnormalized sums by weight name, in the shapes of the weights, and the scalar ``TOTAL`` that
            divides them. Empty if the decay is 0.

    Source: Polyak and Juditsky, 1992. The correction of the first steps is Adam's (arXiv 1412.6980).
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._weights = dict(model.named_parameters())
        self.tensors: dict[str, Tensor] = {}
        if decay:
            self.tensors = {name: torch.zeros_like(weight) for name, weight in self._weights.items()}
            self._one = next(iter(self._weights.values())).detach().new_ones(())
            self.tensors[TOTAL] = torch.zeros_like(self._one)
            self._average: Any = swa_utils.get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]

    def update(self) -> None:
        """Add the current weights to the average."""
        if self.tensors:
            self._average(list(self.tensors.values()), [*self._weights.values(), self._one], 0)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Replace the weights by their average within a `with` block.

        Before the first step, the weights stay as they are.
        """
        total = self.tensors[TOTAL].item() if self.tensors else 0
        if not total:
            yield
            return
        with torch.no_grad():
            own = {name: weight.clone() for name, weight in self._weights.items()}
            for name, weight in self._weights.items():
                torch.div(self.tensors[name], total, out=weight)
            try:
                yield
            finally:
                for name, weight in self._weights.items():
                    weight.copy_(own[name])
