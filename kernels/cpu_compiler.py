"""Compile the Numba passes, cache them on disk, and run them on several threads."""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.caching import FunctionCache
from numba.extending import intrinsic, overload

from lightcake_fast.kernels.compiling import compiling
from lightcake_fast.kernels.cpu_blocks import NumbaBlock
from lightcake_fast.kernels.cpu_math import FAST
from lightcake_fast.kernels.cpu_openmp import let_idle_threads_sleep

if TYPE_CHECKING:
    import torch

FIXED_WIDTHS = (32, 64, 128, 256, 512)  # compiled as constants; the other widths share one compilation
LINE = 64  # bytes of a cache line
LONG_ROW = 1024  # bytes; the processor prefetches longer rows by itself, and extra requests cost time


class Pass:
    """One sweep over the graph, compiled per score, width and dtype, and run by several threads.

    ``make(width)``, or ``make(width, block)`` for a pass that depends on the score, returns the Python
    function to compile. Width 0 means that the function reads the width from the arrays. ``block`` is the
    score's block in Numba's form. The last argument of the function is a counter. The threads draw tasks from
    it, so a slow core takes fewer tasks. Each task writes different rows, so the result does not depend on
    the thread of a task.

    The pass does not use Numba's threads. Their pools spin together with PyTorch's, die in a fork or refuse
    concurrent callers. A parallel region also compiles several times slower.

    Args:
        make: as above.
        tasks_a_helper: number of tasks per helper thread. For small tasks, waking a thread takes longer than
            the
            task.
    """

    def __init__(self, make: Callable[..., Callable[..., None]], tasks_a_helper: int = 1) -> None:
        self._make, self._tasks_a_helper = make, tasks_a_helper
        self._compiled: dict[tuple[str | None, int, str, bool], Any] = {}
        self._functions: dict[tuple[str | None, int, str, bool], Any] = {}
        self.of_a_score = len(inspect.signature(make).parameters) > 1

    def __call__(
        self, width: int, tasks: int, rows: torch.Tensor, *arguments: Any, score: str | None = None
    ) -> None:
        """Run ``tasks`` tasks on at most ``torch.get_num_threads()`` threads. Tensors are passed as arrays.

        With an argument of None, a separate compilation runs, which skips the work for this argument.
        """
        import torch  # not at the top: a process that only compiles passes does not load torch

        arrays = [_array(a) if isinstance(a, torch.Tensor) else a for a in (rows, *arguments)]
        arrays += [tasks, np.zeros(1, np.int64)]
        key = score, fixed_width(width), arrays[0].dtype.name, any(a is None for a in arrays)
        if key not in self._compiled:
            with compiling():
                self._compiled[key] = self.compile(*key, tuple(map(numba.typeof, arrays)))
        run = functools.partial(self._compiled[key], *arrays)
        most = torch.get_num_threads() - 1
        helpers = min(most, (tasks - 1) // self._tasks_a_helper)
        futures: list[Future[None]] = []
        try:
            # At interpreter shutdown no new thread can start. Then this thread runs all tasks.
            with suppress(RuntimeError):
                if helpers > 0:
                    let_idle_threads_sleep()
                    pool, flushes = _pool_of(most), _flushes_denormals()
                    futures.extend(pool.submit(_run_flushing, flushes, run) for _ in range(helpers))
            run()
        finally:
            begun = [future for future in futures if not future.cancel()]  # some may not have started
            wait(begun)
        for future in begun:
            future.result()

    def compile(
        self, score: str | None, width: int, rows: str, less: bool, signature: tuple[Any, ...]
    ) -> Any:
        """Return the compiled function, from disk if it is cached there.

        Args:
            score: None for a pass that does not depend on the score.
            width: as for ``make``.
            rows: NumPy's name of the dtype of the first rows.
            less: whether an argument is None.
            signature: Numba's types of all arguments.
        """
        function = self.function(score, width, rows, less)
        function.compile(signature)
        return function

    def function(self, score: str | None, width: int, rows: str, less: bool) -> Any:
        """Return the function to compile, with a disk cache if possible.

        The arguments are as for ``compile``.
        """
        key = score, width, rows, less
        if key not in self._functions:
            blocks = [] if score is None else [NumbaBlock.of(score, width)]
            made = self._make(width, *blocks)
            # This name identifies the cache files and the machine code. Two compilations must not share a
            # symbol. Two dtypes must not share a file, because concurrent processes would load the wrong one.
            made.__qualname__ = "_".join(
                [self._make.__name__, *(b.name for b in blocks), str(width), rows, *["less"] * less]
            )
            function = numba.njit(nogil=True, **FAST)(made)
            digests = [_sources_digest(), *(b.digest for b in blocks)]
            if None not in digests:
                try:
                    function._cache = PassCache(made, (made.__qualname__, *digests))
                except RuntimeError:
                    _say_not_kept("no writable folder")
            self._functions[key] = function
        return self._functions[key]


def fixed_width(width: int) -> int:
    """Return the width that a pass is compiled for: 0 if it reads the width from the arrays."""
    return width if width in FIXED_WIDTHS else 0


class PassCache(FunctionCache):  # type: ignore[misc]
    """Numba's disk cache with a key that identifies the source of a pass. Without it, a pass still runs.

    Numba's default key pickles the closure. If a closure holds functions, each pickle is different.
    """

    def __init__(self, function: Callable[..., None], key: tuple[Any, ...]) -> None:
        super().__init__(function)
        self._key = key

    def _index_key(self, signature: Any, codegen: Any) -> tuple[Any, ...]:
        return signature, codegen.magic_tuple(), self._key

    def holds(self, signature: Any, target_context: Any) -> bool:
        """Return whether a compiled pass is cached. `load_overload` would take half a second longer."""
        return self._cache_file.load(self._index_key(signature, target_context.codegen())) is not None

    def save_overload(self, signature: Any, data: Any) -> None:
        """Save a compiled pass if there is space for it."""
        try:
            super().save_overload(signature, data)
        except OSError as error:
            _say_not_kept(str(error))


light_pass = functools.partial(Pass, tasks_a_helper=128)  # for passes with one row per task


@functools.cache
def _say_not_kept(reason: str) -> None:
    print(
        f"lightcake_fast: cannot cache the compiled CPU passes on disk ({reason}): "
        "set NUMBA_CACHE_DIR to another folder",
        file=sys.stderr,
    )


def _array(tensor: torch.Tensor) -> Any:
    """Return a tensor as a NumPy array. NumPy has no bfloat16, so such tensors become int16."""
    import torch

    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


_pool: tuple[int, ThreadPoolExecutor] | None = None  # number of threads, and the pool that all passes share


def _pool_of(size: int) -> ThreadPoolExecutor:
    """Return the pool. Replace it if PyTorch now has more threads than the pool."""
    global _pool
    outgrown = _pool
    if outgrown is not None and outgrown[0] >= size:
        return outgrown[1]
    pool = ThreadPoolExecutor(size, thread_name_prefix="lightcake_fast")
    _pool = size, pool
    if outgrown is not None:
        outgrown[1].shutdown()
    return pool


def _forget_pool() -> None:
    global _pool
    _pool = None


os.register_at_fork(after_in_child=_forget_pool)  # a forked child has no threads of its parent


def _run_flushing(flushes: bool, run: Callable[[], None]) -> None:
    """Run in a thread of the pool.

    Set its treatment of denormals, which its previous caller may have changed.
    """
    import torch

    torch.set_flush_denormal(flushes)
    run()


def _flushes_denormals() -> bool:
    return bool(np.float32(1e-38) * np.float32(0.1) == 0)


@functools.cache
def _sources_digest() -> str:
    """Return a digest of all files of the kernels, because a pass can include code from any of them."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _mark_as_pass(function: Any) -> None:
    """Set attributes of a pass in LLVM that Numba cannot set.

    The arrays do not overlap, so LLVM can vectorize loops over many rows without checks. The pass may use
    512-bit vectors: LLVM prefers 256 bits on the first AVX-512 processors, which makes these loops a quarter
    slower. The function is not inlined, because inlining would lose the attributes.
    """
    for argument in function.args:
        if isinstance(argument.type, ir.PointerType):
            argument.add_attribute("noalias")
    for attribute in ('"prefer-vector-width"="512"', "noinline"):
        set.add(function.attributes, attribute)  # llvmlite's add() rejects string attributes


@intrinsic
def next_task(typing_context: Any, counter: Any) -> Any:
    """Add one to ``counter[0]`` atomically and return the old value.

    Only passes call this function, so it also sets the attributes of a pass.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _mark_as_pass(builder.function)
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        return builder.atomic_rmw("add", array.data, ir.IntType(64)(1), "monotonic")

    return types.int64(counter), generate


@intrinsic
def prefetch(typing_context: Any, rows: Any, row: Any, column: Any) -> Any:
    """Prefetch the cache line of ``rows[row, column]``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        place = cgutils.get_item_pointer(
            context, builder, signature.args[0], array, [arguments[1], arguments[2]], wraparound=False
        )
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        reading, keep, data = number(0), number(3), number(1)
        builder.call(function, [builder.bitcast(place, byte), reading, keep, data])
        return context.get_dummy_value()

    return types.void(rows, types.intp, types.intp), generate


def prefetch_row(rows: Any, row: Any, width: Any) -> Any:
    """Prefetch all cache lines of a row."""


@overload(prefetch_row, jit_options=FAST)
def _prefetch_row(rows: Any, row: Any, width: Any) -> Any:
    columns = LINE * 8 // rows.dtype.bitwidth

    def ask(rows: Any, row: Any, width: Any) -> Any:
        for k in range(0, width, columns):
            prefetch(rows, row, k)

    return ask
