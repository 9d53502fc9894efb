"""PyTorch operators of the package: their registration, and launches of Triton kernels."""

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from lightcake_fast.errors import InputError

Function = Callable[..., Any]


class Operator:
    """An operator `lightcake_fast::NAME` that changes none of its arguments, and its registrations.

    Like `torch.library.custom_op`. But the first call of a `custom_op` imports TorchDynamo, which takes two
    seconds, a third of the time of a command that predicts or evaluates.

    Args:
        name: NAME.
        function: The kernel. Its annotations give the schema.
    """

    def __init__(self, name: str, function: Function) -> None:
        self._name = f"lightcake_fast::{name}"
        torch.library.define(self._name, torch.library.infer_schema(function, mutates_args=()))
        torch.library.impl(self._name, "default", function)
        self._call = getattr(torch.ops.lightcake_fast, name).default

    def __call__(self, *arguments: Any) -> Any:
        """Call the operator, as `torch.ops` does."""
        return self._call(*arguments)

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


def operator(name: str) -> Callable[[Function], Operator]:
    """Decorate the kernel of an operator for all devices (see `Operator`)."""
    return lambda function: Operator(name, function)


@contextmanager
def launching(device: torch.device, *, triton: bool = True) -> Iterator[None]:
    """Make a GPU the current device, because Triton launches there.

    Args:
        device: The device of the launch.
        triton: False for the Numba passes, which need no preparation and have other errors.

    Raises:
        InputError: Triton has no writable cache folder or no C compiler; the message says what to set.
    """
    if not triton:
        yield
        return
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        try:
            yield
        except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
            problem = _lacking(error)
            if problem is None:
                raise
            raise InputError(problem) from error


def _lacking(error: Exception) -> str | None:
    """Return a message if the error comes from the machine and not from the kernels, else None."""
    if isinstance(error, subprocess.CalledProcessError):
        return (
            "Triton's launcher: expected a C compiler and Python's headers, got exit code "
            f"{error.returncode} from {error.cmd[0]}: install python3-dev, or set CC to another compiler"
        )
    if isinstance(error, RuntimeError):
        if "Failed to find C compiler" not in str(error):
            return None
        return "Triton's launcher: expected a C compiler, got none: install gcc, or set CC to a compiler"
    if not isinstance(error, OSError) or error.filename is None:
        return None
    if error.errno == errno.ENOENT and error.filename == os.environ.get("CC"):
        return (
            f"Triton's launcher: expected a C compiler, got CC={error.filename}, which does not exist: set "
            "CC to a compiler"
        )
    return (
        f"Triton's cache: expected a writable folder, got {error.filename} ({error.strerror}): set "
        "TRITON_CACHE_DIR to a writable folder"
    )
