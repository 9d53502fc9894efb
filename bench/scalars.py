"""The scalars that steer a kernel, for all its programs at once: what is known of them and how to reckon."""

import ast
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Array = npt.NDArray[Any]


class Unknown:
    """Data, or a block of numbers."""


UNKNOWN = Unknown()


@dataclass(frozen=True)
class Pointer:
    """Into a tensor whose values may be loaded; None where they are data."""

    values: Array | None
    offset: Any  # a number, or one for each program


Known = Unknown | Pointer | np.ndarray  # what has no attributes in a kernel's source

_OPERATIONS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
}


def parameter(value: Any) -> Any:
    """What is known of a kernel's argument: numbers, and the values of integer tensors."""
    if not isinstance(value, torch.Tensor):
        return value
    return Pointer(None if value.is_floating_point() else value.reshape(-1).numpy(), 0)


def constant(value: Any) -> Any:
    """The value of a compile-time constant."""
    return value.value if type(value).__name__ == "constexpr" else value


def apply(op: ast.AST, *values: Any) -> Any:
    """An operator of the source on values."""
    if isinstance(op, ast.Is | ast.IsNot):
        return _OPERATIONS[type(op)](*values)
    if isinstance(op, ast.And | ast.Or):
        return _logical(isinstance(op, ast.Or), *values)
    if any(isinstance(value, Unknown) for value in values):
        return UNKNOWN
    if isinstance(op, ast.Not):
        return np.logical_not(values[0]) if isinstance(values[0], np.ndarray) else not values[0]
    if any(isinstance(value, Pointer) for value in values):
        return _shifted(*values) if isinstance(op, ast.Add) else UNKNOWN
    return _OPERATIONS[type(op)](*values)


def _logical(either: bool, left: Any, right: Any) -> Any:
    """``or`` and ``and``: settled by one side where that is a compile-time constant."""
    for value in (left, right):
        if not isinstance(value, Known) and bool(value) == either:
            return either
    if isinstance(left, Unknown | Pointer) or isinstance(right, Unknown | Pointer):
        return UNKNOWN
    if not isinstance(left, np.ndarray) and not isinstance(right, np.ndarray):
        return left or right if either else left and right
    return (np.logical_or if either else np.logical_and)(left, right)


def _shifted(left: Any, right: Any) -> Pointer:
    pointer, distance = (left, right) if isinstance(left, Pointer) else (right, left)
    return Pointer(pointer.values, pointer.offset + distance)


def call_builtin(name: str, values: list[Any], active: Array) -> Any:
    """A function of Triton's language or Python's, by name, on scalars."""
    if name == "load" and len(values) == 1:
        return _load(values[0], active)
    if any(isinstance(value, Unknown | Pointer) for value in values):
        return UNKNOWN
    match name, values:
        case "cdiv", [value, by]:
            return -(-value // by)
        case "minimum" | "min", [left, right]:
            return np.minimum(left, right)
        case "maximum" | "max", [left, right]:
            return np.maximum(left, right)
    return UNKNOWN


def _load(pointer: Any, active: Array) -> Any:
    if not isinstance(pointer, Pointer) or pointer.values is None:
        return UNKNOWN
    return pointer.values[np.where(active, pointer.offset, 0)]


def merged(active: Array, value: Any, before: Any) -> Any:
    """``value`` in the active programs and ``before`` in the others."""
    numbers = (int, float, np.number, np.ndarray)
    if value is before or before is None or active.all():
        return value
    if isinstance(value, numbers) and isinstance(before, numbers):
        return np.where(active, value, before)
    if isinstance(value, tuple) and isinstance(before, tuple) and len(value) == len(before):
        return tuple(merged(active, v, b) for v, b in zip(value, before, strict=True))
    return value if isinstance(value, str | Pointer) and value == before else UNKNOWN
