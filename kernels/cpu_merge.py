"""Merge the parts of rows that were cut into chunks.

The parts are added in the order of the chunks, so the result does not depend on the number of threads.
"""

import math
from typing import Any

import numpy as np

from lightcake_fast.kernels.cpu_compiler import light_pass, next_task


@light_pass
def merge_pass(width: int) -> Any:
    """Softmax-weighted sums of cut rows. The rows ``own`` are added if there are any.

    The total of a part decides whether the part counts. It is zero if the chunk has no live triple. It is NaN
    if the chunk has a NaN score, and then the row is NaN too. ``norm`` receives the maximum of the row (+inf
    without a live part) and one over its total.
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
    """Plain sums of the parts of cut rows. The rows ``own`` are added if there are any."""

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
