"""The general segment op in Numba: softmax over segments times gathered rows, and its gradients.

    out_m = sum w_e v_i(e)      w = softmax of s over the segment
    ds_e  = w_e (<g_m, v_i(e)> - D_m)      D_m = <g_m, out_m>
    dv_i  = sum w_e g_m(e) over the entries that gather row i

No E x d array; every sum has a fixed order.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightcake_fast.kernels.cpu_compiler import Pass, next_task
from lightcake_fast.kernels.cpu_merge import merge_pass, sum_pass
from lightcake_fast.kernels.segment_plan import TASK, SegmentPlan


@Pass
def softmax_pass(width: int) -> Any:
    """The weighted sum over each segment, by a softmax whose weights are never stored."""

    def run(s, values, index, chunk, out, lse, part, part_top, part_total, tasks, counter):
        d = width if width > 0 else values.shape[1]
        real = values.dtype.type
        zero, low = real(0), real(-np.inf)
        n = next_task(counter)
        while n < tasks:
            for p in range(n * TASK, min((n + 1) * TASK, len(chunk))):
                start, length, row, slot = chunk[p, 0], chunk[p, 1], chunk[p, 2], chunk[p, 3]
                target, to = (out, row) if slot < 0 else (part, slot)
                end, top, total = start + length, low, zero
                for e in range(start, end):
                    top = max(top, s[e])
                top = top if top > low else zero  # all left out, or none of them a number
                for k in range(d):
                    target[to, k] = zero
                for e0 in range(start, end, 4):
                    # past the end the last entry is taken again, with weight zero
                    e1, e2, e3 = min(e0 + 1, end - 1), min(e0 + 2, end - 1), min(e0 + 3, end - 1)
                    i0, i1, i2, i3 = index[e0], index[e1], index[e2], index[e3]
                    w0 = math.exp(s[e0] - top)
                    w1 = math.exp(s[e1] - top) if e0 + 1 < end else zero
                    w2 = math.exp(s[e2] - top) if e0 + 2 < end else zero
                    w3 = math.exp(s[e3] - top) if e0 + 3 < end else zero
                    total += w0 + w1 + w2 + w3
                    for k in range(d):
                        target[to, k] += (
                            w0 * values[i0, k] + w1 * values[i1, k] + w2 * values[i2, k] + w3 * values[i3, k]
                        )
                if slot >= 0:
                    part_top[slot], part_total[slot] = top, total
                else:
                    factor = real(1) / total if total != 0 else zero
                    for k in range(d):
                        out[row, k] *= factor
                    lse[row] = top + math.log(total) if total != 0 else real(np.inf)
            n = next_task(counter)

    return run


@Pass
def slope_pass(width: int) -> Any:
    """Each entry's weight and ds: one dot product an entry."""

    def run(g, s, lse, out, values, index, chunk, w, slope, tasks, counter):
        d = width if width > 0 else values.shape[1]
        zero = values.dtype.type(0)
        n = next_task(counter)
        while n < tasks:
            for p in range(n * TASK, min((n + 1) * TASK, len(chunk))):
                start, row = chunk[p, 0], chunk[p, 2]
                end, row_dot = start + chunk[p, 1], zero
                for k in range(d):
                    row_dot += g[row, k] * out[row, k]
                for e0 in range(start, end, 4):
                    e1, e2, e3 = min(e0 + 1, end - 1), min(e0 + 2, end - 1), min(e0 + 3, end - 1)
                    i0, i1, i2, i3 = index[e0], index[e1], index[e2], index[e3]
                    x0, x1, x2, x3 = zero, zero, zero, zero
                    for k in range(d):
                        x0 += g[row, k] * values[i0, k]
                        x1 += g[row, k] * values[i1, k]
                        x2 += g[row, k] * values[i2, k]
                        x3 += g[row, k] * values[i3, k]
                    w[e0], w[e1] = math.exp(s[e0] - lse[row]), math.exp(s[e1] - lse[row])
                    w[e2], w[e3] = math.exp(s[e2] - lse[row]), math.exp(s[e3] - lse[row])
                    slope[e0], slope[e1] = w[e0] * (x0 - row_dot), w[e1] * (x1 - row_dot)
                    slope[e2], slope[e3] = w[e2] * (x2 - row_dot), w[e3] * (x3 - row_dot)
            n = next_task(counter)

    return run


@Pass
def gather_pass(width: int) -> Any:
    """The gradient dv of each row, over the entries that gather it."""

    def run(g, w, entry, segment, chunk, out, part, tasks, counter):
        d = width if width > 0 else g.shape[1]
        zero = g.dtype.type(0)
        n = next_task(counter)
        while n < tasks:
            for p in range(n * TASK, min((n + 1) * TASK, len(chunk))):
                start, row, slot = chunk[p, 0], chunk[p, 2], chunk[p, 3]
                end = start + chunk[p, 1]
                target, to = (out, row) if slot < 0 else (part, slot)
                for k in range(d):
                    target[to, k] = zero
                for e0 in range(start, end, 4):
                    e1, e2, e3 = min(e0 + 1, end - 1), min(e0 + 2, end - 1), min(e0 + 3, end - 1)
                    m0, m1, m2, m3 = segment[e0], segment[e1], segment[e2], segment[e3]
                    w0 = w[entry[e0]]
                    w1 = w[entry[e1]] if e0 + 1 < end else zero
                    w2 = w[entry[e2]] if e0 + 2 < end else zero
                    w3 = w[entry[e3]] if e0 + 3 < end else zero
                    for k in range(d):
                        target[to, k] += w0 * g[m0, k] + w1 * g[m1, k] + w2 * g[m2, k] + w3 * g[m3, k]
            n = next_task(counter)

    return run


def forward(s: Tensor, values: Tensor, plan: SegmentPlan, num_segments: int) -> tuple[Tensor, Tensor]:
    """The sums [M, d] and the log-sum-exps [M], +inf for a segment without a live entry.

    Scores and values are contiguous and of one type.
    """
    width, chunks = values.shape[1], len(plan.chunk)
    out, lse = values.new_empty(num_segments, width), values.new_empty(num_segments)
    part, top, total = (values.new_empty(len(plan.part_row), *shape) for shape in ((width,), (), ()))
    softmax_pass(width, -(-chunks // TASK), s, values, plan.index, plan.chunk, out, lse, part, top, total)
    own = out.new_empty(0, width)
    merge_pass(width, len(plan.cut_row), out, own, plan.cut_row, plan.cut_part, part, top, total, lse)
    return out, lse


def backward(
    g: Tensor, s: Tensor, values: Tensor, out: Tensor, lse: Tensor, plan: SegmentPlan
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients ds [E] from the sums alone, dv [N, d] and the weights [E]."""
    width, chunks, index_chunks = values.shape[1], len(plan.chunk), len(plan.index_chunk)
    w, slope, grad_values = torch.empty_like(s), torch.empty_like(s), torch.empty_like(values)
    slope_pass(width, -(-chunks // TASK), g, s, lse, out, values, plan.index, plan.chunk, w, slope)
    part = values.new_empty(len(plan.index_part_row), width)
    gather_pass(
        width, -(-index_chunks // TASK),
        g, w, plan.entry, plan.entry_segment, plan.index_chunk, grad_values, part,
    )  # fmt: skip
    own = values.new_empty(0, width)
    sum_pass(width, len(plan.index_cut_row), grad_values, own, plan.index_cut_row, plan.index_cut_part, part)
    return slope, grad_values, w
