"""Backward of the context layer in Triton: row dots, relation pass, entity pass and sum of parts.

The backward computes all d-wide values again. It reads from the forward only the scores, the softmax of each
row (maximum and one over the sum) and the new rows.

The kernels avoid races as in the forward: one program writes each address, and later launches read it. There
is one exception. A program of the relation pass writes the weights of its chunk's triples into their records,
one triple per lane, and reads them back in other lanes. The only barrier of the pass lies between the two
steps. The slopes go to words of the records that this program does not read. Source: docs/op.md, "The
gradient of one layer".
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from lightcake_fast.kernels import gpu_launch
from lightcake_fast.kernels.gpu_blocks import (
    add_dot_phi_ent,
    add_grad_entity,
    add_grad_r,
    compile_block,
    phi_rel_back,
    where,
)
from lightcake_fast.kernels.gpu_merge import sum_pass
from lightcake_fast.kernels.gpu_tiles import (
    NO_CHUNK,
    add_dot,
    add_row,
    add_scaled_row,
    fold_row,
    load_row,
    log2_weight,
    row_pointers,
    store_folded_row,
    store_row,
    zero_row,
)
from lightcake_fast.kernels.plan import GpuPlan
from lightcake_fast.kernels.scores import SCORES

RECORD = 4  # numbers per context triple for the entity pass: slope, beta, alpha and a temporary constant


@triton.jit
def row_dots(
    first, g_ptr, new_ptr, old_ptr, row_dot_ptr, rows,
    FROM_SUM: tl.constexpr, WIDTH: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_D: tl.constexpr,
    ACC: tl.constexpr,
):  # fmt: skip
    """<g, new - old> of a block of rows. With FROM_SUM, ``new`` already holds the difference."""
    row = first + tl.arange(0, BLOCK_E)
    live = row < rows
    row = tl.minimum(row, rows - 1)
    g = load_row(row_pointers(g_ptr, row, WIDTH, BLOCK_D), WIDTH, 1, BLOCK_D, ACC)
    difference = load_row(row_pointers(new_ptr, row, WIDTH, BLOCK_D), WIDTH, 1, BLOCK_D, ACC)
    if not FROM_SUM:
        old = load_row(row_pointers(old_ptr, row, WIDTH, BLOCK_D), WIDTH, 1, BLOCK_D, ACC)
        difference = add_scaled_row(difference, -1.0, old)
    term = add_dot(tl.zeros([BLOCK_E, BLOCK_D], ACC), g, difference)
    tl.store(row_dot_ptr + row, tl.sum(term, 1), mask=live)


@triton.jit
def row_dot_pass(
    g_ptr, q_ptr, new_x_ptr, new_y_ptr, x_ptr, y_ptr, row_dot_x_ptr, row_dot_y_ptr, entities, relations,
    FROM_SUM: tl.constexpr, WIDTH: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_D: tl.constexpr,
    ACC: tl.constexpr,
):  # fmt: skip
    """D = <g, x' - x> of each row, relations first. All triples of a row share this part of dL/ds.

    Bytes per row: its three rows.
    """
    p = tl.program_id(0)
    relation_programs = tl.cdiv(relations, BLOCK_E)
    if p < relation_programs:
        row_dots(
            p * BLOCK_E, q_ptr, new_y_ptr, y_ptr, row_dot_y_ptr, relations,
            FROM_SUM, WIDTH, BLOCK_E, BLOCK_D, ACC,
        )  # fmt: skip
    else:
        row_dots(
            (p - relation_programs) * BLOCK_E, g_ptr, new_x_ptr, x_ptr, row_dot_x_ptr, entities,
            FROM_SUM, WIDTH, BLOCK_E, BLOCK_D, ACC,
        )  # fmt: skip


@triton.jit
def slope_weight(w):
    """The weight as a factor of dL/ds. At weight one it is zero: there X equals D except for rounding."""
    return tl.where(w == 1, 0.0, w)


@triton.jit
def weights(
    raw_ptr, start, end, row, row_back, s_ptr, norm_x_ptr, norm_y_ptr, row_dot_x_ptr, row_dot_y_ptr,
    record_ptr, psi_slope_ptr, block, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """Compute the parts of dL/ds that need no rows: alpha, beta and a constant.

    The function covers the triples of a chunk and their inverses, one triple per lane. The loop over rows
    would repeat this work in each lane of a triple. With delta = alpha (X - D_h) + beta (Y - D_r), the
    constant is alpha D_h + beta D_r.
    """
    top_r, factor_r = tl.load(norm_y_ptr + 2 * row), tl.load(norm_y_ptr + 2 * row + 1)
    top_back, factor_back = tl.load(norm_y_ptr + 2 * row_back), tl.load(norm_y_ptr + 2 * row_back + 1)
    dot_r, dot_back = tl.load(row_dot_y_ptr + row), tl.load(row_dot_y_ptr + row_back)
    for e0 in range(start, end, BLOCK_W):
        e = e0 + tl.arange(0, BLOCK_W)
        live = e < end
        place = tl.minimum(e, end - 1).to(tl.int64)
        head, tail = tl.load(raw_ptr + 4 * place), tl.load(raw_ptr + 4 * place + 1)
        s_a = tl.load(s_ptr + tl.load(raw_ptr + 4 * place + 2))
        s_b = tl.load(s_ptr + tl.load(raw_ptr + 4 * place + 3))
        norm_h, norm_t = norm_x_ptr + 2 * head, norm_x_ptr + 2 * tail
        alpha_a = tl.exp2(log2_weight(s_a, tl.load(norm_h))) * tl.load(norm_h + 1)
        alpha_b = tl.exp2(log2_weight(s_b, tl.load(norm_t))) * tl.load(norm_t + 1)
        beta_a = tl.exp2(log2_weight(s_a, top_r)) * factor_r
        beta_b = tl.exp2(log2_weight(s_b, top_back)) * factor_back
        dot_h, dot_t = tl.load(row_dot_x_ptr + head), tl.load(row_dot_x_ptr + tail)
        constant_a = tl.fma(slope_weight(alpha_a), dot_h, slope_weight(beta_a) * dot_r)
        constant_b = tl.fma(slope_weight(alpha_b), dot_t, slope_weight(beta_b) * dot_back)
        record = record_ptr + 8 * place
        tl.store(record + 1, beta_a, mask=live)
        tl.store(record + 2, alpha_a, mask=live)
        tl.store(record + 3, constant_a, mask=live)
        tl.store(record + 5, beta_b, mask=live)
        tl.store(record + 6, alpha_b, mask=live)
        tl.store(record + 7, constant_b, mask=live)
        if block.psi_slope is not None:
            tl.store(psi_slope_ptr + 2 * place, block.psi_slope(s_a, where), mask=live)
            tl.store(psi_slope_ptr + 2 * place + 1, block.psi_slope(s_b, where), mask=live)


@triton.jit
def relation_pass(
    x_ptr, y_ptr, g_ptr, q_ptr, raw_ptr, chunk_ptr, s_ptr, norm_x_ptr, norm_y_ptr,
    row_dot_x_ptr, row_dot_y_ptr, record_ptr, psi_slope_ptr, part_ptr, num_relations,
    block, COLUMNS: tl.constexpr, BILINEAR: tl.constexpr, OWN: tl.constexpr, BLOCK_W: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_D: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """dL/ds of each raw triple and its inverse, and each chunk's share of dL/dr of both.

    With X = <g_h, phi_ent>, Y = <q_r, phi_rel>: delta = alpha (X - D_h) + beta (Y - D_r). The entity pass
    reads slope, beta and alpha of the triple and of its inverse from one 32-byte record, in relation order.

    Bytes per raw triple: rows e_h, e_t, g_h, g_t; 48 of ids, scores and row dots, 56 of the record.
    """
    p = tl.program_id(0)
    start, end = tl.load(chunk_ptr + 4 * p), tl.load(chunk_ptr + 4 * p + 1)
    row, slot = tl.load(chunk_ptr + 4 * p + 2), tl.load(chunk_ptr + 4 * p + 3)
    weights(
        raw_ptr, start, end, row, row + num_relations, s_ptr, norm_x_ptr, norm_y_ptr,
        row_dot_x_ptr, row_dot_y_ptr, record_ptr, psi_slope_ptr, block, BLOCK_W,
    )  # fmt: skip
    tl.debug_barrier()  # other lanes read the values written above

    lane = tl.arange(0, BLOCK_E)
    rows = tl.zeros([BLOCK_E], tl.int32) + row
    back = rows + num_relations
    r = load_row(row_pointers(y_ptr, rows, WIDTH, BLOCK_D), WIDTH, COLUMNS, BLOCK_D, ACC)
    q = load_row(row_pointers(q_ptr, rows, WIDTH, BLOCK_D), WIDTH, COLUMNS, BLOCK_D, ACC)
    r_back = load_row(row_pointers(y_ptr, back, WIDTH, BLOCK_D), WIDTH, COLUMNS, BLOCK_D, ACC)
    q_back = load_row(row_pointers(q_ptr, back, WIDTH, BLOCK_D), WIDTH, COLUMNS, BLOCK_D, ACC)
    sum_a = zero_row(BLOCK_E, WIDTH, COLUMNS, BLOCK_D, ACC)
    sum_b = zero_row(BLOCK_E, WIDTH, COLUMNS, BLOCK_D, ACC)
    total_a, total_b = tl.zeros([BLOCK_E, 1], ACC), tl.zeros([BLOCK_E, 1], ACC)

    place = tl.minimum(start + lane, end - 1)  # past the end: the last triple with weight zero
    head, tail = tl.load(raw_ptr + 4 * place.to(tl.int64)), tl.load(raw_ptr + 4 * place.to(tl.int64) + 1)
    for e in range(start, end, BLOCK_E):
        h_ptr, t_ptr = row_pointers(x_ptr, head, WIDTH, BLOCK_D), row_pointers(x_ptr, tail, WIDTH, BLOCK_D)
        g_h_ptr = row_pointers(g_ptr, head, WIDTH, BLOCK_D)
        g_t_ptr = row_pointers(g_ptr, tail, WIDTH, BLOCK_D)
        live = e + lane < end
        record = record_ptr + 8 * place.to(tl.int64)
        psi_slope = psi_slope_ptr + 2 * place.to(tl.int64)
        beta_a, alpha_a, constant_a = tl.load(record + 1), tl.load(record + 2), tl.load(record + 3)
        beta_b, alpha_b, constant_b = tl.load(record + 5), tl.load(record + 6), tl.load(record + 7)
        if block.psi_slope is not None:
            psi_slope_a, psi_slope_b = tl.load(psi_slope), tl.load(psi_slope + 1)
        # load the next ids while the rows of this block arrive
        place = tl.minimum(e + BLOCK_E + lane, end - 1)
        head, tail = tl.load(raw_ptr + 4 * place.to(tl.int64)), tl.load(raw_ptr + 4 * place.to(tl.int64) + 1)

        ent_a, rel_a = tl.zeros([BLOCK_E, BLOCK_D], ACC), tl.zeros([BLOCK_E, BLOCK_D], ACC)
        ent_b, rel_b = tl.zeros([BLOCK_E, BLOCK_D], ACC), tl.zeros([BLOCK_E, BLOCK_D], ACC)
        h = load_row(h_ptr, WIDTH, COLUMNS, BLOCK_D, ACC)
        t = load_row(t_ptr, WIDTH, COLUMNS, BLOCK_D, ACC)
        g_h = load_row(g_h_ptr, WIDTH, COLUMNS, BLOCK_D, ACC)
        g_t = load_row(g_t_ptr, WIDTH, COLUMNS, BLOCK_D, ACC)
        for k in tl.static_range(0, len(h), COLUMNS):
            h_k, t_k = h[k : k + COLUMNS], t[k : k + COLUMNS]
            r_k, back_k = r[k : k + COLUMNS], r_back[k : k + COLUMNS]
            ent_a = add_dot_phi_ent(ent_a, g_h[k : k + COLUMNS], r_k, t_k, block)
            rel_a = add_dot(rel_a, q[k : k + COLUMNS], block.phi_rel(h_k, t_k))
            ent_b = add_dot_phi_ent(ent_b, g_t[k : k + COLUMNS], back_k, h_k, block)
            rel_b = add_dot(rel_b, q_back[k : k + COLUMNS], phi_rel_back(h_k, t_k, block))
        slope_a = tl.fma(slope_weight(beta_a), tl.sum(rel_a, 1), -constant_a)
        slope_b = tl.fma(slope_weight(beta_b), tl.sum(rel_b, 1), -constant_b)
        slope_a = tl.fma(slope_weight(alpha_a), tl.sum(ent_a, 1), slope_a)
        slope_b = tl.fma(slope_weight(alpha_b), tl.sum(ent_b, 1), slope_b)
        if block.psi_slope is not None:
            slope_a, slope_b = slope_a * psi_slope_a, slope_b * psi_slope_b
        tl.store(record, slope_a, mask=live)
        tl.store(record + 4, slope_b, mask=live)

        slope_a, slope_b = tl.where(live, slope_a, 0.0)[:, None], tl.where(live, slope_b, 0.0)[:, None]
        alpha_a, alpha_b = tl.where(live, alpha_a, 0.0)[:, None], tl.where(live, alpha_b, 0.0)[:, None]
        total_a, total_b = total_a + slope_a, total_b + slope_b
        next_a, next_b = (), ()
        for k in tl.static_range(0, len(h), COLUMNS):
            h_k, t_k = h[k : k + COLUMNS], t[k : k + COLUMNS]
            r_k, back_k = r[k : k + COLUMNS], r_back[k : k + COLUMNS]
            next_a = next_a + add_grad_r(
                sum_a[k : k + COLUMNS], slope_a, alpha_a, g_h[k : k + COLUMNS], h_k, r_k, t_k,
                block.phi_rel(h_k, t_k), block, BILINEAR,
            )  # fmt: skip
            next_b = next_b + add_grad_r(
                sum_b[k : k + COLUMNS], slope_b, alpha_b, g_t[k : k + COLUMNS], t_k, back_k, h_k,
                phi_rel_back(h_k, t_k, block), block, BILINEAR,
            )  # fmt: skip
        sum_a, sum_b = next_a, next_b

    sum_a, sum_b = fold_row(sum_a), fold_row(sum_b)
    if OWN != 0:
        sum_a = add_scaled_row(sum_a, OWN * tl.sum(total_a), r)
        sum_b = add_scaled_row(sum_b, OWN * tl.sum(total_b), r_back)
    part_a_ptr = part_ptr + slot.to(tl.int64) * WIDTH
    part_b_ptr = part_a_ptr + tl.num_programs(0).to(tl.int64) * WIDTH
    store_folded_row(part_a_ptr, sum_a, BLOCK_E, WIDTH, COLUMNS, BLOCK_D)
    store_folded_row(part_b_ptr, sum_b, BLOCK_E, WIDTH, COLUMNS, BLOCK_D)


@triton.jit
def entity_pass(
    x_ptr, y_ptr, g_ptr, q_ptr, context_ptr, chunk_ptr, record_ptr, out_ptr, part_ptr,
    block, COLUMNS: tl.constexpr, BILINEAR: tl.constexpr, OWN: tl.constexpr, RESIDUAL: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_D: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """dL/dh: each context triple for its head and the inverse for its tail, in one sweep.

    A program takes BLOCK_E chunks of nearly equal length and one triple of each chunk at a time.

    Bytes per context triple: rows e_t, g_t (and e_r, q_r of the relation and its inverse, from the cache); 16
    of ids, 32 of the record. Bytes per chunk: g_h (and e_h) of its head, its result.
    """
    n0 = tl.program_id(0) * BLOCK_E
    chunk = chunk_ptr + 4 * (n0 + tl.arange(0, BLOCK_E))
    e, end, row, slot = tl.load(chunk), tl.load(chunk + 1), tl.load(chunk + 2), tl.load(chunk + 3)
    # the first chunk of a program is its longest
    longest = tl.load(chunk_ptr + 4 * n0 + 1) - tl.load(chunk_ptr + 4 * n0)
    acc = zero_row(BLOCK_E, WIDTH, COLUMNS, BLOCK_D, ACC)
    total = tl.zeros([BLOCK_E, 1], ACC)
    own_ptr = row_pointers(x_ptr, row, WIDTH, BLOCK_D)
    h = load_row(own_ptr, WIDTH, COLUMNS, BLOCK_D, ACC)  # not loaded if the loop does not use it

    context = context_ptr + 4 * e.to(tl.int64)
    relation, tail = tl.load(context), tl.load(context + 1)
    record, inverse = tl.load(context + 2), tl.load(context + 3)
    for _ in range(longest):
        r_ptr = row_pointers(y_ptr, relation, WIDTH, BLOCK_D)
        q_r_ptr = row_pointers(q_ptr, relation, WIDTH, BLOCK_D)
        r_back_ptr = row_pointers(y_ptr, inverse, WIDTH, BLOCK_D)
        q_back_ptr = row_pointers(q_ptr, inverse, WIDTH, BLOCK_D)
        t_ptr = row_pointers(x_ptr, tail, WIDTH, BLOCK_D)
        g_t_ptr = row_pointers(g_ptr, tail, WIDTH, BLOCK_D)
        mine, its = record_ptr + 4 * record.to(tl.int64), record_ptr + 4 * (record ^ 1).to(tl.int64)
        slope, beta = tl.load(mine), tl.load(mine + 1)
        slope_back, beta_back, alpha_back = tl.load(its), tl.load(its + 1), tl.load(its + 2)
        live = e < end
        # load the next ids while these rows arrive; past the end, reload the last triple with weight zero
        e += 1
        context = context_ptr + 4 * tl.minimum(e, end - 1).to(tl.int64)
        relation, tail = tl.load(context), tl.load(context + 1)
        record, inverse = tl.load(context + 2), tl.load(context + 3)
        slope, beta = tl.where(live, slope, 0.0)[:, None], tl.where(live, beta, 0.0)[:, None]
        slope_back = tl.where(live, slope_back, 0.0)[:, None]
        beta_back = tl.where(live, beta_back, 0.0)[:, None]
        alpha_back = tl.where(live, alpha_back, 0.0)[:, None]
        total += slope + slope_back
        r = load_row(r_ptr, WIDTH, COLUMNS, BLOCK_D, ACC)
        q = load_row(q_r_ptr, WIDTH, COLUMNS, BLOCK_D, ACC)
        r_back = load_row(r_back_ptr, WIDTH, COLUMNS, BLOCK_D, ACC)
        q_back = load_row(q_back_ptr, WIDTH, COLUMNS, BLOCK_D, ACC)
        t = load_row(t_ptr, WIDTH, COLUMNS, BLOCK_D, ACC)
        g = load_row(g_t_ptr, WIDTH, COLUMNS, BLOCK_D, ACC)
        new = ()
        for k in tl.static_range(0, len(t), COLUMNS):
            new = new + add_grad_entity(
                acc[k : k + COLUMNS], slope, beta, r[k : k + COLUMNS], q[k : k + COLUMNS],
                slope_back, beta_back, alpha_back, r_back[k : k + COLUMNS], q_back[k : k + COLUMNS],
                g[k : k + COLUMNS], h[k : k + COLUMNS], t[k : k + COLUMNS], block, BILINEAR,
            )  # fmt: skip
        acc = new

    live = (slot != NO_CHUNK)[:, None]
    if OWN != 0:
        acc = add_scaled_row(acc, OWN * total, load_row(own_ptr, WIDTH, COLUMNS, BLOCK_D, ACC))
    if tl.load(chunk_ptr + 4 * n0 + 3) >= 0:  # all these chunks belong to cut rows
        part = row_pointers(part_ptr, tl.maximum(slot, 0), WIDTH, BLOCK_D)
        store_row(part, acc, live, WIDTH, COLUMNS, BLOCK_D)
    else:
        if RESIDUAL:
            own = load_row(row_pointers(g_ptr, row, WIDTH, BLOCK_D), WIDTH, COLUMNS, BLOCK_D, ACC)
            acc = add_row(own, acc)
        store_row(row_pointers(out_ptr, row, WIDTH, BLOCK_D), acc, live, WIDTH, COLUMNS, BLOCK_D)


def backward(
    g: Tensor,
    q: Tensor,
    x: Tensor,
    y: Tensor,
    new_x: Tensor,
    new_y: Tensor,
    s: Tensor,
    norm_x: Tensor,
    norm_y: Tensor,
    plan: GpuPlan,
    score: str,
    sum_x: Tensor | None = None,
    sum_y: Tensor | None = None,
    *,
    residual: bool = True,
    partial: bool = False,
    gathered: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute dL/dx [N, d] and dL/dy [2R, d] from the new rows' gradients g, q and the results of forward.

    A row without a live triple or outside the context has maximum +inf, so its weights are zero. Without
    ``residual``, new_x and new_y are the sums alone. With 16-bit rows, ``sum_x`` and ``sum_y`` are these
    sums. With ``partial``, dL/dy leaves out q.
    """
    width, real = x.shape[1], gpu_launch.sum_type(x.dtype)
    own_g, own_q = g if residual else None, q if residual and not partial else None
    if len(s) == 0 or width == 0:
        grad_x = torch.zeros_like(g) if own_g is None else g.clone()
        return grad_x, torch.zeros_like(q) if own_q is None else q.clone()
    row_dot_x, row_dot_y = x.new_empty(len(x), dtype=real), y.new_empty(len(y), dtype=real)
    shape = gpu_launch.row_shape("backward.row_dot_pass", width, x.dtype)
    programs = triton.cdiv(len(y), shape["BLOCK_E"]) + triton.cdiv(len(x), shape["BLOCK_E"])
    row_dot_pass[(programs,)](
        g_ptr=g, q_ptr=q, x_ptr=x, y_ptr=y, row_dot_x_ptr=row_dot_x, row_dot_y_ptr=row_dot_y,
        new_x_ptr=new_x if sum_x is None else sum_x, new_y_ptr=new_y if sum_y is None else sum_y,
        entities=len(x), relations=len(y), FROM_SUM=sum_x is not None or not residual, **shape,
    )  # fmt: skip
    record = x.new_empty(len(s), RECORD, dtype=real)
    part = x.new_empty(len(plan.part_row), width, dtype=real)
    read = x if gathered is None else gathered
    run_relation_pass(g, q, read, y, plan, s, (norm_x, norm_y), (row_dot_x, row_dot_y), record, part, score)
    grad_x, grad_y = torch.empty_like(x), torch.empty_like(y)
    run_entity_pass(g, q, read, y, plan, record, grad_x, part, score, residual)
    shape, programs, relation_programs = gpu_launch.merge_shape(
        len(y), len(plan.merge_row) - len(y), width, x.dtype
    )
    sum_pass[(programs,)](
        g_ptr=own_g, q_ptr=own_q, row_ptr=plan.merge_row, bound_ptr=plan.merge_part,
        part_ptr=part, grad_x_ptr=grad_x, grad_y_ptr=grad_y, relation_rows=len(y),
        relation_programs=relation_programs, **shape,
    )  # fmt: skip
    return grad_x, grad_y


def run_relation_pass(
    g: Tensor,
    q: Tensor,
    x: Tensor,
    y: Tensor,
    plan: GpuPlan,
    s: Tensor,
    norm: tuple[Tensor, Tensor],
    row_dot: tuple[Tensor, Tensor],
    record: Tensor,
    part: Tensor,
    score: str,
) -> None:
    """Write the records of the context triples for the entity pass, and the parts of relations."""
    compiled = compile_block(SCORES[score])
    psi_slope = record if compiled.block.psi_slope is None else torch.empty_like(s)
    relation_pass[(len(plan.relation_chunk),)](
        x_ptr=x, y_ptr=y, g_ptr=g, q_ptr=q, raw_ptr=plan.raw, chunk_ptr=plan.relation_chunk,
        s_ptr=s, norm_x_ptr=norm[0], norm_y_ptr=norm[1], row_dot_x_ptr=row_dot[0], row_dot_y_ptr=row_dot[1],
        record_ptr=record, psi_slope_ptr=psi_slope, part_ptr=part, num_relations=len(y) // 2,
        block=compiled.block, COLUMNS=compiled.columns, BILINEAR=compiled.bilinear, OWN=compiled.own_row,
        BLOCK_W=32,
        **gpu_launch.row_shape("backward.relation_pass", y.shape[1], y.dtype, compiled.columns),
    )  # fmt: skip


def run_entity_pass(
    g: Tensor,
    q: Tensor,
    x: Tensor,
    y: Tensor,
    plan: GpuPlan,
    record: Tensor,
    grad_x: Tensor,
    part: Tensor,
    score: str,
    residual: bool,
) -> None:
    """Write the gradients of uncut entities, and the parts of cut entities."""
    compiled = compile_block(SCORES[score])
    shape = gpu_launch.row_shape("backward.entity_pass", y.shape[1], y.dtype, compiled.columns)
    entity_pass[(len(plan.entity_chunk) // shape["BLOCK_E"],)](
        x_ptr=x, y_ptr=y, g_ptr=g, q_ptr=q, context_ptr=plan.context, chunk_ptr=plan.entity_chunk,
        record_ptr=record, out_ptr=grad_x, part_ptr=part,
        block=compiled.block, COLUMNS=compiled.columns, BILINEAR=compiled.bilinear, OWN=compiled.own_row,
        RESIDUAL=residual, **shape,
    )  # fmt: skip
