"""Arithmetic of the Numba passes: an exponential and 16-bit numbers that LLVM can vectorize."""

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

# LLVM may reorder sums and fuse multiplies. It must keep infinities and NaN, because masked scores are -inf.
FAST: dict[str, Any] = {
    "fastmath": {"reassoc", "contract", "arcp", "nsz", "afn"},
    "error_model": "numpy",
    "boundscheck": False,
    "no_cfunc_wrapper": True,  # no C code calls the passes; this saves a tenth of the compile time
}

# Source: the coefficients of expf in Cephes (S. Moshier), for |r| <= ln(2) / 2.
C6, C5, C4, C3, C2, C1 = (
    np.float32(c)
    for c in (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5)
)
LOG2_E, LN_2, HALF, ONE = (np.float32(c) for c in (1.44269504088896341, 0.69314718055994531, 0.5, 1.0))
LEAST = np.float32(-88)  # here k = -127, and the power of two below is zero


def exp(x: Any) -> Any:
    """e^x for x <= 88 in float32, with an error of at most 4e-7 (2e-7 from x = -20).

    The result is zero for x < -87.7 and for -inf. NaN gives NaN.

    A scalar call of libm takes ten times as long as one call on sixteen vector lanes. With libm the weights
    would take as much time as the rows.
    """
    return math.exp(x)


@overload(exp, jit_options=FAST)
def _exp(x: Any) -> Any:
    def precise(x: Any) -> Any:
        return math.exp(x)

    def vectorizable(x: Any) -> Any:
        x = LEAST if x < LEAST else x
        k = np.floor(x * LOG2_E + HALF)
        r = x - k * LN_2
        tail = (((((C6 * r + C5) * r + C4) * r + C3) * r + C2) * r + C1) * r * r
        return (tail + r + ONE) * _power_of_two(k)

    return vectorizable if x == types.float32 else precise


@intrinsic
def _power_of_two(typing_context: Any, k: Any) -> Any:
    """2^k for an integer k from -126 to 127, and zero for -127."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        integer = ir.IntType(32)
        exponent = builder.add(builder.fptosi(arguments[0], integer), integer(127))
        return builder.bitcast(builder.shl(exponent, integer(23)), ir.FloatType())

    return types.float32(types.float32), generate


def number(rows: Any, i: Any, k: Any) -> Any:
    """Entry k of row i. Numba has no bfloat16: such rows arrive as int16 and are returned as float32.

    A bfloat16 number is the upper half of a float32 number, so a shift converts it on any processor.
    """
    return rows[i, k]


@overload(number, jit_options=FAST)
def _number(rows: Any, i: Any, k: Any) -> Any:
    def as_it_is(rows: Any, i: Any, k: Any) -> Any:
        return rows[i, k]

    def widened(rows: Any, i: Any, k: Any) -> Any:
        return _with_upper_half(rows[i, k])

    return widened if rows.dtype == types.int16 else as_it_is


@intrinsic
def _with_upper_half(typing_context: Any, half: Any) -> Any:
    """The float32 number with these upper 16 bits and a lower half of zeros."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        integer = ir.IntType(32)
        return builder.bitcast(builder.shl(builder.zext(arguments[0], integer), integer(16)), ir.FloatType())

    return types.float32(types.int16), generate
