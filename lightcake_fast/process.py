"""Settings that make a process fast on a CPU: for its idle threads, its memory and its denormals.

This module imports only the standard library: the environment must be set before PyTorch is loaded.
"""

import ctypes
import os
import sys
from pathlib import PurePath

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
_KEPT_BELOW = (1 << 27) + (1 << 20)  # bytes: 2^25 float32 scores of a batch, and what malloc adds, are kept
_ENVIRONMENT = {
    "OMP_WAIT_POLICY": "PASSIVE",  # read when PyTorch loads OpenMP
    "THP_MEM_ALLOC_ENABLE": "1",  # read by PyTorch at its first allocation
}


def runs_a_command() -> bool:
    """Whether Python is about to run `python -m lightcake_fast...` or the installed script."""
    if sys.argv[:1] != ["-m"]:  # which stands there while Python looks for a module
        return PurePath(sys.argv[0]).name == "lightcake-fast"
    module = sys.orig_argv[-len(sys.argv)]  # before the module's own arguments
    if module.startswith("-"):  # written in one word, as in -mlightcake_fast.train
        module = module.partition("m")[2]
    return module.split(".")[0] == "lightcake_fast"


def set_environment() -> None:
    """Set what is read from the environment, where it is not set: before PyTorch is imported."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def prepare_process() -> None:
    """Set what makes a whole program fast on a CPU. Optional: `train`, `search` and `load` do most of it.

    Beyond what they do, denormals are flushed until the program ends, and huge pages are used where this
    comes before `import torch`. An import of this package sets nothing.
    """
    if "torch" not in sys.modules:
        set_environment()
    speed_up()
    import torch  # now that the environment is set

    torch.set_flush_denormal(True)


def speed_up() -> None:
    """Set what makes this process fast and changes no result.

    Idle threads of PyTorch's OpenMP sleep: by default they spin beside the threads that have work. Freed
    memory is kept for the next step: a `[N, d]` table that goes back to the system after each use costs a
    page fault for every 4 KB, a third of a layer's time on WN18RR. Of tensors beyond 129 MiB, which would
    leave holes that nothing fits, results of layers alone are kept, each for a result of its size.
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
    """Give back to the system what a prepared process keeps of layers' results that are gone."""
    if "lightcake_fast.kernels.cpu_memory" in sys.modules:
        from lightcake_fast.kernels.cpu_memory import release_results

        release_results()
