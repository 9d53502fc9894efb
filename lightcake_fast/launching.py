"""Context of Triton kernel launches: the current device, and clear errors for missing tools."""

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch

from lightcake_fast.errors import InputError


@contextmanager
def launching(device: torch.device) -> Iterator[None]:
    """Make a GPU the current device, because Triton launches there.

    Raises:
        InputError: Triton has no writable cache folder or no C compiler; the message says what to set.
    """
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
