"""Functions on NumPy arrays that Numba compiles at their first call."""

import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from lightcake_fast.kernels.compiling import compiling


def run_compiled(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function after compilation for these argument types; cache the result on disk if possible.

    Functions that it calls must already be compiled with `numba.njit`.
    """
    compiled = _compiler(function)
    if not compiled.signatures:
        import numba

        with compiling(), suppress(OSError):  # the cache on disk can be full
            compiled.compile(tuple(map(numba.typeof, arguments)))
    return compiled(*arguments)


@functools.cache
def _compiler(function: Callable[..., Any]) -> Any:
    import numba  # the import is slow, and most commands do not need it

    compiler = numba.njit(nogil=True)(function)
    with suppress(RuntimeError):  # no writable cache folder
        compiler.enable_caching()
    return compiler
