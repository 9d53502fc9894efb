"""What stands around a launch of Triton's kernels: their device, and what the machine lacks in words."""

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch

from lightcake_fast.errors import InputError


@contextmanager
def launching(device: torch.device) -> Iterator[None]:
    """Make a GPU the current one, on which Triton launches.

    Raises:
        InputError: Triton lacks a folder for its cache or a C compiler; the message says what to set.
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
    """What to set, for an error of Triton's that tells of the machine and not of the kernels."""
    if isinstance(error, subprocess.CalledProcessError):
        return (
            f"Triton's launcher does not compile: {error.cmd[0]} ended with code {error.returncode}; wanted "
            "Python's headers (python3-dev) and a C compiler: set CC to one that works"
        )
    if isinstance(error, RuntimeError):
        if "Failed to find C compiler" not in str(error):
            return None
        return "Triton needs a C compiler to launch kernels and finds none: install gcc, or set CC to one"
    if not isinstance(error, OSError) or error.filename is None:
        return None
    if error.errno == errno.ENOENT and error.filename == os.environ.get("CC"):
        return f"Triton needs a C compiler to launch kernels: CC names {error.filename}, which is not there"
    return (
        f"Triton cannot keep compiled kernels in {error.filename} ({error.strerror}): set TRITON_CACHE_DIR "
        "to a folder that can be written to"
    )
