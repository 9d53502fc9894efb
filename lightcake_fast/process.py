"""What makes a process fast on a CPU: threads that do not spin, memory that is kept, no denormals.

Imports nothing but the standard library: one of these settings must stand before PyTorch is loaded.
"""

import ctypes
import os
import sys
import warnings
from pathlib import PurePath

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
_KEPT_BELOW = (1 << 27) + (1 << 20)  # bytes: 2^25 float32 scores of a batch, and what malloc adds, are kept
_ENVIRONMENT = {
    "OMP_WAIT_POLICY": "PASSIVE",  # read when PyTorch loads OpenMP
    "THP_MEM_ALLOC_ENABLE": "1",  # read by PyTorch at its first allocation
}


def runs_a_command() -> bool:
    """Whether this process was started as `python -m lightcake_fast...` or by the installed script."""
    words = sys.orig_argv
    module = words[words.index("-m") + 1 :][:1] if "-m" in words else []
    return PurePath(sys.argv[0]).name == "lightcake-fast" or any(
        word.split(".")[0] == "lightcake_fast" for word in module
    )


def set_environment() -> None:
    """Set what is read from the environment, where it is not set: before PyTorch is imported."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def prepare_process() -> None:
    """Set what makes this process fast on a CPU: for a program of your own, before it imports PyTorch.

    The commands do it for themselves, an import never does. Threads of PyTorch's OpenMP sleep when they
    have no work: by default they spin for a while, beside the threads of the fused passes. Freed memory is
    kept for the next step, in huge pages: an `[N, d]` table that goes back to the system after each use
    costs a page fault for every 4 KB, a third of a layer's time on WN18RR. Of tensors beyond 129 MiB, which
    would leave holes that nothing fits, layers' results alone are kept, each for one of its size. Denormals,
    to which decayed weights sink and which are several times slower, are flushed, also in the threads that
    this one starts.

    Warns:
        RuntimeWarning: PyTorch is loaded already and OpenMP's threads spin.
    """
    if "torch" in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
        warnings.warn(
            "PyTorch is loaded already, and its idle OpenMP threads spin: call prepare_process() before "
            "`import torch`, or set OMP_WAIT_POLICY=PASSIVE in the environment",
            RuntimeWarning,
            stacklevel=2,
        )
    set_environment()
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _KEPT_BELOW)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
    import torch  # now that the environment is set

    from lightcake_fast.kernels.cpu_memory import keep_results

    keep_results(_KEPT_BELOW)
    torch.set_flush_denormal(True)


def release_memory() -> None:
    """Give back to the system what a prepared process keeps of layers' results that are gone."""
    if "lightcake_fast.kernels.cpu_memory" in sys.modules:
        from lightcake_fast.kernels.cpu_memory import release_results

        release_results()
