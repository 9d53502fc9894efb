"""Forward of the context layer in Triton: relation pass, entity pass and merge. No tensor has shape E x d.

A program is one warp while its rows fit, so it needs no barrier. Every sum has a fixed order and there are no
atomics, so two runs give equal bits.

The interpreter cannot detect races. The kernels avoid them: one program writes each address, once, and only
later launches of the same stream read it.

- The relation pass writes the scores of its raw triples and the parts of its chunk. Each raw triple is in
  one chunk and has two places in head order.
- The entity pass writes the row of an entity with one chunk, or the parts of its chunks of cut rows.
- The merge writes the rows that consist of parts. None of them has a single chunk.
- Empty places among the chunks store nothing.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from lightcake_fast.kernels import gpu_launch
from lightcake_fast.kernels.gpu_blocks import compile_block, phi_rel_back, psi_term_back, sqrt
from lightcake_fast.kernels.gpu_merge import merge_pass
from lightcake_fast.kernels.gpu_tiles import (
    LOWEST,
    NO_CHUNK,
    add_row,
    add_scaled_row,
    fold_row,
    load_row,
    log2_weight,
    normalized,
    row_pointers,
    scale_row,
    store_folded_row,
    store_norm,
    store_row,
    zero_row,
)
from lightcake_fast.kernels.plan import GpuPlan
from lightcake_fast.kernels.scores import SCORES


@triton.jit
def relation_pass(
    x_ptr, y_ptr, raw_ptr, triple_ptr, chunk_ptr, mask_ptr,
    s_ptr, part_ptr, part_top_ptr, part_total_ptr, num_relations,
    block, COLUMNS: tl.constexpr, WAYS: tl.constexpr, WITH_SUMS: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_D: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Both scores of each raw triple, and each chunk's share of its two relation sums.

    The pass writes s(h, r, t) and s(t, r + R, h) to their places in head order. With z = (s - top) / ln 2,
    the sums of the chunk are ``sum 2^z phi_rel`` and ``sum 2^z``. Each of the BLOCK_E triples of a tile has a
    separate maximum and separate sums. They are merged at the end of the chunk.

    ``top`` is near the maximum but need not equal it. If a score makes z greater than 16, the program raises
    ``top`` and scales the sums. This scaling is rare. The mask has WAYS numbers per raw triple: 0 (no mask),
    1, or 2 (one for the triple and one for its inverse).

    Bytes per raw triple: rows e_h, e_t; 16 of ids, 8 of scores.
    """
    p = tl.program_id(0)
    start, end = tl.load(chunk_ptr + 4 * p), tl.load(chunk_ptr + 4 * p + 1)
    row, slot = tl.load(chunk_ptr + 4 * p + 2), tl.load(chunk_ptr + 4 * p + 3)
    lane = tl.arange(0, BLOCK_E)
    rows = tl.zeros([BLOCK_E], tl.int32) + row
    r = load_row(row_pointers(y_ptr, rows, WIDTH, BLOCK_D), WIDTH, COLUMNS, BLOCK_D, ACC)
    r_back_ptr = row_pointers(y_ptr, rows + num_relations, WIDTH, BLOCK_D)
    r_back = load_row(r_back_ptr, WIDTH, COLUMNS, BLOCK_D, ACC)
    sum_a = zero_row(BLOCK_E, WIDTH, COLUMNS, BLOCK_D, ACC)
    sum_b = zero_row(BLOCK_E, WIDTH, COLUMNS, BLOCK_D, ACC)
    top_a, top_b = tl.full([BLOCK_E, 1], LOWEST, ACC), tl.full([BLOCK_E, 1], LOWEST, ACC)
    total_a, total_b = tl.zeros([BLOCK_E, 1], ACC), tl.zeros([BLOCK_E, 1], ACC)
    low = float("-inf")

    place = tl.minimum(start + lane, end - 1)  # past the end: the last triple with weight zero
    raw = raw_ptr + 4 * place.to(tl.int64)
    head, tail, forward, inverse = tl.load(raw), tl.load(raw + 1), tl.load(raw + 2), tl.load(raw + 3)
    for e in range(start, end, BLOCK_E):
        h_ptr, t_ptr = (
            row_pointers(x_ptr, head, WIDTH, BLOCK_D),
            row_pointers(x_ptr, tail, WIDTH, BLOCK_D),
        )
        s_a_ptr, s_b_ptr, live = s_ptr + forward, s_ptr + inverse, e + lane < end
        if WAYS == 1:
            left_out_a = tl.load(mask_ptr + tl.load(triple_ptr + place)) != 0
            left_out_b = left_out_a
        elif WAYS == 2:
            left_out_ptr = mask_ptr + 2 * tl.load(triple_ptr + place).to(tl.int64)
            left_out_a, left_out_b = tl.load(left_out_ptr) != 0, tl.load(left_out_ptr + 1) != 0
        # load the next ids while the rows of this block arrive
        place = tl.minimum(e + BLOCK_E + lane, end - 1)
        raw = raw_ptr + 4 * place.to(tl.int64)
        head, tail, forward, inverse = tl.load(raw), tl.load(raw + 1), tl.load(raw + 2), tl.load(raw + 3)

        term_a, term_b = tl.zeros([BLOCK_E, BLOCK_D], ACC), tl.zeros([BLOCK_E, BLOCK_D], ACC)
        h = load_row(h_ptr, WIDTH, COLUMNS, BLOCK_D, ACC)
        t = load_row(t_ptr, WIDTH, COLUMNS, BLOCK_D, ACC)
        phi_a, phi_b = (), ()
        for k in tl.static_range(0, len(h), COLUMNS):
            h_k, t_k = h[k : k + COLUMNS], t[k : k + COLUMNS]
            phi_a, phi_b = phi_a + block.phi_rel(h_k, t_k), phi_b + phi_rel_back(h_k, t_k, block)
            term_a += block.psi_term(h_k, r[k : k + COLUMNS], t_k)
            term_b += psi_term_back(h_k, r_back[k : k + COLUMNS], t_k, block)
        s_a, s_b = block.psi(tl.sum(term_a, 1), sqrt), block.psi(tl.sum(term_b, 1), sqrt)
        if WAYS > 0:
            s_a, s_b = tl.where(left_out_a, low, s_a), tl.where(left_out_b, low, s_b)
        tl.store(s_a_ptr, s_a, mask=live)
        tl.store(s_b_ptr, s_b, mask=live)

        if WITH_SUMS:
            s_a = tl.where(live, s_a, low)[:, None]
            s_b = tl.where(live, s_b, low)[:, None]
            z_a, z_b = log2_weight(s_a, top_a), log2_weight(s_b, top_b)
            if tl.max(tl.maximum(z_a, z_b)) > 16.0:
                new_a, new_b = tl.maximum(top_a, s_a), tl.maximum(top_b, s_b)
                factor_a, factor_b = tl.exp2(log2_weight(top_a, new_a)), tl.exp2(log2_weight(top_b, new_b))
                total_a, total_b = total_a * factor_a, total_b * factor_b
                sum_a, sum_b = scale_row(sum_a, factor_a), scale_row(sum_b, factor_b)
                top_a, top_b = new_a, new_b
                z_a, z_b = log2_weight(s_a, top_a), log2_weight(s_b, top_b)
            w_a, w_b = tl.exp2(z_a), tl.exp2(z_b)
            total_a, total_b = total_a + w_a, total_b + w_b
            sum_a, sum_b = add_scaled_row(sum_a, w_a, phi_a), add_scaled_row(sum_b, w_b, phi_b)

    if WITH_SUMS:
        chunk_top_a, chunk_top_b = tl.max(top_a), tl.max(top_b)
        factor_a = tl.exp2(log2_weight(top_a, chunk_top_a))
        factor_b = tl.exp2(log2_weight(top_b, chunk_top_b))
        sum_a, sum_b = fold_row(scale_row(sum_a, factor_a)), fold_row(scale_row(sum_b, factor_b))
        part_a_ptr = part_ptr + slot.to(tl.int64) * WIDTH
        part_b_ptr = part_a_ptr + tl.num_programs(0).to(tl.int64) * WIDTH
        store_folded_row(part_a_ptr, sum_a, BLOCK_E, WIDTH, COLUMNS, BLOCK_D)
        store_folded_row(part_b_ptr, sum_b, BLOCK_E, WIDTH, COLUMNS, BLOCK_D)
        slot_b = slot + tl.num_programs(0)
        tl.store(part_top_ptr + slot, chunk_top_a)
        tl.store(part_top_ptr + slot_b, chunk_top_b)
        tl.store(part_total_ptr + slot, tl.sum(total_a * factor_a))
        tl.store(part_total_ptr + slot_b, tl.sum(total_b * factor_b))


@triton.jit
def entity_pass(
    x_ptr, y_ptr, own_ptr, context_ptr, chunk_ptr, s_ptr,
    out_ptr, sum_ptr, norm_ptr, part_ptr, part_top_ptr, part_total_ptr,
    block, COLUMNS: tl.constexpr, HAS_SUM: tl.constexpr, RESIDUAL: tl.constexpr, BLOCK_S: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_D: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """The weighted sum over each head's context, from stored scores and without a dot product.

    ``e_h' = e_h + sum alpha phi_ent(e_r, e_t)``; without RESIDUAL, the sum alone. A program takes BLOCK_E
    chunks of nearly equal length and one triple of each chunk at a time. Short rows share the prologue and
    the epilogue, and there is no sum across lanes.

    Bytes per context triple: row e_t (and e_r, from the cache); 16 of ids, 8 of scores. Bytes per chunk: the
    row of its head, its result.
    """
    q0 = tl.program_id(0) * BLOCK_E
    q = q0 + tl.arange(0, BLOCK_E)
    chunk = chunk_ptr + 4 * q
    e, end, row, slot = tl.load(chunk), tl.load(chunk + 1), tl.load(chunk + 2), tl.load(chunk + 3)
    # the first chunk of a program is its longest
    longest = tl.load(chunk_ptr + 4 * q0 + 1) - tl.load(chunk_ptr + 4 * q0)

    top = tl.full([BLOCK_E, BLOCK_S], float("-inf"), ACC)
    for first in range(0, longest, BLOCK_S):
        place = e[:, None] + first + tl.arange(0, BLOCK_S)[None, :]
        s = tl.load(s_ptr + place, mask=place < end[:, None], other=float("-inf"))
        top = tl.maximum(top, s)
    top = tl.maximum(tl.max(top, 1), LOWEST)[:, None]

    acc = zero_row(BLOCK_E, WIDTH, COLUMNS, BLOCK_D, ACC)
    total = tl.zeros([BLOCK_E, 1], ACC)
    context = context_ptr + 4 * e.to(tl.int64)
    relation, tail, s = tl.load(context), tl.load(context + 1), tl.load(s_ptr + e)
    for _ in range(longest):
        r_ptr = row_pointers(y_ptr, relation, WIDTH, BLOCK_D)
        t_ptr = row_pointers(x_ptr, tail, WIDTH, BLOCK_D)
        w = tl.exp2(log2_weight(tl.where(e < end, s, float("-inf"))[:, None], top))
        total += w
        # load the next ids while these rows arrive; past the end, reload the last triple with weight zero
        e += 1
        place = tl.minimum(e, end - 1)
        context = context_ptr + 4 * place.to(tl.int64)
        relation, tail, s = tl.load(context), tl.load(context + 1), tl.load(s_ptr + place)
        r = load_row(r_ptr, WIDTH, COLUMNS, BLOCK_D, ACC)
        t = load_row(t_ptr, WIDTH, COLUMNS, BLOCK_D, ACC)
        phi = ()
        for k in tl.static_range(0, len(r), COLUMNS):
            phi = phi + block.phi_ent(r[k : k + COLUMNS], t[k : k + COLUMNS])
        acc = add_scaled_row(acc, w, phi)

    live = (slot != NO_CHUNK)[:, None]
    if tl.load(chunk_ptr + 4 * q0 + 3) >= 0:  # all these chunks belong to cut rows
        part = row_pointers(part_ptr, tl.maximum(slot, 0), WIDTH, BLOCK_D)
        store_row(part, acc, live, WIDTH, COLUMNS, BLOCK_D)
        tl.store(part_top_ptr + slot[:, None], top, mask=live)
        tl.store(part_total_ptr + slot[:, None], total, mask=live)
    else:
        factor, top = normalized(top, total)
        acc = scale_row(acc, factor)
        if HAS_SUM:
            store_row(row_pointers(sum_ptr, row, WIDTH, BLOCK_D), acc, live, WIDTH, COLUMNS, BLOCK_D)
        if RESIDUAL:
            own = load_row(row_pointers(own_ptr, row, WIDTH, BLOCK_D), WIDTH, COLUMNS, BLOCK_D, ACC)
            acc = add_row(own, acc)
        store_row(row_pointers(out_ptr, row, WIDTH, BLOCK_D), acc, live, WIDTH, COLUMNS, BLOCK_D)
        store_norm(norm_ptr, row[:, None], top, factor, live)


class Parts(NamedTuple):
    """Parts of rows for the merge: P relation chunks, their inverses, then the chunks of cut entities."""

    acc: Tensor  # [S, d]
    top: Tensor  # [S]
    total: Tensor  # [S]


def forward(
    x: Tensor,
    y: Tensor,
    plan: GpuPlan,
    mask: Tensor | None,
    score: str,
    context: str,
    *,
    residual: bool = True,
    partial: bool = False,
    gathered: Tensor | None = None,
) -> list[Tensor]:
    """Run the layer on contiguous rows of one device.

    Args:
        x: entities [N, d].
        y: relations [2R, d].
        plan: the order of work.
        mask: bool [T], or [T, 2] for separate values of a triple and its inverse. True masks a triple.
        score: a key of ``SCORES``.
        context: "both", "entity" or "relation".
        residual: False returns only the sums that are added to x and y.
        partial: True if other workers hold more triples of the relations. Then the new relation rows are the
            weighted means alone, without y.
        gathered: rows [N, d] that context triples read in place of x: a bfloat16 copy of x, or a table with
            the dtype of x.

    Returns:
        The new x and y (the sums alone without ``residual``), the scores, and two softmax tables. The scores
        [E] are in head order, -inf for masked triples. The softmax tables [N, 2] and [2R, 2] hold a number at
        or near the maximum of each row, and one over its sum of exp(s - maximum). The weight of a triple is
        exp(s - maximum) times the second number. The maximum is +inf for a row without a live triple or
        outside the context. With 16-bit rows the result also has the float32 sums that are added to x and y,
        because the backward cannot compute them from rounded rows.
    """
    real, parts = gpu_launch.sum_type(x.dtype), len(plan.part_row)
    narrow = gpu_launch.is_narrow(x.dtype)
    s = x.new_empty(len(plan.context), dtype=real)
    idle = len(s) == 0 or x.shape[1] == 0
    with_entities, with_relations = context != "relation" and not idle, context != "entity" and not idle
    new_x, norm_x, sum_x = _results(x, with_entities, residual)
    new_y, norm_y, sum_y = _results(y, with_relations, residual)
    if not idle:
        part = Parts(*(x.new_empty(parts, *shape, dtype=real) for shape in ((x.shape[1],), (), ())))
        read = x if gathered is None else gathered
        run_relation_pass(read, y, plan, mask, s, part, score, with_relations)
        if with_entities:
            run_entity_pass(read, y, x, plan, s, new_x, norm_x, sum_x, part, score, residual)
        relation_rows = len(y) if with_relations else 0
        shape, programs, relation_programs = gpu_launch.merge_shape(
            relation_rows, len(plan.merge_row) - len(y) if with_entities else 0, x.shape[1], x.dtype
        )
        merge_pass[(programs,)](
            x_ptr=x if residual else None, y_ptr=y if residual and not partial else None,
            row_ptr=plan.merge_row, bound_ptr=plan.merge_part,
            part_ptr=part.acc, part_top_ptr=part.top, part_total_ptr=part.total,
            new_x_ptr=new_x, new_y_ptr=new_y, sum_x_ptr=sum_x, sum_y_ptr=sum_y,
            norm_x_ptr=norm_x, norm_y_ptr=norm_y, relation_rows=len(y), relation_programs=relation_programs,
            HAS_SUM=narrow, **shape,
        )  # fmt: skip
    return [new_x, new_y, s, norm_x, norm_y, *([sum_x, sum_y] if narrow else [])]


def _results(rows: Tensor, written: bool, residual: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Allocate new rows, softmax table and sums. Fill them if the passes do not write them.

    For rows that are not rounded, the sums are a placeholder that no pass writes.
    """
    real = gpu_launch.sum_type(rows.dtype)
    new = torch.empty_like(rows) if written else rows.clone() if residual else torch.zeros_like(rows)
    norm = rows.new_empty(len(rows), 2, dtype=real)
    if not written:
        norm[:, 0], norm[:, 1] = torch.inf, 0
    if not gpu_launch.is_narrow(rows.dtype):
        return new, norm, norm
    sums = torch.empty_like(rows, dtype=real) if written else torch.zeros_like(rows, dtype=real)
    return new, norm, sums


def scores_as_given(s: Tensor, plan: GpuPlan) -> Tensor:
    """Return the scores [E] of ``forward`` in the given order: first all triples, then their inverses."""
    given = torch.empty_like(s)
    given[plan.triple], given[plan.triple + len(plan.triple)] = s[plan.raw[:, 2]], s[plan.raw[:, 3]]
    return given


def run_relation_pass(
    x: Tensor, y: Tensor, plan: GpuPlan, mask: Tensor | None, s: Tensor, part: Parts, score: str, sums: bool
) -> None:
    """Write all scores s. With ``sums``, also write the parts of relations."""
    compiled = compile_block(SCORES[score])
    relation_pass[(len(plan.relation_chunk),)](
        x_ptr=x, y_ptr=y, raw_ptr=plan.raw, triple_ptr=plan.triple, chunk_ptr=plan.relation_chunk,
        mask_ptr=s if mask is None else mask, s_ptr=s, part_ptr=part.acc, part_top_ptr=part.top,
        part_total_ptr=part.total, num_relations=len(y) // 2,
        block=compiled.block, COLUMNS=compiled.columns, WAYS=0 if mask is None else mask.ndim, WITH_SUMS=sums,
        **gpu_launch.row_shape("forward.relation_pass", y.shape[1], y.dtype, compiled.columns),
    )  # fmt: skip


def run_entity_pass(
    x: Tensor,
    y: Tensor,
    own: Tensor,
    plan: GpuPlan,
    s: Tensor,
    new_x: Tensor,
    norm_x: Tensor,
    sum_x: Tensor,
    part: Parts,
    score: str,
    residual: bool,
) -> None:
    """Write the new rows and the softmax of uncut entities, and the parts of cut entities."""
    compiled = compile_block(SCORES[score])
    shape = gpu_launch.row_shape("forward.entity_pass", y.shape[1], y.dtype, compiled.columns)
    entity_pass[(len(plan.entity_chunk) // shape["BLOCK_E"],)](
        x_ptr=x, y_ptr=y, own_ptr=own, context_ptr=plan.context, chunk_ptr=plan.entity_chunk, s_ptr=s,
        out_ptr=new_x, sum_ptr=sum_x, norm_ptr=norm_x, part_ptr=part.acc, part_top_ptr=part.top,
        part_total_ptr=part.total, block=compiled.block, COLUMNS=compiled.columns,
        HAS_SUM=gpu_launch.is_narrow(own.dtype), RESIDUAL=residual, BLOCK_S=8, **shape,
    )  # fmt: skip
