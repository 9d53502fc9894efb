"""What the models are made with: checks of their arguments, and initial values."""

from collections.abc import Iterable

import torch
from torch import Generator, nn

from lightcake_fast.errors import InputError


def check_at_least(least: int, **numbers: int) -> None:
    """Raise ``InputError`` for a number below ``least``."""
    for name, value in numbers.items():
        if value < least:
            raise InputError(f"{name}: got {value}, wanted at least {least}")


def check_choice(name: str, value: str, known: Iterable[str]) -> None:
    """Raise ``InputError`` for a value that is not one of ``known``."""
    if value not in known:
        raise InputError(f"{name}: got {value!r}, wanted one of {', '.join(known)}")


def xavier(*shape: int, generator: Generator | None, dtype: torch.dtype) -> nn.Parameter:
    """A matrix, or a stack of matrices, each Xavier uniform, on the generator's device."""
    values = torch.empty(shape, dtype=dtype, device=generator.device if generator is not None else None)
    for matrix in values.view(-1, *shape[-2:]):
        nn.init.xavier_uniform_(matrix, generator=generator)
    return nn.Parameter(values)
