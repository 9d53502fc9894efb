"""Tensors of the training state: weights, their average, Adam's averages and the random state."""

from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn

from lightcake_fast.errors import InputError
from lightcake_fast.training.step import TrainingStep

_MOMENTS = ("exp_avg", "exp_avg_sq")  # Adam's averages, in the shape of their weight


def names_of(weights: Collection[str]) -> set[str]:
    """Return the names of all checkpoint tensors that have the shapes of these weights."""
    found = {f"{prefix}{name}" for prefix in ("", "model.", "average.") for name in weights}
    return found | {f"adam.{name}.{moment}" for name in weights for moment in _MOMENTS}


def training_state(model: nn.Module, step: TrainingStep, generator: torch.Generator) -> dict[str, Tensor]:
    """Collect the state under the names `model.*`, `average.*`, `adam.<weight>.*` and `generator`."""
    state = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    state |= {f"average.{name}": tensor for name, tensor in step.average.tensors.items()}
    for name, weight in model.named_parameters():
        for key, value in step.optimizer.state.get(weight, {}).items():
            state[f"adam.{name}.{key}"] = value
    state["generator"] = generator.get_state()
    return state


def restore_state(state: Mapping[str, Tensor], model: nn.Module, step: TrainingStep) -> None:
    """Restore weights, their average and Adam's averages. The caller restores the generator.

    Raises:
        InputError: A tensor is missing, unknown, or has another shape or type.
    """
    wanted = {f"model.{name}": weight for name, weight in model.state_dict().items()}
    averages = {f"average.{name}": tensor for name, tensor in step.average.tensors.items()}
    wanted |= averages
    stepped = any(name.startswith("adam.") for name in state)  # a run can be saved before its first step
    for name, weight in model.named_parameters() if stepped else ():
        wanted |= {f"adam.{name}.{key}": weight for key in _MOMENTS}
        wanted[f"adam.{name}.step"] = torch.zeros(())
    wanted["generator"] = state.get("generator", torch.empty(0))  # its length depends on the device
    check_tensors(state, wanted)
    model.load_state_dict({name: state[f"model.{name}"] for name in model.state_dict()})
    for name, average in averages.items():
        average.copy_(state[name])
    for name, weight in model.named_parameters() if stepped else ():
        prefix = f"adam.{name}."
        step.optimizer.state[weight] = {
            key.removeprefix(prefix): value.to(weight.device, copy=True)
            for key, value in state.items()
            if key.startswith(prefix)
        }


def check_tensors(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    """Compare names, shapes and types of a checkpoint's tensors with the tensors that a model needs.

    Raises:
        InputError: They differ. The message names the first difference.
    """
    misfit = "checkpoint: expected the tensors of the model"
    for problem, names in (("no", wanted.keys() - found.keys()), ("unknown", found.keys() - wanted.keys())):
        if names:
            raise InputError(f"{misfit}, got {problem} {', '.join(sorted(names))}")
    for name, tensor in wanted.items():
        if (found[name].shape, found[name].dtype) != (tensor.shape, tensor.dtype):
            raise InputError(
                f"{misfit}, {name} as {tensor.dtype} {tuple(tensor.shape)}, "
                f"got {found[name].dtype} {tuple(found[name].shape)}"
            )
