"""Compile the missing passes of a layer in several processes.

Only one thread of a process can compile with Numba at a time. A helper process compiles passes into the cache
on disk, and this process loads them from there. If a helper fails or is stopped, this process compiles the
missing passes when it needs them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from multiprocessing.spawn import get_executable
from typing import Any, NamedTuple

import numba
import numpy as np
from numba.core.compiler_lock import global_compiler_lock

from lightcake_fast.kernels.compiling import compiling
from lightcake_fast.kernels.cpu_compiler import Pass, PassCache, fixed_width
from lightcake_fast.kernels.scores import SCORES

MOST_PROCESSES = 3  # one process per long pass and one for the rest
START = 0.4  # seconds that a helper needs before it can compile
PATIENCE = 120  # seconds to wait for a helper after this process is done
_NOWHERE = subprocess.DEVNULL

# arguments of the passes of a layer: dtype and number of dimensions, by argument name
_ARGUMENTS = {
    ("int32", 1): "head tail triple chunk_row relation record chunk_slot row_of",
    ("int64", 1): "chunk task bounds counter",
    ("bool", 1): "mask",
    ("rows", 2): "y g q own_rows own new old out part norm norm_x norm_y",
    ("rows", 1): "s part_top part_total row_dot row_dot_x row_dot_y link",
    ("read", 2): "x",
    ("int64", 0): "ways tasks",
    ("bool", 0): "with_sums",
}
_TYPES = {name: kind for kind, names in _ARGUMENTS.items() for name in names.split()}

_HELPER = """
import sys
sys.path[:] = sys.argv[2:]
sys.modules["scipy"] = None  # Numba looks for its BLAS, which no pass calls: a third of a second
from lightcake_fast.kernels.cpu_together import compile_share
compile_share(sys.argv[1])
"""


class Kind(NamedTuple):
    """The configuration that the passes of a layer are compiled for."""

    score: str
    width: int  # 0 if the passes read the width from the arrays
    rows: str  # NumPy's name of the dtype of the rows
    read: str  # dtype of the entities that context triples read; int16 stands for bfloat16
    relations: bool = True  # whether relations have a context: then the backward computes its gradient


class LayerPass(NamedTuple):
    """A pass by module and name, in the form that is sent to helpers."""

    module: str
    name: str
    seconds: float  # compile time; passes are distributed by it

    def is_missing(self, kind: Kind) -> bool:
        """Return whether the pass can be cached on disk but is missing there."""
        function, signature = self._declared(kind)
        cache = function._cache
        if not isinstance(cache, PassCache) or signature in function.overloads:
            return False
        return not cache.holds(signature, function.targetctx)

    def compile(self, kind: Kind) -> None:
        """Compile the pass and save it on disk."""
        _, signature = self._declared(kind)
        self._pass().compile(*self._key(kind), signature)

    def _pass(self) -> Pass:
        found: Pass = getattr(import_module(f"lightcake_fast.kernels.{self.module}"), self.name)
        return found

    def _key(self, kind: Kind) -> tuple[str | None, int, str, bool]:
        if not self._pass().of_a_score:
            return None, kind.width, kind.rows, False
        return kind.score, kind.width, kind.read, self in BACKWARD and not kind.relations

    def _declared(self, kind: Kind) -> tuple[Any, tuple[Any, ...]]:
        """Return the function to compile and the types of its arguments."""
        *_, less = key = self._key(kind)
        function = self._pass().function(*key)
        code = function.py_func.__code__
        names = code.co_varnames[: code.co_argcount]
        return function, tuple(
            numba.types.none if less and name == "q" else _type(name, kind) for name in names
        )


FORWARD = (
    LayerPass("cpu_forward", "relation_pass", 3.0),
    LayerPass("cpu_merge", "merge_pass", 0.6),
    LayerPass("cpu_forward", "entity_pass", 1.7),
)
BACKWARD = (
    LayerPass("cpu_backward", "row_dot_pass", 0.3),
    LayerPass("cpu_backward", "relation_pass", 3.0),
    LayerPass("cpu_merge", "sum_pass", 0.3),
    LayerPass("cpu_backward", "entity_pass", 1.7),
)


def _type(name: str, kind: Kind) -> Any:
    element, dimensions = _TYPES[name]
    scalar = numba.from_dtype(np.dtype({"rows": kind.rows, "read": kind.read}.get(element, element)))
    return numba.types.Array(scalar, dimensions, "C") if dimensions else scalar


_seen = set[tuple[Kind, bool]]()


def compile_layer(
    score: str, width: int, rows: str, read: str, *, relations: bool, differentiated: bool
) -> None:
    """Compile the passes that a layer is about to use, in several processes if possible.

    Passes that are not compiled here are compiled at their first call.

    Args:
        score: as in ``context_layer``.
        width: width of the rows.
        rows: NumPy's name of the dtype of the rows.
        read: dtype of the entities that context triples read; "int16" stands for bfloat16.
        relations: whether relations have a context.
        differentiated: whether the backward is needed too.
    """
    kind = Kind(score, fixed_width(width), rows, read, relations)
    if (kind, differentiated) in _seen:
        return
    with compiling(), global_compiler_lock:  # other threads that need a pass wait here
        if (kind, differentiated) not in _seen and _processes() > 1 and _is_built_in(score):
            passes = FORWARD + BACKWARD if differentiated else FORWARD
            _compile_together([each for each in passes if each.is_missing(kind)], kind)
        _seen.add((kind, differentiated))


def compile_share(share: str) -> None:
    """Compile the passes that ``share`` (JSON) lists. This function runs in a helper process."""
    told = json.loads(share)
    for each in told["passes"]:
        LayerPass(*each).compile(Kind(*told["kind"]))


def _compile_together(missing: Sequence[LayerPass], kind: Kind) -> None:
    own, *shares = _shares(missing, _processes())
    with ExitStack() as stack:
        helpers = [stack.enter_context(_helper(share, kind)) for share in shares]
        for each in own:
            each.compile(kind)
        for helper in filter(None, helpers):
            with suppress(subprocess.TimeoutExpired):
                helper.wait(PATIENCE)


@contextmanager
def _helper(share: Sequence[LayerPass], kind: Kind) -> Iterator[subprocess.Popen[bytes] | None]:
    """Start a process that compiles a share, and stop it at exit. Yield None if no process can start."""
    told = json.dumps({"passes": share, "kind": kind})
    command = [os.fsdecode(get_executable()), "-c", _HELPER, told, *map(str, sys.path)]
    try:
        helper = subprocess.Popen(command, stdin=_NOWHERE, stdout=_NOWHERE, stderr=_NOWHERE)
    except (OSError, RuntimeError):  # RuntimeError: the interpreter is shutting down
        yield None
        return
    try:
        yield helper
    finally:
        helper.kill()
        helper.wait()


def _shares(missing: Sequence[LayerPass], processes: int) -> list[list[LayerPass]]:
    """Distribute the passes over the processes, this process first.

    The longest passes are assigned first, each to the process that finishes soonest.
    """
    shares: list[list[LayerPass]] = [[] for _ in range(processes)]
    done = [0.0] + [START] * (processes - 1)
    for each in sorted(missing, key=lambda one: one.seconds, reverse=True):
        soonest = done.index(min(done))
        shares[soonest].append(each)
        done[soonest] += each.seconds
    return [shares[0], *(share for share in shares[1:] if share)]


def _processes() -> int:
    """Return the number of processes to compile with: at most the cores and PyTorch's threads."""
    import torch  # not at the top, because helpers do not need to load torch

    if getattr(sys, "frozen", False) or not get_executable():
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, torch.get_num_threads(), MOST_PROCESSES)


def _is_built_in(score: str) -> bool:
    """Return whether helpers know the score."""
    return bool(getattr(SCORES[score], "__module__", None) == SCORES["distmult"].__module__)
