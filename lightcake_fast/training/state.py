"""The tensors that training goes on from: weights, Adam's averages and the random state."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from lightcake_fast.errors import InputError


def training_state(
    model: nn.Module, optimizer: torch.optim.Optimizer, generator: torch.Generator
) -> dict[str, Tensor]:
    """Collect the state under the names `model.*`, `adam.<weight>.*` and `generator`."""
    state = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for name, weight in model.named_parameters():
        for key, value in optimizer.state.get(weight, {}).items():
            state[f"adam.{name}.{key}"] = value
    state["generator"] = generator.get_state()
    return state


def restore_state(state: Mapping[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Put weights and Adam's averages back; the generator is left to the caller.

    Raises:
        InputError: The weights are not those of this model.
    """
    prefix = "model."
    weights = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise InputError(f"the checkpoint does not fit the model: {error}") from error
    for name, weight in model.named_parameters():
        prefix = f"adam.{name}."
        averages = {
            key.removeprefix(prefix): value.to(weight.device, copy=True)
            for key, value in state.items()
            if key.startswith(prefix)
        }
        if averages:
            optimizer.state[weight] = averages
