"""Plain functions of NumPy arrays, compiled by Numba when they are first run."""

import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from lightcake_fast.kernels.compiling import compiling


def run_compiled(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function returns, compiled for these arguments; kept on disk for the next process if it can be.

    Functions that it calls must be compiled already, by `numba.njit`.
    """
    compiled = _compiler(function)
    if not compiled.signatures:
        import numba

        with compiling(), suppress(OSError):  # there may be no room to keep it for the next process
            compiled.compile(tuple(map(numba.typeof, arguments)))
    return compiled(*arguments)


@functools.cache
def _compiler(function: Callable[..., Any]) -> Any:
    import numba  # a second, of which most commands have no need

    compiler = numba.njit(nogil=True)(function)
    with suppress(RuntimeError):  # no folder that can be written to
        compiler.enable_caching()
    return compiler
