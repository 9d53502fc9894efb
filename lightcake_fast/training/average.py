"""A running average of a model's weights, which is what is ranked and kept."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import swa_utils

TOTAL = "total"  # of the shares that the steps so far have: 1 - decay^steps


class WeightAverage:
    """The exponential moving average of a model's weights over the steps: shares of all add up to one.

    Updates read nothing back from the device and can be captured as a CUDA graph.

    Args:
        model: on its device.
        decay: the share of the average that a step keeps; with 0 there is no average.

    Attributes:
        tensors: the sums so far by the names of the weights, each in its weight's shape, and ``TOTAL``, a
            scalar to divide them by; none with a decay of 0.

    Source: Polyak and Juditsky, 1992; with the correction for the start that Adam has (arXiv 1412.6980).
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
        """Take in the weights as they are after a step."""
        if self.tensors:
            self._average(list(self.tensors.values()), [*self._weights.values(), self._one], 0)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The model with the average for its weights, in a `with` block; before the first step as it is."""
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
