"""Backward of the context layer in Triton: row products, relation pass, entity pass and sum of parts.

Everything d-wide is computed again; from the forward come the scores, the log-sum-exps and the new rows.

Races: as in the forward, each address is written by one program and read by later launches, with one
exception. A program of the relation pass writes the weights of its chunk's triples into their records, one
triple a lane, and reads them back in other lanes: between the two stands its only barrier. The slopes go to
words of the records that it does not read.
Source: docs/op.md, "The gradient of one layer".
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from lightcake_fast.kernels import gpu_launch
from lightcake_fast.kernels.gpu_merge import sum_pass
from lightcake_fast.kernels.gpu_scores import SCORES
from lightcake_fast.kernels.gpu_tiles import (
    LOG2E,
    NO_CHUNK,
    add_scaled_row,
    fold_row,
    load_row,
    row_pointers,
    store_folded_row,
    store_row,
    zero_row,
)
from lightcake_fast.kernels.plan import GpuPlan

LINK = 4  # numbers a context triple hands to the entity pass: slope, beta, alpha and, on the way, a constant


@triton.jit
def row_products(
    block, g_ptr, new_ptr, old_ptr, product_ptr, rows,
    FROM_SUM: tl.constexpr, WIDTH: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_D: tl.constexpr,
    ACC: tl.constexpr,
):  # fmt: skip
    """<g, new - old> of a block of rows; with FROM_SUM, ``new`` is the difference itself."""
    row = block * BLOCK_E + tl.arange(0, BLOCK_E)
    live = row < rows
    row = tl.minimum(row, rows - 1)
    g = load_row(row_pointers(g_ptr, row, WIDTH, BLOCK_D), WIDTH, BLOCK_D, ACC)
    difference = load_row(row_pointers(new_ptr, row, WIDTH, BLOCK_D), WIDTH, BLOCK_D, ACC)
    if not FROM_SUM:
        old = load_row(row_pointers(old_ptr, row, WIDTH, BLOCK_D), WIDTH, BLOCK_D, ACC)
        difference = add_scaled_row(difference, -1.0, old, WIDTH, BLOCK_D)
    term = tl.zeros([BLOCK_E, BLOCK_D], ACC)
    for k in tl.static_range(triton.cdiv(WIDTH, BLOCK_D)):
        term = tl.fma(g[k], difference[k], term)
    tl.store(product_ptr + row, tl.sum(term, 1), mask=live)


@triton.jit
def product_pass(
    g_ptr, q_ptr, new_x_ptr, new_y_ptr, x_ptr, y_ptr, product_x_ptr, product_y_ptr, entities, relations,
    FROM_SUM: tl.constexpr, WIDTH: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_D: tl.constexpr,
    ACC: tl.constexpr,
):  # fmt: skip
    """D = <g, x' - x> of each row, relations first: the part of dL/ds that all triples of a row share.

    Bytes a row: its three rows.
    """
    p = tl.program_id(0)
    relation_programs = tl.cdiv(relations, BLOCK_E)
    if p < relation_programs:
        row_products(
            p, q_ptr, new_y_ptr, y_ptr, product_y_ptr, relations, FROM_SUM, WIDTH, BLOCK_E, BLOCK_D, ACC
        )
    else:
        row_products(
            p - relation_programs, g_ptr, new_x_ptr, x_ptr, product_x_ptr, entities,
            FROM_SUM, WIDTH, BLOCK_E, BLOCK_D, ACC,
        )  # fmt: skip


@triton.jit
def weights(
    raw_ptr, start, end, row, row_back, s_ptr, lse_x_ptr, lse_y_ptr, product_x_ptr, product_y_ptr,
    link_ptr, factor_ptr, slope_factor: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """alpha, beta and what else of dL/ds needs no row, of a chunk's triples and their inverses.

    One triple a lane, where the loop over rows would compute it once for each lane of a triple. With
    delta = alpha (X - D_h) + beta (Y - D_r), the constant is alpha D_h + beta D_r.
    """
    lse_r, lse_back = tl.load(lse_y_ptr + row), tl.load(lse_y_ptr + row_back)
    product_r, product_back = tl.load(product_y_ptr + row), tl.load(product_y_ptr + row_back)
    for e0 in range(start, end, BLOCK_W):
        e = e0 + tl.arange(0, BLOCK_W)
        live = e < end
        place = tl.minimum(e, end - 1).to(tl.int64)
        head, tail = tl.load(raw_ptr + 4 * place), tl.load(raw_ptr + 4 * place + 1)
        s_a = tl.load(s_ptr + tl.load(raw_ptr + 4 * place + 2))
        s_b = tl.load(s_ptr + tl.load(raw_ptr + 4 * place + 3))
        alpha_a = tl.exp2((s_a - tl.load(lse_x_ptr + head)) * LOG2E)
        alpha_b = tl.exp2((s_b - tl.load(lse_x_ptr + tail)) * LOG2E)
        beta_a, beta_b = tl.exp2((s_a - lse_r) * LOG2E), tl.exp2((s_b - lse_back) * LOG2E)
        constant_a = tl.fma(alpha_a, tl.load(product_x_ptr + head), beta_a * product_r)
        constant_b = tl.fma(alpha_b, tl.load(product_x_ptr + tail), beta_b * product_back)
        link = link_ptr + 8 * place
        tl.store(link + 1, beta_a, mask=live)
        tl.store(link + 2, alpha_a, mask=live)
        tl.store(link + 3, constant_a, mask=live)
        tl.store(link + 5, beta_b, mask=live)
        tl.store(link + 6, alpha_b, mask=live)
        tl.store(link + 7, constant_b, mask=live)
        if slope_factor is not None:
            tl.store(factor_ptr + 2 * place, slope_factor(s_a), mask=live)
            tl.store(factor_ptr + 2 * place + 1, slope_factor(s_b), mask=live)


@triton.jit
def relation_pass(
    x_ptr, y_ptr, g_ptr, q_ptr, raw_ptr, chunk_ptr,
    s_ptr, lse_x_ptr, lse_y_ptr, product_x_ptr, product_y_ptr, link_ptr, factor_ptr, part_ptr, half,
    phi_rel: tl.constexpr, phi_rel_back: tl.constexpr, dot_phi_ent: tl.constexpr,
    slope_factor: tl.constexpr, grad_r: tl.constexpr, OWN: tl.constexpr, BLOCK_W: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_D: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """dL/ds of each raw triple and its inverse, and each chunk's share of dL/dr of both.

    With X = <g_h, phi_ent>, Y = <q_r, phi_rel>: delta = alpha (X - D_h) + beta (Y - D_r). Slope, beta and
    alpha of the triple and of its inverse go to the entity pass as one 32-byte record, in relation order.

    Bytes a raw triple: rows e_h, e_t, g_h, g_t; 48 of ids, scores and row products, 56 of the record.
    """
    K: tl.constexpr = triton.cdiv(WIDTH, BLOCK_D)
    p = tl.program_id(0)
    start, end = tl.load(chunk_ptr + 4 * p), tl.load(chunk_ptr + 4 * p + 1)
    row, slot = tl.load(chunk_ptr + 4 * p + 2), tl.load(chunk_ptr + 4 * p + 3)
    weights(
        raw_ptr, start, end, row, row + half, s_ptr, lse_x_ptr, lse_y_ptr, product_x_ptr, product_y_ptr,
        link_ptr, factor_ptr, slope_factor, BLOCK_W,
    )  # fmt: skip
    tl.debug_barrier()  # other lanes read what these have written

    lane = tl.arange(0, BLOCK_E)
    rows = tl.zeros([BLOCK_E], tl.int32) + row
    r = load_row(row_pointers(y_ptr, rows, WIDTH, BLOCK_D), WIDTH, BLOCK_D, ACC)
    r_back = load_row(row_pointers(y_ptr, rows + half, WIDTH, BLOCK_D), WIDTH, BLOCK_D, ACC)
    q = load_row(row_pointers(q_ptr, rows, WIDTH, BLOCK_D), WIDTH, BLOCK_D, ACC)
    q_back = load_row(row_pointers(q_ptr, rows + half, WIDTH, BLOCK_D), WIDTH, BLOCK_D, ACC)
    sum_a, sum_b = zero_row(BLOCK_E, WIDTH, BLOCK_D, ACC), zero_row(BLOCK_E, WIDTH, BLOCK_D, ACC)
    total_a, total_b = tl.zeros([BLOCK_E, 1], ACC), tl.zeros([BLOCK_E, 1], ACC)

    place = tl.minimum(start + lane, end - 1)  # past the end the last triple is taken again, weightless
    head, tail = tl.load(raw_ptr + 4 * place.to(tl.int64)), tl.load(raw_ptr + 4 * place.to(tl.int64) + 1)
    for e in range(start, end, BLOCK_E):
        h_ptr, t_ptr = (
            row_pointers(x_ptr, head, WIDTH, BLOCK_D),
            row_pointers(x_ptr, tail, WIDTH, BLOCK_D),
        )
        g_h_ptr, g_t_ptr = (
            row_pointers(g_ptr, head, WIDTH, BLOCK_D),
            row_pointers(g_ptr, tail, WIDTH, BLOCK_D),
        )
        live = e + lane < end
        link = link_ptr + 8 * place.to(tl.int64)
        factor = factor_ptr + 2 * place.to(tl.int64)
        beta_a, alpha_a, constant_a = tl.load(link + 1), tl.load(link + 2), tl.load(link + 3)
        beta_b, alpha_b, constant_b = tl.load(link + 5), tl.load(link + 6), tl.load(link + 7)
        if slope_factor is not None:
            factor_a, factor_b = tl.load(factor), tl.load(factor + 1)
        # the next ids travel while this block's rows do
        place = tl.minimum(e + BLOCK_E + lane, end - 1)
        head, tail = tl.load(raw_ptr + 4 * place.to(tl.int64)), tl.load(raw_ptr + 4 * place.to(tl.int64) + 1)

        ent_a, rel_a = tl.zeros([BLOCK_E, BLOCK_D], ACC), tl.zeros([BLOCK_E, BLOCK_D], ACC)
        ent_b, rel_b = tl.zeros([BLOCK_E, BLOCK_D], ACC), tl.zeros([BLOCK_E, BLOCK_D], ACC)
        h, t = load_row(h_ptr, WIDTH, BLOCK_D, ACC), load_row(t_ptr, WIDTH, BLOCK_D, ACC)
        g_h, g_t = load_row(g_h_ptr, WIDTH, BLOCK_D, ACC), load_row(g_t_ptr, WIDTH, BLOCK_D, ACC)
        for k in tl.static_range(K):
            phi = phi_rel(h[k], t[k])
            ent_a = dot_phi_ent(ent_a, g_h[k], r[k], t[k])
            rel_a = tl.fma(q[k], phi, rel_a)
            ent_b = dot_phi_ent(ent_b, g_t[k], r_back[k], h[k])
            rel_b = tl.fma(q_back[k], phi_rel_back(phi), rel_b)
        slope_a = tl.fma(alpha_a, tl.sum(ent_a, 1), tl.fma(beta_a, tl.sum(rel_a, 1), -constant_a))
        slope_b = tl.fma(alpha_b, tl.sum(ent_b, 1), tl.fma(beta_b, tl.sum(rel_b, 1), -constant_b))
        if slope_factor is not None:
            slope_a, slope_b = slope_a * factor_a, slope_b * factor_b
        tl.store(link, slope_a, mask=live)
        tl.store(link + 4, slope_b, mask=live)

        slope_a, slope_b = tl.where(live, slope_a, 0.0)[:, None], tl.where(live, slope_b, 0.0)[:, None]
        alpha_a, alpha_b = tl.where(live, alpha_a, 0.0)[:, None], tl.where(live, alpha_b, 0.0)[:, None]
        total_a, total_b = total_a + slope_a, total_b + slope_b
        next_a, next_b = (), ()
        for k in tl.static_range(K):
            phi = phi_rel(h[k], t[k])
            next_a = next_a + (grad_r(sum_a[k], slope_a, alpha_a, g_h[k], phi, t[k]),)
            next_b = next_b + (grad_r(sum_b[k], slope_b, alpha_b, g_t[k], phi_rel_back(phi), h[k]),)
        sum_a, sum_b = next_a, next_b

    sum_a, sum_b = fold_row(sum_a, BLOCK_E, WIDTH, BLOCK_D), fold_row(sum_b, BLOCK_E, WIDTH, BLOCK_D)
    if OWN != 0:
        sum_a = add_scaled_row(sum_a, OWN * tl.sum(total_a), r, WIDTH, BLOCK_D)
        sum_b = add_scaled_row(sum_b, OWN * tl.sum(total_b), r_back, WIDTH, BLOCK_D)
    part_a_ptr = part_ptr + slot.to(tl.int64) * WIDTH
    part_b_ptr = part_a_ptr + tl.num_programs(0).to(tl.int64) * WIDTH
    store_folded_row(part_a_ptr, sum_a, BLOCK_E, WIDTH, BLOCK_D)
    store_folded_row(part_b_ptr, sum_b, BLOCK_E, WIDTH, BLOCK_D)


@triton.jit
def entity_pass(
    x_ptr, y_ptr, g_ptr, q_ptr, context_ptr, chunk_ptr, link_ptr, out_ptr, part_ptr,
    grad_ent: tl.constexpr, OWN: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_D: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """dL/dh: each context triple as its head's, its inverse as its tail's, in one sweep.

    A program takes BLOCK_E chunks of nearly equal length and one triple of each at a time.

    Bytes a context triple: rows e_t, g_t (and e_r, q_r of the relation and its inverse, from the cache);
    16 of ids, 32 of the record. A chunk: its own g_h (and e_h), its result.
    """
    K: tl.constexpr = triton.cdiv(WIDTH, BLOCK_D)
    n0 = tl.program_id(0) * BLOCK_E
    n = n0 + tl.arange(0, BLOCK_E)
    chunk = chunk_ptr + 4 * n
    e, end, row, slot = tl.load(chunk), tl.load(chunk + 1), tl.load(chunk + 2), tl.load(chunk + 3)
    # the program's first chunk is its longest
    longest = tl.load(chunk_ptr + 4 * n0 + 1) - tl.load(chunk_ptr + 4 * n0)
    acc = zero_row(BLOCK_E, WIDTH, BLOCK_D, ACC)
    total = tl.zeros([BLOCK_E, 1], ACC)

    context = context_ptr + 4 * e.to(tl.int64)
    relation, tail, half, back = (
        tl.load(context),
        tl.load(context + 1),
        tl.load(context + 2),
        tl.load(context + 3),
    )
    for _ in range(longest):
        r_ptr = row_pointers(y_ptr, relation, WIDTH, BLOCK_D)
        q_r_ptr = row_pointers(q_ptr, relation, WIDTH, BLOCK_D)
        r_back_ptr = row_pointers(y_ptr, back, WIDTH, BLOCK_D)
        q_back_ptr = row_pointers(q_ptr, back, WIDTH, BLOCK_D)
        t_ptr = row_pointers(x_ptr, tail, WIDTH, BLOCK_D)
        g_t_ptr = row_pointers(g_ptr, tail, WIDTH, BLOCK_D)
        mine, its = link_ptr + 4 * half.to(tl.int64), link_ptr + 4 * (half ^ 1).to(tl.int64)
        slope, beta = tl.load(mine), tl.load(mine + 1)
        slope_back, beta_back, alpha_back = tl.load(its), tl.load(its + 1), tl.load(its + 2)
        live = e < end
        # the next ids travel while these rows do; past the end the last triple is taken again, weightless
        e += 1
        context = context_ptr + 4 * tl.minimum(e, end - 1).to(tl.int64)
        relation, tail, half, back = (
            tl.load(context),
            tl.load(context + 1),
            tl.load(context + 2),
            tl.load(context + 3),
        )
        slope, beta = tl.where(live, slope, 0.0)[:, None], tl.where(live, beta, 0.0)[:, None]
        slope_back = tl.where(live, slope_back, 0.0)[:, None]
        beta_back = tl.where(live, beta_back, 0.0)[:, None]
        alpha_back = tl.where(live, alpha_back, 0.0)[:, None]
        total += slope + slope_back
        r, q = load_row(r_ptr, WIDTH, BLOCK_D, ACC), load_row(q_r_ptr, WIDTH, BLOCK_D, ACC)
        r_back, q_back = load_row(r_back_ptr, WIDTH, BLOCK_D, ACC), load_row(q_back_ptr, WIDTH, BLOCK_D, ACC)
        t, g = load_row(t_ptr, WIDTH, BLOCK_D, ACC), load_row(g_t_ptr, WIDTH, BLOCK_D, ACC)
        new = ()
        for k in tl.static_range(K):
            new = new + (
                grad_ent(
                    acc[k], slope, beta, r[k], q[k],
                    slope_back, beta_back, alpha_back, r_back[k], q_back[k], g[k], t[k],
                ),
            )  # fmt: skip
        acc = new

    live = (slot != NO_CHUNK)[:, None]
    if OWN != 0:
        own = load_row(row_pointers(x_ptr, row, WIDTH, BLOCK_D), WIDTH, BLOCK_D, ACC)
        acc = add_scaled_row(acc, OWN * total, own, WIDTH, BLOCK_D)
    if tl.load(chunk_ptr + 4 * n0 + 3) >= 0:  # these chunks are all of cut rows
        store_row(row_pointers(part_ptr, tl.maximum(slot, 0), WIDTH, BLOCK_D), acc, live, WIDTH, BLOCK_D)
    else:
        own = load_row(row_pointers(g_ptr, row, WIDTH, BLOCK_D), WIDTH, BLOCK_D, ACC)
        new = add_scaled_row(own, 1.0, acc, WIDTH, BLOCK_D)
        store_row(row_pointers(out_ptr, row, WIDTH, BLOCK_D), new, live, WIDTH, BLOCK_D)


def backward(
    g: Tensor,
    q: Tensor,
    x: Tensor,
    y: Tensor,
    new_x: Tensor,
    new_y: Tensor,
    s: Tensor,
    lse_x: Tensor,
    lse_y: Tensor,
    plan: GpuPlan,
    score: str,
    sum_x: Tensor | None = None,
    sum_y: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """dL/dx [N, d] and dL/dy [2R, d] from the gradients g, q of the new rows and what forward returned.

    A row without a live triple, or outside the context, has lse +inf: its weights are exactly zero. With
    16-bit rows ``sum_x`` and ``sum_y`` are what the forward added to them.
    """
    width, real = x.shape[1], gpu_launch.sum_type(x.dtype)
    if len(s) == 0 or width == 0:
        return g.clone(), q.clone()
    product_x, product_y = x.new_empty(len(x), dtype=real), y.new_empty(len(y), dtype=real)
    shape = gpu_launch.row_shape("backward.product_pass", width, x.dtype)
    programs = triton.cdiv(len(y), shape["BLOCK_E"]) + triton.cdiv(len(x), shape["BLOCK_E"])
    product_pass[(programs,)](
        g_ptr=g, q_ptr=q, x_ptr=x, y_ptr=y, product_x_ptr=product_x, product_y_ptr=product_y,
        new_x_ptr=new_x if sum_x is None else sum_x, new_y_ptr=new_y if sum_y is None else sum_y,
        entities=len(x), relations=len(y), FROM_SUM=sum_x is not None, **shape,
    )  # fmt: skip
    link, part = x.new_empty(len(s), LINK, dtype=real), x.new_empty(len(plan.part_row), width, dtype=real)
    run_relation_pass(g, q, x, y, plan, s, (lse_x, lse_y), (product_x, product_y), link, part, score)
    grad_x, grad_y = torch.empty_like(x), torch.empty_like(y)
    run_entity_pass(g, q, x, y, plan, link, grad_x, part, score)
    shape, programs, relation_programs = gpu_launch.layer_merge_shape(
        len(y), len(plan.merge_row) - len(y), width, x.dtype
    )
    sum_pass[(programs,)](
        g_ptr=g, q_ptr=q, row_ptr=plan.merge_row, bound_ptr=plan.merge_part, part_ptr=part,
        grad_x_ptr=grad_x, grad_y_ptr=grad_y, relation_rows=len(y), relation_programs=relation_programs,
        **shape,
    )  # fmt: skip
    return grad_x, grad_y


def run_relation_pass(
    g: Tensor,
    q: Tensor,
    x: Tensor,
    y: Tensor,
    plan: GpuPlan,
    s: Tensor,
    lse: tuple[Tensor, Tensor],
    product: tuple[Tensor, Tensor],
    link: Tensor,
    part: Tensor,
    score: str,
) -> None:
    """Write what the entity pass needs of each context triple, and the parts of relations."""
    block = SCORES[score]
    factor = link if block.slope_factor is None else torch.empty_like(s)
    relation_pass[(len(plan.relation_chunk),)](
        x_ptr=x, y_ptr=y, g_ptr=g, q_ptr=q, raw_ptr=plan.raw, chunk_ptr=plan.relation_chunk,
        s_ptr=s, lse_x_ptr=lse[0], lse_y_ptr=lse[1], product_x_ptr=product[0], product_y_ptr=product[1],
        link_ptr=link, factor_ptr=factor, part_ptr=part, half=len(y) // 2,
        phi_rel=block.phi_rel, phi_rel_back=block.phi_rel_back, dot_phi_ent=block.dot_phi_ent,
        slope_factor=block.slope_factor, grad_r=block.grad_r, OWN=block.OWN, BLOCK_W=32,
        **gpu_launch.row_shape("backward.relation_pass", x.shape[1], x.dtype),
    )  # fmt: skip


def run_entity_pass(
    g: Tensor,
    q: Tensor,
    x: Tensor,
    y: Tensor,
    plan: GpuPlan,
    link: Tensor,
    grad_x: Tensor,
    part: Tensor,
    score: str,
) -> None:
    """Write the gradients of uncut entities, and the parts of the others."""
    block = SCORES[score]
    shape = gpu_launch.row_shape("backward.entity_pass", x.shape[1], x.dtype)
    entity_pass[(len(plan.entity_chunk) // shape["BLOCK_E"],)](
        x_ptr=x, y_ptr=y, g_ptr=g, q_ptr=q, context_ptr=plan.context, chunk_ptr=plan.entity_chunk,
        link_ptr=link, out_ptr=grad_x, part_ptr=part,
        grad_ent=block.grad_ent, OWN=block.OWN, **shape,
    )  # fmt: skip
