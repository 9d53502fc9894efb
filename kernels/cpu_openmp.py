"""Lets idle threads of PyTorch's OpenMP sleep, also where PyTorch is loaded already."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import threading
from contextlib import suppress

_CHOSEN = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")  # the caller's choice, which stands

_sleeping = 0  # threads that this module has added


def let_idle_threads_sleep() -> None:
    """Let idle threads of PyTorch's OpenMP sleep, for this process and without its environment.

    By default they spin for milliseconds after each parallel operation. On a busy machine they take the
    processor time of the threads that have work. GNU's library reads how long from the environment when it is
    loaded, but spins 100 times instead of 300,000 where it has more threads than there are processors (its
    manual, `GOMP_SPINCOUNT`). So this adds threads that sleep: one, where PyTorch uses all processors.
    Intel's and LLVM's libraries have a function for it.

    `OMP_WAIT_POLICY`, `GOMP_SPINCOUNT` or `KMP_BLOCKTIME` in the environment leaves all as it is.
    """
    global _sleeping
    import torch  # not above: a process that compiles passes does not wait for it

    threads, openmp = torch.get_num_threads(), _openmp()
    if threads < 2 or openmp is None:
        return
    if hasattr(openmp, "kmp_set_blocktime"):
        openmp.kmp_set_blocktime(0)  # of the threads that work for this one
        return
    missing = _processors() + 1 - threads - _sleeping
    if missing > 0:
        with suppress(RuntimeError):  # no new thread while the interpreter ends
            started = threading.Event()
            threading.Thread(
                target=_hold, args=(openmp, missing, started), name="idle OpenMP", daemon=True
            ).start()
            started.wait()
            _sleeping += missing


def _hold(openmp: ctypes.CDLL, threads: int, started: threading.Event) -> None:
    """Keep a team of this many threads beside this one, which has done all that it ever does."""
    function = ctypes.cast(openmp.omp_get_num_threads, ctypes.c_void_p)  # any function without effect
    openmp.GOMP_parallel(function, None, ctypes.c_uint(threads + 1), ctypes.c_uint(0))
    started.set()
    threading.Event().wait()


@functools.cache
def _openmp() -> ctypes.CDLL | None:
    """The functions of PyTorch's OpenMP, once it is loaded; None where nothing is to be done with them."""
    if sys.platform != "linux" or any(name in os.environ for name in _CHOSEN):
        return None
    loaded = ctypes.CDLL(None)
    known = hasattr(loaded, "kmp_set_blocktime") or hasattr(loaded, "GOMP_parallel")
    return loaded if known else None


@functools.cache
def _processors() -> int:
    return len(os.sched_getaffinity(0))
