"""Rows that were cut into chunks, from their parts in the order of the chunks: the same on any threads."""

import math
from typing import Any

import numpy as np

from lightcake_fast.kernels.cpu_compiler import light_pass, next_task


@light_pass
def merge_pass(width: int) -> Any:
    """Softmax-weighted sums of cut rows, to which rows ``own`` are added, unless there are none.

    It goes by the total of a part: zero where the chunk has nothing live, NaN where it has a NaN among its
    scores, and then so is the row. ``norm`` gets the row's maximum, +inf without a live part, and one over
    its total.
    """

    def run(out, own, row_of, bounds, part, part_top, part_total, norm, tasks, counter):
        d = width if width > 0 else out.shape[1]
        real = out.dtype.type
        zero, low = real(0), real(-np.inf)
        n = next_task(counter)
        while n < tasks:
            row, first, last = row_of[n], bounds[n], bounds[n + 1]
            top, total = low, zero
            for p in range(first, last):
                top = max(top, part_top[p]) if part_total[p] != 0 else top
            for p in range(first, last):
                total += part_total[p] * math.exp(part_top[p] - top) if part_total[p] != 0 else zero
            scale = real(1) / total if total != 0 else zero
            for k in range(d):
                out[row, k] = own[row, k] if len(own) else zero
            for p in range(first, last):
                factor = math.exp(part_top[p] - top) * scale if part_total[p] != 0 else zero
                for k in range(d):
                    out[row, k] += factor * part[p, k]
            norm[row, 0], norm[row, 1] = top if total != 0 else real(np.inf), scale
            n = next_task(counter)

    return run


@light_pass
def sum_pass(width: int) -> Any:
    """Plain sums of cut rows' parts; ``own`` rows are added, unless there are none."""

    def run(out, own, row_of, bounds, part, tasks, counter):
        d = width if width > 0 else out.shape[1]
        zero = out.dtype.type(0)
        n = next_task(counter)
        while n < tasks:
            row = row_of[n]
            for k in range(d):
                out[row, k] = own[row, k] if len(own) else zero
            for p in range(bounds[n], bounds[n + 1]):
                for k in range(d):
                    out[row, k] += part[p, k]
            n = next_task(counter)

    return run
