"""Argument checks and initial values for the models."""

from collections.abc import Iterable

import torch
from torch import Generator, nn

from lightcake_fast.errors import InputError


def check_at_least(least: int, **numbers: int) -> None:
    """Raise ``InputError`` if a number is less than ``least``."""
    for name, value in numbers.items():
        if value < least:
            raise InputError(f"{name}: expected at least {least}, got {value}")


def check_choice(name: str, value: str, known: Iterable[str]) -> None:
    """Raise ``InputError`` if a value is not one of ``known``."""
    if value not in known:
        raise InputError(f"{name}: expected one of {', '.join(known)}, got {value!r}")


def xavier(*shape: int, generator: Generator | None, dtype: torch.dtype) -> nn.Parameter:
    """Return a Xavier-uniform matrix, or a stack of such matrices, on the generator's device."""
    values = torch.empty(shape, dtype=dtype, device=generator.device if generator is not None else None)
    for matrix in values.view(-1, *shape[-2:]):
        nn.init.xavier_uniform_(matrix, generator=generator)
    return nn.Parameter(values)
