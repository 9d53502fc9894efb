"""The general segment op in Triton: softmax over segments times gathered rows, and its gradients.

    out_m = sum w_e v_i(e)      w = softmax of s over the segment
    ds_e  = w_e (<g_m, v_i(e)> - D_m)      D_m = <g_m, out_m>
    dv_i  = sum w_e g_m(e) over the entries that gather row i

With H heads, row i of a table consists of H rows of d columns, starting at row i * H. Each entry has H
scores. A program takes BLOCK_E chunks of one head and of nearly equal length. It processes one entry of each
chunk at a time, so short segments share the prologue and the epilogue. One program writes each address, once.
No tensor has shape E x d, and there are no atomics.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from lightcake_fast.kernels import gpu_launch
from lightcake_fast.kernels.gpu_merge import merge_pass, sum_pass
from lightcake_fast.kernels.gpu_tiles import (
    LOWEST,
    add_dot,
    add_scaled_row,
    load_row,
    log2_weight,
    normalized,
    row_pointers,
    scale_row,
    store_norm,
    store_row,
    zero_row,
)
from lightcake_fast.kernels.segment_plan import SegmentPlan, cut_heads


@triton.jit
def softmax_pass(
    s_ptr, values_ptr, index_ptr, chunk_ptr, out_ptr, norm_ptr, part_ptr, part_top_ptr, part_total_ptr,
    chunks, slots, heads, BLOCK_S: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_D: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """``out_m = sum w_e v_i(e)``. The softmax weights are never stored.

    Bytes per entry: its row, 4 of index, 8 of scores. Bytes per chunk: its result.
    """
    n0, head = tl.program_id(0) * BLOCK_E, tl.program_id(1)
    n = n0 + tl.arange(0, BLOCK_E)
    chunk = chunk_ptr + 4 * tl.minimum(n, chunks - 1)
    start, length, row, slot = tl.load(chunk), tl.load(chunk + 1), tl.load(chunk + 2), tl.load(chunk + 3)
    longest = tl.load(chunk_ptr + 4 * n0 + 1)  # the first chunk of a program is its longest
    last = tl.maximum(length - 1, 0)

    top = tl.full([BLOCK_E, BLOCK_S], float("-inf"), ACC)
    for k in range(0, longest, BLOCK_S):
        step = k + tl.arange(0, BLOCK_S)[None, :]
        s = tl.load(
            s_ptr + (start[:, None] + step) * heads + head, mask=step < length[:, None], other=float("-inf")
        )
        top = tl.maximum(top, s)
    top = tl.maximum(tl.max(top, 1), LOWEST)[:, None]

    acc = zero_row(BLOCK_E, WIDTH, 1, BLOCK_D, ACC)
    total = tl.zeros([BLOCK_E, 1], ACC)
    index, s = tl.load(index_ptr + start), tl.load(s_ptr + start * heads + head)
    for k in range(longest):
        v_ptr = row_pointers(values_ptr, index * heads + head, WIDTH, BLOCK_D)
        w = tl.exp2(log2_weight(tl.where(k < length, s, float("-inf"))[:, None], top))
        total += w
        # load the next index while the row of this entry arrives
        place = start + tl.minimum(k + 1, last)
        index, s = tl.load(index_ptr + place), tl.load(s_ptr + place * heads + head)
        acc = add_scaled_row(acc, w, load_row(v_ptr, WIDTH, 1, BLOCK_D, ACC))

    live, cut = (n < chunks)[:, None], (slot >= 0)[:, None]
    row = row * heads + head
    if tl.max(slot, 0) >= 0:
        slot = tl.maximum(slot, 0) + slots * head
        part = row_pointers(part_ptr, slot, WIDTH, BLOCK_D)
        store_row(part, acc, live & cut, WIDTH, 1, BLOCK_D)
        tl.store(part_top_ptr + slot[:, None], top, mask=live & cut)
        tl.store(part_total_ptr + slot[:, None], total, mask=live & cut)
    factor, top = normalized(top, total)
    store_row(
        row_pointers(out_ptr, row, WIDTH, BLOCK_D), scale_row(acc, factor), live & ~cut, WIDTH, 1, BLOCK_D
    )
    store_norm(norm_ptr, row[:, None], top, factor, live & ~cut)


@triton.jit
def slope_pass(
    g_ptr, s_ptr, norm_ptr, out_ptr, values_ptr, index_ptr, chunk_ptr, w_ptr, slope_ptr, chunks, heads,
    WIDTH: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_D: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """w_e, and ``ds_e = w_e (<g_m, v_i(e)> - <g_m, out_m>)``.

    Bytes per entry: its row, 4 of index, 4 of scores, 8 of results. Bytes per chunk: rows g and out.
    """
    n0, head = tl.program_id(0) * BLOCK_E, tl.program_id(1)
    n = n0 + tl.arange(0, BLOCK_E)
    chunk = chunk_ptr + 4 * tl.minimum(n, chunks - 1)
    start, length, row = tl.load(chunk), tl.load(chunk + 1), tl.load(chunk + 2)
    length = tl.where(n < chunks, length, 0)
    longest = tl.load(chunk_ptr + 4 * n0 + 1)
    last = tl.maximum(length - 1, 0)
    row = row * heads + head
    top, factor = tl.load(norm_ptr + 2 * row), tl.load(norm_ptr + 2 * row + 1)
    g = load_row(row_pointers(g_ptr, row, WIDTH, BLOCK_D), WIDTH, 1, BLOCK_D, ACC)
    out = load_row(row_pointers(out_ptr, row, WIDTH, BLOCK_D), WIDTH, 1, BLOCK_D, ACC)
    row_dot = tl.sum(add_dot(tl.zeros([BLOCK_E, BLOCK_D], ACC), g, out), 1)

    index, s = tl.load(index_ptr + start), tl.load(s_ptr + start * heads + head)
    for k in range(longest):
        v_ptr = row_pointers(values_ptr, index * heads + head, WIDTH, BLOCK_D)
        w = tl.exp2(log2_weight(s, top)) * factor
        place = start + tl.minimum(k + 1, last)
        index, s = tl.load(index_ptr + place), tl.load(s_ptr + place * heads + head)
        v = load_row(v_ptr, WIDTH, 1, BLOCK_D, ACC)
        dot = tl.sum(add_dot(tl.zeros([BLOCK_E, BLOCK_D], ACC), g, v), 1)
        slope = tl.where(w == 1, 0.0, w * (dot - row_dot))  # at w = 1 the terms are equal but for rounding
        place = (start + k) * heads + head
        tl.store(w_ptr + place, w, mask=k < length)
        tl.store(slope_ptr + place, slope, mask=k < length)


@triton.jit
def gather_pass(
    g_ptr, w_ptr, entry_ptr, segment_ptr, chunk_ptr, out_ptr, part_ptr, chunks, slots, heads,
    WIDTH: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_D: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """``dv_i = sum w_e g_m(e)`` over the entries that gather row i, in the order by index.

    Bytes per entry: row g of its segment, 8 of ids, 4 of weights. Bytes per chunk: its result.
    """
    n0, head = tl.program_id(0) * BLOCK_E, tl.program_id(1)
    n = n0 + tl.arange(0, BLOCK_E)
    chunk = chunk_ptr + 4 * tl.minimum(n, chunks - 1)
    start, length, row, slot = tl.load(chunk), tl.load(chunk + 1), tl.load(chunk + 2), tl.load(chunk + 3)
    longest = tl.load(chunk_ptr + 4 * n0 + 1)
    last = tl.maximum(length - 1, 0)

    acc = zero_row(BLOCK_E, WIDTH, 1, BLOCK_D, ACC)
    segment, entry = tl.load(segment_ptr + start), tl.load(entry_ptr + start)
    for k in range(longest):
        m_ptr = row_pointers(g_ptr, segment * heads + head, WIDTH, BLOCK_D)
        w = tl.where(k < length, tl.load(w_ptr + entry * heads + head), 0.0)[:, None]
        place = start + tl.minimum(k + 1, last)
        segment, entry = tl.load(segment_ptr + place), tl.load(entry_ptr + place)
        acc = add_scaled_row(acc, w, load_row(m_ptr, WIDTH, 1, BLOCK_D, ACC))

    live, cut = (n < chunks)[:, None], (slot >= 0)[:, None]
    row = row * heads + head
    if tl.max(slot, 0) >= 0:
        slot = tl.maximum(slot, 0) + slots * head
        part = row_pointers(part_ptr, slot, WIDTH, BLOCK_D)
        store_row(part, acc, live & cut, WIDTH, 1, BLOCK_D)
    store_row(row_pointers(out_ptr, row, WIDTH, BLOCK_D), acc, live & ~cut, WIDTH, 1, BLOCK_D)


def forward(s: Tensor, values: Tensor, plan: SegmentPlan, num_segments: int) -> tuple[Tensor, Tensor]:
    """Compute the sums and the softmax of each segment.

    Args:
        s: scores [E, H], in the dtype of the sums: float32 for 16-bit values.
        values: rows [N, H, d].
        plan: the order of work.
        num_segments: M.

    Returns:
        The sums [M, H, d], and per segment the maximum and one over the total [M, H, 2]. The maximum is +inf
        if the segment has no live entry. Both tensors have the dtype of the scores.
    """
    (heads, width), chunks, slots = values.shape[1:], len(plan.chunk), len(plan.part_row)
    real = gpu_launch.sum_type(values.dtype)
    out = values.new_empty(num_segments, heads, width, dtype=real)
    norm = s.new_empty(num_segments, heads, 2)
    part, top, total = (s.new_empty(slots * heads, *shape) for shape in ((width,), (), ()))
    shape = gpu_launch.row_shape("forward.entity_pass", width, values.dtype)
    softmax_pass[(triton.cdiv(chunks, shape["BLOCK_E"]), heads)](
        s_ptr=s, values_ptr=values, index_ptr=plan.index, chunk_ptr=plan.chunk, out_ptr=out, norm_ptr=norm,
        part_ptr=part, part_top_ptr=top, part_total_ptr=total, chunks=chunks, slots=slots, heads=heads,
        BLOCK_S=8, **shape,
    )  # fmt: skip
    if slots:
        cut_row, cut_part = cut_heads(plan.cut_row, plan.cut_part, slots, heads)
        shape, programs, _ = gpu_launch.merge_shape(0, len(cut_row), width, values.dtype)
        merge_pass[(programs,)](
            x_ptr=None, y_ptr=None, row_ptr=cut_row, bound_ptr=cut_part,
            part_ptr=part, part_top_ptr=top, part_total_ptr=total,
            new_x_ptr=out, new_y_ptr=out, sum_x_ptr=out, sum_y_ptr=out, norm_x_ptr=norm, norm_y_ptr=norm,
            relation_rows=0, relation_programs=0, HAS_SUM=False, **shape,
        )  # fmt: skip
    return out, norm


def backward(
    g: Tensor, s: Tensor, values: Tensor, out: Tensor, norm: Tensor, plan: SegmentPlan
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients ds [E, H] (through the sums only) and dv [N, H, d], and the weights [E, H].

    ``g`` has the dtype of the values.
    """
    (heads, width), chunks, index_chunks = values.shape[1:], len(plan.chunk), len(plan.index_chunk)
    w, slope, grad_values = torch.empty_like(s), torch.empty_like(s), torch.empty_like(values)
    shape = gpu_launch.row_shape("forward.entity_pass", width, values.dtype)
    slope_pass[(triton.cdiv(chunks, shape["BLOCK_E"]), heads)](
        g_ptr=g, s_ptr=s, norm_ptr=norm, out_ptr=out, values_ptr=values, index_ptr=plan.index,
        chunk_ptr=plan.chunk, w_ptr=w, slope_ptr=slope, chunks=chunks, heads=heads, **shape,
    )  # fmt: skip
    slots = len(plan.index_part_row)
    part = s.new_empty(slots * heads, width)
    gather_pass[(triton.cdiv(index_chunks, shape["BLOCK_E"]), heads)](
        g_ptr=g, w_ptr=w, entry_ptr=plan.entry, segment_ptr=plan.entry_segment, chunk_ptr=plan.index_chunk,
        out_ptr=grad_values, part_ptr=part, chunks=index_chunks, slots=slots, heads=heads, **shape,
    )  # fmt: skip
    if slots:
        cut_row, cut_part = cut_heads(plan.index_cut_row, plan.index_cut_part, slots, heads)
        shape, programs, _ = gpu_launch.merge_shape(0, len(cut_row), width, values.dtype)
        sum_pass[(programs,)](
            g_ptr=None, q_ptr=None, row_ptr=cut_row, bound_ptr=cut_part,
            part_ptr=part, grad_x_ptr=grad_values, grad_y_ptr=grad_values,
            relation_rows=0, relation_programs=0, **shape,
        )  # fmt: skip
    return slope, grad_values, w
