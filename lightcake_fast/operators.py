"""Registration of the package's PyTorch operators."""

from collections.abc import Callable
from typing import Any

import torch

Function = Callable[..., Any]


class Operator:
    """An operator `lightcake_fast::NAME` that changes none of its arguments, and its registrations.

    Like `torch.library.custom_op`. But the first call of a `custom_op` imports TorchDynamo, which takes two
    seconds, a third of the time of a command that predicts or evaluates.

    Args:
        name: NAME.
        function: The kernel. Its annotations give the schema.
        device: The kernel's device: "cpu", or "default" for all devices.
    """

    def __init__(self, name: str, function: Function, device: str) -> None:
        self._name = f"lightcake_fast::{name}"
        torch.library.define(self._name, torch.library.infer_schema(function, mutates_args=()))
        torch.library.impl(self._name, device, function)
        self._call = getattr(torch.ops.lightcake_fast, name).default

    def __call__(self, *arguments: Any) -> Any:
        """Call the operator, as `torch.ops` does."""
        return self._call(*arguments)

    def register_kernel(self, device: str) -> Callable[[Function], None]:
        """Decorate the kernel for another device."""
        return torch.library.impl(self._name, device)

    def register_fake(self, function: Function) -> None:
        """Decorate a function that makes results of the right shape and dtype without computing."""
        torch.library.register_fake(self._name, function)

    def register_autograd(self, backward: Function, *, setup_context: Function | None = None) -> None:
        """Set the backward, and the function that saves tensors for it."""
        torch.library.register_autograd(self._name, backward, setup_context=setup_context)

    def register_autocast(self, dtype: torch.dtype) -> None:
        """Set the dtype to which autocast converts floating-point arguments, on any device."""
        for device in ("cpu", "cuda"):
            torch.library.register_autocast(self._name, device, dtype)


def operator(name: str, device: str = "default") -> Callable[[Function], Operator]:
    """Decorate a kernel (see `Operator`)."""
    return lambda function: Operator(name, function, device)
