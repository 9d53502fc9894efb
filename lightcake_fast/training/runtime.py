"""Where a run computes, and where its random numbers come from."""

import numpy as np
import torch
from torch import Tensor

from lightcake_fast.errors import InputError


def epoch_order(seed: int, epoch: int, count: int) -> Tensor:
    """The order of the `count` training triples in an epoch, int64 `[T]`: the same on every device."""
    generator = torch.Generator().manual_seed(mixed_seed(seed, epoch))
    return torch.randperm(count, generator=generator)


def mixed_seed(*numbers: int) -> int:
    """One seed from several numbers, far from those of neighbouring numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


def resolve_device(name: str) -> torch.device:
    """The device that `--device` names.

    Raises:
        InputError: It is unknown or not there.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InputError(f"device: got {name!r}, wanted auto, cpu, cuda or cuda:N") from error
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"device: got {name!r}, wanted auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(f"device: got {name!r}, but there are {torch.cuda.device_count()} GPUs here")
    return device
