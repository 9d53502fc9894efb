"""Settings that make a process fast on a CPU: for its idle threads, its memory and its denormals.

This module imports only the standard library: the environment must be set before PyTorch is loaded.
"""

import ctypes
import os
import sys
from pathlib import PurePath

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # options of glibc's mallopt
_KEPT_BELOW = (1 << 27) + (1 << 20)  # bytes: 2^25 float32 scores of a batch, plus malloc's overhead, are kept
_ENVIRONMENT = {
    "OMP_WAIT_POLICY": "PASSIVE",  # read when PyTorch loads OpenMP
    "THP_MEM_ALLOC_ENABLE": "1",  # read by PyTorch at its first allocation
}


def runs_a_command() -> bool:
    """Whether Python is about to run `python -m lightcake_fast...` or the installed script."""
    if sys.argv[:1] != ["-m"]:  # `-m` stands there while Python locates a module
        return PurePath(sys.argv[0]).name == "lightcake-fast"
    module = sys.orig_argv[-len(sys.argv)]  # precedes the module's arguments
    if module.startswith("-"):  # joined with the flag, as in -mlightcake_fast.train
        module = module.partition("m")[2]
    return module.split(".")[0] == "lightcake_fast"


def set_environment() -> None:
    """Set environment variables that are not set yet. Call it before PyTorch is imported."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def prepare_process() -> None:
    """Make a whole program fast on a CPU. Optional: `train`, `search` and `load` do most of it.

    In addition, denormals are flushed to zero until the program ends. Huge pages are used if this call comes
    before `import torch`. An import of this package sets nothing.
    """
    if "torch" not in sys.modules:
        set_environment()
    speed_up()
    import torch  # after the environment is set

    torch.set_flush_denormal(True)


def speed_up() -> None:
    """Make this process fast without changing any result.

    Idle threads of PyTorch's OpenMP sleep. By default they spin and slow down the working threads. Freed
    memory is kept for the next step. If a `[N, d]` table goes back to the system after each use, it costs a
    page fault per 4 KB: a third of a layer's time on WN18RR. Above 129 MiB, only results of layers are kept,
    and each is reused only for a result of its size. Other large tensors would leave holes in the memory.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _KEPT_BELOW)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
    from lightcake_fast.kernels.cpu_memory import keep_results
    from lightcake_fast.kernels.cpu_openmp import let_idle_threads_sleep

    keep_results(_KEPT_BELOW)
    let_idle_threads_sleep()


def release_memory() -> None:
    """Return the kept memory of layers' freed results to the system."""
    if "lightcake_fast.kernels.cpu_memory" in sys.modules:
        from lightcake_fast.kernels.cpu_memory import release_results

        release_results()
