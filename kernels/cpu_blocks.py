"""The block of a score for Numba: compiled functions, and the tuples of columns that they work on."""

import functools
import hashlib
import math
import re
from collections.abc import Callable
from types import BuiltinFunctionType, CodeType, FunctionType
from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.core.dispatcher import Dispatcher
from numba.extending import overload, register_jitable

from lightcake_fast.kernels.cpu_math import FAST, number
from lightcake_fast.kernels.scores import SCORES, has_planes

Function = Callable[..., Any]


class NumbaBlock(NamedTuple):
    """Functions that the passes call. ``values`` are tuples of ``columns`` numbers.

    A pass first assigns the functions to local names, because Numba compiles names and not attributes.
    """

    name: str  # name of the score, used in symbols and files
    digest: str | None  # digest of the code of the block's functions; None if it cannot be computed
    columns: int
    planes: bool  # each relation row is followed by a normal
    psi_term: Function
    psi: Function  # psi(total)
    slope: Function  # (delta, psi): converts dL/dpsi to the factor of the gradients
    phi_ent: Function
    phi_rel: Function
    grad_h: Function
    grad_r: Function
    grad_t: Function
    at: Function  # (rows, i, k): entry k of row i
    lean: Function  # (values, rows, i, k, by): values; with planes, plus ``by`` times the normal of row i
    add: Function  # (rows, i, k, values): adds the values to entry k of row i
    plus: Function  # (values, values)
    times: Function  # (weight, values)
    dot: Function  # (values, values): returns a number
    zeros: Function  # (zero): values that are all this number

    @classmethod
    def of(cls, score: str, width: int) -> "NumbaBlock":
        """Return the block of a score for rows of a fixed width, or of any width (0)."""
        return _made(re.sub(r"\W", "_", score), SCORES[score], width)


_compiled_within = register_jitable(**FAST)


@functools.cache
def _jitable(function: Function) -> Function:
    """Make a function of a block, and the functions that it calls, available to compiled callers."""
    for used in _used(function):
        if isinstance(used, FunctionType):
            _jitable(used)
    return _compiled_within(function)  # type: ignore[no-any-return]


@functools.cache
def _made(name: str, block: Any, width: int) -> NumbaBlock:
    """Build a block once for all passes: Numba compiles a function again for each new function object."""
    said = ("psi_term", "phi_ent", "phi_rel", "grad_h", "grad_r", "grad_t")
    made = {
        **{name: _of_the_rows_type(getattr(block, name)) for name in said if _widens(getattr(block, name))},
        "psi": _psi(_jitable(block.psi)),
        "slope": _slope(block.psi_slope and _jitable(block.psi_slope)),
        **{1: _one_column, 2: _two_columns}[block.columns](width),
    }
    made["lean"] = _lean(has_planes(block), width)
    for function_name, function in made.items():  # two functions must not share a symbol
        function.__qualname__ = f"{name}_{width}_{function_name}"
    return NumbaBlock(
        name=name,
        digest=digest_of(*(getattr(block, name) for name in (*said, "psi", "psi_slope"))),
        columns=block.columns,
        planes=has_planes(block),
        **{name: _jitable(getattr(block, name)) for name in said if name not in made},
        **{name: _compiled_within(function) for name, function in made.items()},
    )


def _widens(function: Function) -> bool:
    """Return whether a function of a block, or a function that it calls, contains a float constant."""
    used = _used(function)
    numbers = any(isinstance(thing, float) for thing in (*function.__code__.co_consts, *used))
    return numbers or any(_widens(inner) for inner in used if isinstance(inner, FunctionType))


def _of_the_rows_type(function: Function) -> Function:
    """Wrap a function so that its result has the dtype of the rows. A float constant would widen it.

    The dtype is read from the last argument, t.
    """
    compiled = _jitable(function)
    return lambda *arguments: typed(compiled(*arguments), arguments[-1][0])


def typed(values, number):
    """Convert a number or a tuple of columns to the dtype of ``number``."""
    return values


@overload(typed, jit_options=FAST)
def _typed(values, number):
    real = number
    if not isinstance(values, types.BaseTuple):
        return lambda values, number: real(values)
    if len(values) == 1:
        return lambda values, number: (real(values[0]),)
    return lambda values, number: (real(values[0]), real(values[1]))


def _psi(of_total: Function) -> Function:
    return lambda total: of_total(total, math.sqrt)


def _slope(factor: Function | None) -> Function:
    if factor is None:
        return lambda delta, psi: delta
    return lambda delta, psi: delta * factor(psi, where)


def where(condition: Any, value: Any, otherwise: Any) -> Any:
    """``value`` where the condition holds.

    The result has the dtype of ``otherwise``, so no constant widens it.
    """
    return value if condition else otherwise


@overload(where, jit_options=FAST)
def _where(condition: Any, value: Any, otherwise: Any) -> Any:
    real = otherwise

    def select(condition: Any, value: Any, otherwise: Any) -> Any:
        return real(value) if condition else otherwise

    return select


def _one_column(width: int) -> dict[str, Function]:
    def add(rows, i, k, values):
        rows[i, k] += values[0]

    return {
        "at": lambda rows, i, k: (number(rows, i, k),),
        "add": add,
        "plus": lambda a, b: (a[0] + b[0],),
        "times": lambda weight, values: (weight * values[0],),
        "dot": lambda a, b: a[0] * b[0],
        "zeros": lambda zero: (zero,),
    }


def _two_columns(width: int) -> dict[str, Function]:
    half = width // 2
    if half:

        def at(rows, i, k):
            return number(rows, i, k), number(rows, i, k + half)

        def add(rows, i, k, values):
            rows[i, k] += values[0]
            rows[i, k + half] += values[1]
    else:

        def at(rows, i, k):
            return number(rows, i, k), number(rows, i, k + rows.shape[1] // 2)

        def add(rows, i, k, values):
            rows[i, k] += values[0]
            rows[i, k + rows.shape[1] // 2] += values[1]

    return {
        "at": at,
        "add": add,
        "plus": lambda a, b: (a[0] + b[0], a[1] + b[1]),
        "times": lambda weight, values: (weight * values[0], weight * values[1]),
        "dot": lambda a, b: a[0] * b[0] + a[1] * b[1],
        "zeros": lambda zero: (zero, zero),
    }


def _lean(planes: bool, width: int) -> Function:
    if not planes:
        return lambda values, rows, i, k, by: values
    if not width:
        return lambda values, rows, i, k, by: (values[0] + by * normal(rows, i, k, rows.shape[1] // 2),)
    return lambda values, rows, i, k, by: (values[0] + by * normal(rows, i, k, width),)


@_compiled_within
def normal(relations, i, k, width):
    """Entry k of the normal of relation i. The relation row is [r | normal]."""
    return relations[i, k + width]


@_compiled_within
def along(x, i, relations, row, width):
    """Dot product of the entity row i and the normal of a relation."""
    total = relations.dtype.type(0)
    for k in range(width):
        total += number(x, i, k) * normal(relations, row, k, width)
    return total


@_compiled_within
def own_products(relations, row, width):
    """<w, w> and <r, w> of a relation row [r | w]."""
    square, product = relations.dtype.type(0), relations.dtype.type(0)
    for k in range(width):
        w = normal(relations, row, k, width)
        square += w * w
        product += relations[row, k] * w
    return square, product


@_compiled_within
def along_from(x, i, j, relations, row, width):
    """Dot product of (row j - row i) and the normal of a relation."""
    total = relations.dtype.type(0)
    for k in range(width):
        total += (number(x, j, k) - number(x, i, k)) * normal(relations, row, k, width)
    return total


def digest_of(*functions: Any) -> str | None:
    """Digest of functions: their code and the constants and functions that they use.

    Returns:
        None if a function uses any other object, because a change of that object would not be seen. Then no
        machine code is kept on disk.
    """
    digest, seen = hashlib.sha256(), set[int]()

    def add(thing: Any) -> bool:
        if thing is None or isinstance(thing, (bool, int, float, complex, str, bytes, np.generic)):
            digest.update(repr(thing).encode())
        elif isinstance(thing, tuple):
            digest.update(b"(%d" % len(thing))
            return all(map(add, thing))
        elif isinstance(thing, CodeType):
            return add((thing.co_code, thing.co_names, thing.co_consts, thing.co_varnames, thing.co_freevars))
        elif isinstance(thing, Dispatcher):
            return add(thing.py_func)
        elif isinstance(thing, FunctionType):
            if id(thing) in seen:
                return True
            seen.add(id(thing))
            return add((thing.__code__, thing.__defaults__, *_used(thing)))
        elif isinstance(thing, (BuiltinFunctionType, np.ufunc)) or thing is math or thing is np:
            digest.update(thing.__name__.encode())
        else:
            return False
        return True

    return digest.hexdigest() if all(map(add, functions)) else None


def _used(function: Any) -> list[Any]:
    """Return the objects that a function reads from its closure and its module."""
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    return cells + [function.__globals__[n] for n in _names(function.__code__) if n in function.__globals__]


def _names(code: CodeType) -> list[str]:
    """Return the names that the code of a function and of its inner functions looks up."""
    inner = [name for const in code.co_consts if isinstance(const, CodeType) for name in _names(const)]
    return [*code.co_names, *inner]
