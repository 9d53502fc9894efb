"""Kernels whose control flow the gauge must follow: loops in loops, branches, helpers called twice."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import triton
import triton.language as tl


@triton.jit
def add_row(total, values_ptr, start, end, BLOCK: tl.constexpr):
    for k in range(start, end, BLOCK):
        lane = k + tl.arange(0, BLOCK)
        total += tl.load(values_ptr + lane, mask=lane < end, other=0.0)
    return total


@triton.jit
def rows_of_a_program(
    values_ptr, bounds_ptr, kind_ptr, out_ptr, rows,
    FLAG: tl.constexpr, SPAN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    p = tl.program_id(0)
    if p * SPAN >= rows:
        return
    total = tl.zeros([BLOCK], tl.float32)
    for row in range(p * SPAN, tl.minimum((p + 1) * SPAN, rows)):
        start, end = tl.load(bounds_ptr + row), tl.load(bounds_ptr + row + 1)
        kind = tl.load(kind_ptr + row)
        if kind == 0:
            total = add_row(total, values_ptr, start, end, BLOCK)
        elif kind == 1:
            total = add_row(total, values_ptr, start, start + (end - start) // 2, BLOCK)
        elif tl.max(total, 0) > 1e9:
            total = total * 0.5
        for _ in tl.static_range(2):
            if FLAG:
                total += 1.0
    left = rows - p
    while left > 3:
        left = left // 2
        total += left
    tl.store(out_ptr + p * BLOCK + tl.arange(0, BLOCK), total)
