"""Merge the parts of rows that were cut into chunks, for the layer and for segments.

The forward and the backward each need one launch. A program takes a block of columns of a row and reads the
parts in the order of the chunks, so two runs give equal bits. It loads BLOCK_P parts at once, and fewer for
the remainder, because most rows have two or three parts. In the layer, the merged sum is added to the old
row. Without ``x_ptr`` or ``y_ptr`` a row is the merged sum alone. Segments use the first table only.
"""

import triton
import triton.language as tl

from lightcake_fast.kernels.gpu_tiles import LOWEST, log2_weight, normalized, store_norm


@triton.jit
def weigh_parts(
    p, end, row_top, part_ptr, part_top_ptr, part_total_ptr, column, acc, total,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """``acc`` and ``total`` plus the next BLOCK parts, scaled to the maximum of the row."""
    part = p + tl.arange(0, BLOCK)
    live = part < end
    top = tl.load(part_top_ptr + part, mask=live, other=float("-inf"))
    part_total = tl.load(part_total_ptr + part, mask=live, other=0.0)
    tile_ptr = part_ptr + part.to(tl.int64)[:, None] * WIDTH + column[None, :]
    tile = tl.load(tile_ptr, mask=live[:, None] & (column < WIDTH)[None, :], other=0.0)
    factor = tl.exp2(log2_weight(top, row_top))
    return acc + factor[:, None] * tile, total + factor * part_total


@triton.jit
def merge_row(
    n, column_block, rows_ptr, row_ptr, bound_ptr, part_ptr, part_top_ptr, part_total_ptr,
    out_ptr, sum_ptr, norm_ptr,
    HAS_SUM: tl.constexpr, WIDTH: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
    ACC: tl.constexpr,
):  # fmt: skip
    """Merge a block of columns of one row from its parts, in the order of the chunks."""
    REST: tl.constexpr = BLOCK_P // 4
    row = tl.load(row_ptr + n).to(tl.int64)
    first, end = tl.load(bound_ptr + n), tl.load(bound_ptr + n + 1)
    whole = end - (end - first) % BLOCK_P
    column = column_block * BLOCK_C + tl.arange(0, BLOCK_C)

    top = tl.full([8 * BLOCK_P], LOWEST, ACC)
    for p in range(first, end, 8 * BLOCK_P):
        part = p + tl.arange(0, 8 * BLOCK_P)
        top = tl.maximum(top, tl.load(part_top_ptr + part, mask=part < end, other=float("-inf")))
    row_top = tl.max(top)

    acc, total = tl.zeros([BLOCK_P, BLOCK_C], ACC), tl.zeros([BLOCK_P], ACC)
    for p in range(first, whole, BLOCK_P):
        acc, total = weigh_parts(
            p, whole, row_top, part_ptr, part_top_ptr, part_total_ptr, column, acc, total, WIDTH, BLOCK_P
        )
    new, row_total = tl.sum(acc, 0), tl.sum(total)
    acc, total = tl.zeros([REST, BLOCK_C], ACC), tl.zeros([REST], ACC)
    for p in range(whole, end, REST):
        acc, total = weigh_parts(
            p, end, row_top, part_ptr, part_top_ptr, part_total_ptr, column, acc, total, WIDTH, REST
        )
    new, row_total = new + tl.sum(acc, 0), row_total + tl.sum(total)

    row_factor, row_top = normalized(row_top, row_total)
    new *= row_factor
    place, inside = row * WIDTH + column, column < WIDTH
    if HAS_SUM:
        tl.store(sum_ptr + place, new, mask=inside)
    if rows_ptr is not None:
        new += tl.load(rows_ptr + place, mask=inside, other=0.0).to(ACC)
    tl.store(out_ptr + place, new.to(out_ptr.dtype.element_ty), mask=inside)
    store_norm(norm_ptr, row, row_top, row_factor, column_block == 0)


@triton.jit
def merge_pass(
    x_ptr, y_ptr, row_ptr, bound_ptr, part_ptr, part_top_ptr, part_total_ptr,
    new_x_ptr, new_y_ptr, sum_x_ptr, sum_y_ptr, norm_x_ptr, norm_y_ptr, relation_rows, relation_programs,
    HAS_SUM: tl.constexpr, WIDTH: tl.constexpr, ACC: tl.constexpr,
    BLOCK_P_LONG: tl.constexpr, BLOCK_C_LONG: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Merge rows from their parts: first relations (few rows, many parts), then cut entities.

    Bytes per part: its row.
    """
    p = tl.program_id(0)
    if p < relation_programs:
        blocks = triton.cdiv(WIDTH, BLOCK_C_LONG)
        merge_row(
            p // blocks, p % blocks, y_ptr, row_ptr, bound_ptr, part_ptr, part_top_ptr, part_total_ptr,
            new_y_ptr, sum_y_ptr, norm_y_ptr, HAS_SUM, WIDTH, BLOCK_P_LONG, BLOCK_C_LONG, ACC,
        )  # fmt: skip
    else:
        blocks = triton.cdiv(WIDTH, BLOCK_C)
        p -= relation_programs
        merge_row(
            relation_rows + p // blocks, p % blocks, x_ptr, row_ptr, bound_ptr,
            part_ptr, part_top_ptr, part_total_ptr, new_x_ptr, sum_x_ptr, norm_x_ptr,
            HAS_SUM, WIDTH, BLOCK_P, BLOCK_C, ACC,
        )  # fmt: skip


@triton.jit
def sum_parts(p, end, part_ptr, column, acc, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """``acc`` plus the next BLOCK parts."""
    part = (p + tl.arange(0, BLOCK))[:, None]
    tile_ptr = part_ptr + part.to(tl.int64) * WIDTH + column[None, :]
    return acc + tl.load(tile_ptr, mask=(part < end) & (column < WIDTH)[None, :], other=0.0)


@triton.jit
def sum_row(
    n, column_block, gradient_ptr, row_ptr, bound_ptr, part_ptr, out_ptr,
    WIDTH: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Sum a block of columns of one row's gradient: the parts in chunk order, then the old value."""
    REST: tl.constexpr = BLOCK_P // 4
    first, end = tl.load(bound_ptr + n), tl.load(bound_ptr + n + 1)
    whole = end - (end - first) % BLOCK_P
    column = column_block * BLOCK_C + tl.arange(0, BLOCK_C)
    acc = tl.zeros([BLOCK_P, BLOCK_C], ACC)
    for p in range(first, whole, BLOCK_P):
        acc = sum_parts(p, whole, part_ptr, column, acc, WIDTH, BLOCK_P)
    total = tl.sum(acc, 0)
    acc = tl.zeros([REST, BLOCK_C], ACC)
    for p in range(whole, end, REST):
        acc = sum_parts(p, end, part_ptr, column, acc, WIDTH, REST)
    total += tl.sum(acc, 0)

    place, inside = tl.load(row_ptr + n).to(tl.int64) * WIDTH + column, column < WIDTH
    if gradient_ptr is not None:
        total += tl.load(gradient_ptr + place, mask=inside, other=0.0).to(ACC)
    tl.store(out_ptr + place, total.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def sum_pass(
    g_ptr, q_ptr, row_ptr, bound_ptr, part_ptr, grad_x_ptr, grad_y_ptr, relation_rows, relation_programs,
    WIDTH: tl.constexpr, ACC: tl.constexpr,
    BLOCK_P_LONG: tl.constexpr, BLOCK_C_LONG: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Sum the gradients of cut rows: first relations (few rows, many parts), then cut entities.

    Bytes per part: its row.
    """
    p = tl.program_id(0)
    if p < relation_programs:
        blocks = triton.cdiv(WIDTH, BLOCK_C_LONG)
        sum_row(
            p // blocks, p % blocks, q_ptr, row_ptr, bound_ptr, part_ptr, grad_y_ptr,
            WIDTH, BLOCK_P_LONG, BLOCK_C_LONG, ACC,
        )  # fmt: skip
    else:
        blocks = triton.cdiv(WIDTH, BLOCK_C)
        p -= relation_programs
        sum_row(
            relation_rows + p // blocks, p % blocks, g_ptr, row_ptr, bound_ptr, part_ptr, grad_x_ptr,
            WIDTH, BLOCK_P, BLOCK_C, ACC,
        )  # fmt: skip
