"""Let idle threads of PyTorch's OpenMP sleep, even if PyTorch is already loaded."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import threading

_CHOSEN = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")  # the caller's choices have priority

_sleeping = 0  # threads that this module has added


def let_idle_threads_sleep() -> None:
    """Let idle threads of PyTorch's OpenMP sleep, for this process, without a change of its environment.

    By default, idle threads spin for milliseconds after each parallel operation. On a busy machine they take
    processor time from working threads. GNU's library reads the spin count from the environment when it is
    loaded. If it has more threads than there are processors, it spins 100 times instead of 300,000 (its
    manual, `GOMP_SPINCOUNT`). So this function adds sleeping threads: one, if PyTorch uses all processors.
    Intel's and LLVM's libraries have a function for this purpose.

    GNU's library ends the process if a thread cannot start, and a large machine can need hundreds. So this
    function adds none if PyTorch uses less than half of the processors: spinning then disturbs little.

    If `OMP_WAIT_POLICY`, `GOMP_SPINCOUNT` or `KMP_BLOCKTIME` is set, nothing changes.
    """
    global _sleeping
    import torch  # not at the top: a process that only compiles passes does not load torch

    threads, openmp = torch.get_num_threads(), _openmp()
    if threads < 2 or openmp is None:
        return
    if hasattr(openmp, "kmp_set_blocktime"):
        openmp.kmp_set_blocktime(0)  # for the threads that work for this one
        return
    missing = _processors() + 1 - threads - _sleeping
    if missing > 0 and 2 * threads >= _processors():
        _sleeping += missing  # before the wait, in which other threads call this function
        started = threading.Event()
        holder = threading.Thread(
            target=_hold, args=(openmp, missing, started), name="idle OpenMP", daemon=True
        )
        try:
            holder.start()
        except RuntimeError:  # no new thread can start at interpreter shutdown
            _sleeping -= missing
        else:
            started.wait()


def _hold(openmp: ctypes.CDLL, threads: int, started: threading.Event) -> None:
    """Keep this many threads in a team with the current thread. This thread only waits."""
    function = ctypes.cast(openmp.omp_get_num_threads, ctypes.c_void_p)  # any function without side effects
    openmp.GOMP_parallel(function, None, ctypes.c_uint(threads + 1), ctypes.c_uint(0))
    started.set()
    threading.Event().wait()


@functools.cache
def _openmp() -> ctypes.CDLL | None:
    """Return the functions of PyTorch's OpenMP, once it is loaded; None if nothing must change."""
    if sys.platform != "linux" or any(name in os.environ for name in _CHOSEN):
        return None
    loaded = ctypes.CDLL(None)
    known = hasattr(loaded, "kmp_set_blocktime") or hasattr(loaded, "GOMP_parallel")
    return loaded if known else None


@functools.cache
def _processors() -> int:
    return len(os.sched_getaffinity(0))
