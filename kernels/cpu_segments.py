"""The general segment op in Numba: softmax over segments times gathered rows, and its gradients.

    out_m = sum w_e v_i(e)      w = softmax of s over the segment
    ds_e  = w_e (<g_m, v_i(e)> - D_m)      D_m = <g_m, out_m>
    dv_i  = sum w_e g_m(e) over the entries that gather row i

With H heads, row i of a table consists of H rows of d columns, starting at row i * H. Each entry has H
scores. A thread processes the heads of a chunk one after another, while the rows are in the cache. No array
has shape E x d, and every sum has a fixed order.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightcake_fast.kernels.cpu_compiler import Pass, next_task
from lightcake_fast.kernels.cpu_merge import merge_pass, sum_pass
from lightcake_fast.kernels.segment_plan import TASK, SegmentPlan, cut_heads


@Pass
def softmax_pass(width: int) -> Any:
    """The weighted sum over each segment. The softmax weights are never stored."""

    def run(s, values, index, chunk, out, norm, part, part_top, part_total, heads, slots, tasks, counter):
        d = width if width > 0 else values.shape[1]
        real = values.dtype.type
        zero, low = real(0), real(-np.inf)
        n = next_task(counter)
        while n < tasks:
            for piece in range(n * TASK * heads, min((n + 1) * TASK, len(chunk)) * heads):
                p, h = piece // heads, piece % heads
                start, length, row, slot = chunk[p, 0], chunk[p, 1], chunk[p, 2], chunk[p, 3]
                target, to = (out, row * heads + h) if slot < 0 else (part, h * slots + slot)
                end, top, total = start + length, low, zero
                for e in range(start, end):
                    top = max(top, s[e, h])
                top = top if top > low else zero  # all scores are masked or NaN
                for k in range(d):
                    target[to, k] = zero
                for e0 in range(start, end, 4):
                    # past the end the loop reads the last entry again, with weight zero
                    e1, e2, e3 = min(e0 + 1, end - 1), min(e0 + 2, end - 1), min(e0 + 3, end - 1)
                    i0, i1 = index[e0] * heads + h, index[e1] * heads + h
                    i2, i3 = index[e2] * heads + h, index[e3] * heads + h
                    w0 = math.exp(s[e0, h] - top)
                    w1 = math.exp(s[e1, h] - top) if e0 + 1 < end else zero
                    w2 = math.exp(s[e2, h] - top) if e0 + 2 < end else zero
                    w3 = math.exp(s[e3, h] - top) if e0 + 3 < end else zero
                    total += w0 + w1 + w2 + w3
                    for k in range(d):
                        target[to, k] += (
                            w0 * values[i0, k] + w1 * values[i1, k] + w2 * values[i2, k] + w3 * values[i3, k]
                        )
                if slot >= 0:
                    part_top[to], part_total[to] = top, total
                else:
                    factor = real(1) / total if total != 0 else zero
                    for k in range(d):
                        out[to, k] *= factor
                    norm[to, 0], norm[to, 1] = top if total != 0 else real(np.inf), factor
            n = next_task(counter)

    return run


@Pass
def slope_pass(width: int) -> Any:
    """The weight and ds of each entry, with one dot product per entry."""

    def run(g, s, norm, out, values, index, chunk, w, slope, heads, tasks, counter):
        d = width if width > 0 else values.shape[1]
        zero = values.dtype.type(0)
        n = next_task(counter)
        while n < tasks:
            for piece in range(n * TASK * heads, min((n + 1) * TASK, len(chunk)) * heads):
                p, h = piece // heads, piece % heads
                start, row = chunk[p, 0], chunk[p, 2] * heads + h
                end, row_dot = start + chunk[p, 1], zero
                for k in range(d):
                    row_dot += g[row, k] * out[row, k]
                for e0 in range(start, end, 4):
                    e1, e2, e3 = min(e0 + 1, end - 1), min(e0 + 2, end - 1), min(e0 + 3, end - 1)
                    i0, i1 = index[e0] * heads + h, index[e1] * heads + h
                    i2, i3 = index[e2] * heads + h, index[e3] * heads + h
                    x0, x1, x2, x3 = zero, zero, zero, zero
                    for k in range(d):
                        x0 += g[row, k] * values[i0, k]
                        x1 += g[row, k] * values[i1, k]
                        x2 += g[row, k] * values[i2, k]
                        x3 += g[row, k] * values[i3, k]
                    top, factor = norm[row, 0], norm[row, 1]
                    w0, w1 = math.exp(s[e0, h] - top) * factor, math.exp(s[e1, h] - top) * factor
                    w2, w3 = math.exp(s[e2, h] - top) * factor, math.exp(s[e3, h] - top) * factor
                    w[e0, h], w[e1, h], w[e2, h], w[e3, h] = w0, w1, w2, w3
                    # if one entry has all the weight, both terms are equal except for rounding
                    slope[e0, h] = w0 * (x0 - row_dot) if w0 != 1 else zero
                    slope[e1, h] = w1 * (x1 - row_dot) if w1 != 1 else zero
                    slope[e2, h] = w2 * (x2 - row_dot) if w2 != 1 else zero
                    slope[e3, h] = w3 * (x3 - row_dot) if w3 != 1 else zero
            n = next_task(counter)

    return run


@Pass
def gather_pass(width: int) -> Any:
    """The gradient dv of each row, summed over the entries that gather the row."""

    def run(g, w, entry, segment, chunk, out, part, heads, slots, tasks, counter):
        d = width if width > 0 else g.shape[1]
        zero = g.dtype.type(0)
        n = next_task(counter)
        while n < tasks:
            for piece in range(n * TASK * heads, min((n + 1) * TASK, len(chunk)) * heads):
                p, h = piece // heads, piece % heads
                start, row, slot = chunk[p, 0], chunk[p, 2], chunk[p, 3]
                end = start + chunk[p, 1]
                target, to = (out, row * heads + h) if slot < 0 else (part, h * slots + slot)
                for k in range(d):
                    target[to, k] = zero
                for e0 in range(start, end, 4):
                    e1, e2, e3 = min(e0 + 1, end - 1), min(e0 + 2, end - 1), min(e0 + 3, end - 1)
                    m0, m1 = segment[e0] * heads + h, segment[e1] * heads + h
                    m2, m3 = segment[e2] * heads + h, segment[e3] * heads + h
                    w0 = w[entry[e0], h]
                    w1 = w[entry[e1], h] if e0 + 1 < end else zero
                    w2 = w[entry[e2], h] if e0 + 2 < end else zero
                    w3 = w[entry[e3], h] if e0 + 3 < end else zero
                    for k in range(d):
                        target[to, k] += w0 * g[m0, k] + w1 * g[m1, k] + w2 * g[m2, k] + w3 * g[m3, k]
            n = next_task(counter)

    return run


def forward(s: Tensor, values: Tensor, plan: SegmentPlan, num_segments: int) -> tuple[Tensor, Tensor]:
    """Compute the sums and the softmax of each segment.

    Args:
        s: scores [E, H], contiguous.
        values: rows [N, H, d], contiguous, same dtype as the scores.
        plan: the order of work.
        num_segments: the number of segments, M.

    Returns:
        The sums [M, H, d], and a tensor [M, H, 2]. It has two numbers per segment and head: the maximum of
        the scores, and 1 / sum exp(score - maximum). The maximum is +inf if all scores of the segment are
        masked, or if the segment is empty.
    """
    (heads, width), chunks, slots = values.shape[1:], len(plan.chunk), len(plan.part_row)
    out, norm = values.new_empty(num_segments * heads, width), values.new_empty(num_segments * heads, 2)
    part, top, total = (values.new_empty(slots * heads, *shape) for shape in ((width,), (), ()))
    softmax_pass(
        width, -(-chunks // TASK),
        s, values.view(-1, width), plan.index, plan.chunk, out, norm, part, top, total, heads, slots,
    )  # fmt: skip
    cut_row, cut_part = cut_heads(plan.cut_row, plan.cut_part, slots, heads)
    own = out.new_empty(0, width)
    merge_pass(width, len(cut_row), out, own, cut_row, cut_part, part, top, total, norm)
    return out.view(num_segments, heads, width), norm.view(num_segments, heads, 2)


def backward(
    g: Tensor, s: Tensor, values: Tensor, out: Tensor, norm: Tensor, plan: SegmentPlan
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients ds [E, H] (through the sums only) and dv [N, H, d], and the weights [E, H]."""
    (heads, width), chunks, index_chunks = values.shape[1:], len(plan.chunk), len(plan.index_chunk)
    g, rows = g.view(-1, width), values.view(-1, width)
    w, slope, grad_rows = torch.empty_like(s), torch.empty_like(s), torch.empty_like(rows)
    slope_pass(
        width, -(-chunks // TASK),
        g, s, norm.view(-1, 2), out.view(-1, width), rows, plan.index, plan.chunk, w, slope, heads,
    )  # fmt: skip
    slots = len(plan.index_part_row)
    part = values.new_empty(slots * heads, width)
    gather_pass(
        width, -(-index_chunks // TASK),
        g, w, plan.entry, plan.entry_segment, plan.index_chunk, grad_rows, part, heads, slots,
    )  # fmt: skip
    cut_row, cut_part = cut_heads(plan.index_cut_row, plan.index_cut_part, slots, heads)
    sum_pass(width, len(cut_row), grad_rows, values.new_empty(0, width), cut_row, cut_part, part)
    return slope, grad_rows.view_as(values), w
