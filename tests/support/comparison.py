"""Comparisons for all tests: one table of tolerances, with errors relative to a float64 expectation."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch


class Tolerance(NamedTuple):
    """Bounds of `|actual - expected| <= relative * |expected| + scaled * max |expected|`."""

    relative: float
    scaled: float


# The scaled part covers sums that cancel. Their error depends on the size of the terms, not of the small
# result.
TOLERANCES = {
    torch.float64: Tolerance(1e-10, 1e-12),
    torch.float32: Tolerance(1e-5, 2e-6),
    torch.float16: Tolerance(2e-3, 1e-3),
    torch.bfloat16: Tolerance(1.6e-2, 8e-3),
}


def assert_close(
    actual: torch.Tensor,
    expected: torch.Tensor,
    *,
    name: str = "tensor",
    dtype: torch.dtype | None = None,
    slack: float = 1.0,
) -> None:
    """Assert that `actual` equals `expected` to the precision of its dtype.

    Args:
        actual: The result under test, of any shape. NaN or infinity in it fails.
        expected: Same shape, at least as precise as `actual`: normally the float64 reference.
        name: Name of the tensor in the failure message.
        dtype: Dtype of the tolerance, if it differs from the dtype of `actual` (for example a float64 result
            computed from float32 inputs).
        slack: Factor on both bounds, for a chain of operations longer than one layer.
    """
    tolerance = TOLERANCES[actual.dtype if dtype is None else dtype]
    wide = expected.detach().to(device=actual.device, dtype=torch.float64)
    scale = wide.abs().max().item() if wide.numel() else 0.0
    torch.testing.assert_close(
        actual.detach().to(torch.float64),
        wide,
        rtol=slack * tolerance.relative,
        atol=slack * tolerance.scaled * scale,
        msg=lambda text: f"{name}, {actual.dtype}: {text}",
    )


def assert_bitwise_equal(actual: torch.Tensor, expected: torch.Tensor, *, name: str = "tensor") -> None:
    """Assert that two tensors of one dtype have equal values in every bit (NaN equals NaN)."""
    torch.testing.assert_close(
        actual, expected, rtol=0.0, atol=0.0, equal_nan=True, msg=lambda text: f"{name}: {text}"
    )


def assert_as_precise_as(
    actual: torch.Tensor, low_precision: torch.Tensor, expected: torch.Tensor, *, name: str = "tensor"
) -> None:
    """Assert that the error of a 16-bit result is at most twice the error of plain PyTorch in the same dtype.

    Args:
        actual: The result under test, of any shape.
        low_precision: Same shape; the reference computed in the dtype of `actual`.
        expected: Same shape; the reference computed in float32 or float64 from the same inputs.
    """
    wide = expected.detach().to(torch.float64)
    scale = wide.abs().max().item() if wide.numel() else 0.0
    allowed = 2.0 * (low_precision.detach().to(torch.float64) - wide).abs()
    allowed += TOLERANCES[actual.dtype].scaled * scale
    error = (actual.detach().to(torch.float64) - wide).abs()
    # This form makes a NaN error exceed the bound.
    over = ~(error <= allowed)
    assert not over.any(), (
        f"{name}, {actual.dtype}: {int(over.sum())} of {over.numel()} values err by more than twice the "
        f"plain {low_precision.dtype} result; largest excess {(error - allowed)[over].max().item():.3g}"
    )


def assert_same_bits(compute: Callable[[], Iterable[torch.Tensor]], threads: int) -> None:
    """Assert that two calls with this number of PyTorch threads give the same bits."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        for a, b in zip(compute(), compute(), strict=True):
            assert_bitwise_equal(a, b)
    finally:
        torch.set_num_threads(before)
