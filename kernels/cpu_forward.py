"""Forward of the context layer in Numba: relation pass and entity pass. No array has shape E x d."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from lightcake_fast.kernels.cpu_blocks import NumbaBlock, along, along_from, normal
from lightcake_fast.kernels.cpu_compiler import LONG_ROW, Pass, next_task, prefetch_row
from lightcake_fast.kernels.cpu_math import exp
from lightcake_fast.kernels.cpu_memory import new_result
from lightcake_fast.kernels.cpu_merge import merge_pass
from lightcake_fast.kernels.plan import LONGEST_TASK, Plan
from lightcake_fast.kernels.scores import SCORES, has_planes

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 16  # raw triples per block; their weights are computed together


@Pass
def relation_pass(width: int, block: NumbaBlock) -> Any:
    """Both scores of each raw triple, and each chunk's share of its two relation sums.

    A triple (h, r, t) and its inverse (t, r + R, h) are processed together, one block of raw triples at a
    time. The entity rows of a block stay in the L1 cache between the dot products and the sums. The running
    maximum of the online softmax changes rarely, so rescaling is cheap.

    A chunk with only masked triples has a total of zero. A NaN score makes the total NaN. ``mask`` has
    ``ways`` numbers per raw triple: 0 (no mask), 1, or 2 (one for the triple and one for its inverse). Rows
    moved per raw triple: e_h, e_t.
    """
    psi_term, psi, phi_rel, columns = block.psi_term, block.psi, block.phi_rel, block.columns
    at, add, plus, times = block.at, block.add, block.plus, block.times
    lean, planes = block.lean, block.planes

    def run(
        x, y, head, tail, triple, chunk, chunk_row, mask, ways, with_sums,
        s, part, part_top, part_total, tasks, counter,
    ):  # fmt: skip
        d = width if width > 0 else x.shape[1]
        real = y.dtype.type
        zero, low = real(0), real(-np.inf)
        short, num_relations = d * x.itemsize < LONG_ROW, y.shape[0] // 2
        weight_a, weight_b = np.empty(BLOCK, y.dtype), np.empty(BLOCK, y.dtype)
        lean_a, lean_b = np.zeros(BLOCK, y.dtype), np.zeros(BLOCK, y.dtype)  # used only with planes
        p = next_task(counter)
        while p < tasks:
            row = chunk_row[p]
            back, p_back = row + num_relations, p + tasks
            start, end = chunk[p], chunk[p + 1]
            if with_sums:
                for k in range(d):
                    part[p, k] = zero
                    part[p_back, k] = zero
            top_a, top_b, total_a, total_b = low, low, zero, zero
            sum_lean_a, sum_lean_b = zero, zero
            for first in range(start, end, BLOCK):
                last = min(first + BLOCK, end)
                for e0 in range(first, last, 4):
                    # past the end the loop reads the last triple again
                    e1, e2, e3 = min(e0 + 1, last - 1), min(e0 + 2, last - 1), min(e0 + 3, last - 1)
                    i0, i1, i2, i3 = head[e0], head[e1], head[e2], head[e3]
                    j0, j1, j2, j3 = tail[e0], tail[e1], tail[e2], tail[e3]
                    for e in range(min(e0 + 4, end), min(e0 + 8, end) if short else 0):
                        if head[e] != head[e - 1]:
                            prefetch_row(x, head[e], d)
                        if tail[e] != tail[e - 1]:
                            prefetch_row(x, tail[e], d)
                    m0, m1, m2, m3 = e0 - first, e1 - first, e2 - first, e3 - first
                    if planes:
                        for e in range(e0, min(e0 + 4, last)):
                            i, j = head[e], tail[e]
                            lean_a[e - first] = along_from(x, i, j, y, row, d)
                            lean_b[e - first] = along_from(x, j, i, y, back, d)
                    a0, a1, a2, a3 = zero, zero, zero, zero
                    b0, b1, b2, b3 = zero, zero, zero, zero
                    for k in range(d // columns):
                        r, r_back = at(y, row, k), at(y, back, k)
                        h, t = at(x, i0, k), at(x, j0, k)
                        a0 += psi_term(h, lean(r, y, row, k, lean_a[m0]), t)
                        b0 += psi_term(t, lean(r_back, y, back, k, lean_b[m0]), h)
                        h, t = at(x, i1, k), at(x, j1, k)
                        a1 += psi_term(h, lean(r, y, row, k, lean_a[m1]), t)
                        b1 += psi_term(t, lean(r_back, y, back, k, lean_b[m1]), h)
                        h, t = at(x, i2, k), at(x, j2, k)
                        a2 += psi_term(h, lean(r, y, row, k, lean_a[m2]), t)
                        b2 += psi_term(t, lean(r_back, y, back, k, lean_b[m2]), h)
                        h, t = at(x, i3, k), at(x, j3, k)
                        a3 += psi_term(h, lean(r, y, row, k, lean_a[m3]), t)
                        b3 += psi_term(t, lean(r_back, y, back, k, lean_b[m3]), h)
                    s[2 * e0], s[2 * e0 + 1] = psi(a0), psi(b0)
                    s[2 * e1], s[2 * e1 + 1] = psi(a1), psi(b1)
                    s[2 * e2], s[2 * e2 + 1] = psi(a2), psi(b2)
                    s[2 * e3], s[2 * e3 + 1] = psi(a3), psi(b3)
                if ways > 0:
                    for e in range(first, last):
                        if mask[ways * triple[e]]:
                            s[2 * e] = low
                        if mask[ways * triple[e] + ways - 1]:
                            s[2 * e + 1] = low
                if not with_sums:
                    continue
                new_a, new_b = low, low
                for e in range(first, last):
                    new_a, new_b = max(new_a, s[2 * e]), max(new_b, s[2 * e + 1])
                if new_a > top_a:
                    factor = math.exp(top_a - new_a)
                    total_a *= factor
                    sum_lean_a *= factor
                    for k in range(d):
                        part[p, k] *= factor
                    top_a = new_a
                if new_b > top_b:
                    factor = math.exp(top_b - new_b)
                    total_b *= factor
                    sum_lean_b *= factor
                    for k in range(d):
                        part[p_back, k] *= factor
                    top_b = new_b
                shift_a, shift_b = top_a if top_a > low else zero, top_b if top_b > low else zero
                for m in range(BLOCK):  # a fixed count, so that LLVM needs no scalar remainder loop
                    e = min(first + m, last - 1)
                    weight_a[m], weight_b[m] = exp(s[2 * e] - shift_a), exp(s[2 * e + 1] - shift_b)
                for m in range(last - first, BLOCK):
                    weight_a[m], weight_b[m] = zero, zero
                for m in range(BLOCK):
                    total_a += weight_a[m]
                    total_b += weight_b[m]
                if planes:
                    for m in range(last - first):
                        sum_lean_a += weight_a[m] * lean_a[m]
                        sum_lean_b += weight_b[m] * lean_b[m]
                for m in range(0, last - first, 4):
                    e0 = first + m
                    e1, e2, e3 = min(e0 + 1, last - 1), min(e0 + 2, last - 1), min(e0 + 3, last - 1)
                    i0, i1, i2, i3 = head[e0], head[e1], head[e2], head[e3]
                    j0, j1, j2, j3 = tail[e0], tail[e1], tail[e2], tail[e3]
                    a0, a1, a2, a3 = weight_a[m], weight_a[m + 1], weight_a[m + 2], weight_a[m + 3]
                    b0, b1, b2, b3 = weight_b[m], weight_b[m + 1], weight_b[m + 2], weight_b[m + 3]
                    for k in range(d // columns):
                        h, t = at(x, i0, k), at(x, j0, k)
                        sum_a, sum_b = times(a0, phi_rel(h, t)), times(b0, phi_rel(t, h))
                        h, t = at(x, i1, k), at(x, j1, k)
                        sum_a, sum_b = (
                            plus(sum_a, times(a1, phi_rel(h, t))),
                            plus(sum_b, times(b1, phi_rel(t, h))),
                        )
                        h, t = at(x, i2, k), at(x, j2, k)
                        sum_a, sum_b = (
                            plus(sum_a, times(a2, phi_rel(h, t))),
                            plus(sum_b, times(b2, phi_rel(t, h))),
                        )
                        h, t = at(x, i3, k), at(x, j3, k)
                        add(part, p, k, plus(sum_a, times(a3, phi_rel(h, t))))
                        add(part, p_back, k, plus(sum_b, times(b3, phi_rel(t, h))))
            if with_sums:
                if planes:
                    for k in range(d):
                        part[p, k] -= sum_lean_a * normal(y, row, k, d)
                        part[p_back, k] -= sum_lean_b * normal(y, back, k, d)
                part_top[p], part_top[p_back] = top_a, top_b
                part_total[p], part_total[p_back] = total_a, total_b
            p = next_task(counter)

    return run


@Pass
def entity_pass(width: int, block: NumbaBlock) -> Any:
    """The weighted sum over each head's context, from stored scores and without a dot product.

    The sum is added to the rows ``own_rows`` if there are any. Rows moved per context triple: e_t. Rows moved
    per row: e_h and the result.
    """
    phi_ent, columns = block.phi_ent, block.columns
    at, add, plus, times = block.at, block.add, block.plus, block.times
    lean, planes = block.lean, block.planes

    def run(
        x, y, own_rows, relation, tail, record, chunk, chunk_row, chunk_slot, task, s,
        out, norm, part, part_top, part_total, tasks, counter,
    ):  # fmt: skip
        d = width if width > 0 else x.shape[1]
        real = y.dtype.type
        zero, low = real(0), real(-np.inf)
        short = d * x.itemsize < LONG_ROW
        weight, tops = np.empty(LONGEST_TASK, y.dtype), np.empty(LONGEST_TASK, y.dtype)
        n = next_task(counter)
        while n < tasks:
            base, last = chunk[task[n]], chunk[task[n + 1]]
            for p in range(task[n], task[n + 1]):
                start, end, top = chunk[p] - base, chunk[p + 1] - base, low
                for m in range(start, end):
                    weight[m] = s[record[base + m]]
                    top = max(top, weight[m])
                top = top if top > low else zero
                tops[p - task[n]] = top
                for m in range(start, end):
                    weight[m] -= top
            for m in range(last - base):
                weight[m] = exp(weight[m])
            for p in range(task[n], task[n + 1]):
                row, slot, start, end = chunk_row[p], chunk_slot[p], chunk[p], chunk[p + 1]
                target, to = (out, row) if slot < 0 else (part, slot)
                total = zero
                for m in range(start - base, end - base):
                    total += weight[m]
                for k in range(d):
                    target[to, k] = zero
                for e0 in range(start, end, 4):
                    # past the end the loop reads the last triple again, with weight zero
                    e1, e2, e3 = min(e0 + 1, end - 1), min(e0 + 2, end - 1), min(e0 + 3, end - 1)
                    i0, i1, i2, i3 = relation[e0], relation[e1], relation[e2], relation[e3]
                    j0, j1, j2, j3 = tail[e0], tail[e1], tail[e2], tail[e3]
                    for e in range(min(e0 + 4, last), min(e0 + 8, last) if short else 0):
                        prefetch_row(x, tail[e], d)
                    w0 = weight[e0 - base]
                    w1 = weight[e1 - base] if e0 + 1 < end else zero
                    w2 = weight[e2 - base] if e0 + 2 < end else zero
                    w3 = weight[e3 - base] if e0 + 3 < end else zero
                    c0, c1, c2, c3 = zero, zero, zero, zero
                    if planes:
                        c0, c1 = along(x, j0, y, i0, d), along(x, j1, y, i1, d)
                        c2, c3 = along(x, j2, y, i2, d), along(x, j3, y, i3, d)
                    for k in range(d // columns):
                        sums = times(w0, phi_ent(lean(at(y, i0, k), y, i0, k, c0), at(x, j0, k)))
                        sums = plus(sums, times(w1, phi_ent(lean(at(y, i1, k), y, i1, k, c1), at(x, j1, k))))
                        sums = plus(sums, times(w2, phi_ent(lean(at(y, i2, k), y, i2, k, c2), at(x, j2, k))))
                        fourth = times(w3, phi_ent(lean(at(y, i3, k), y, i3, k, c3), at(x, j3, k)))
                        add(target, to, k, plus(sums, fourth))
                top = tops[p - task[n]]
                if slot >= 0:
                    part_top[slot], part_total[slot] = top, total
                else:
                    factor = real(1) / total if total != 0 else zero
                    if len(own_rows):
                        for k in range(d):
                            target[to, k] = own_rows[row, k] + factor * target[to, k]
                    else:
                        for k in range(d):
                            target[to, k] *= factor
                    norm[row, 0], norm[row, 1] = top if total != 0 else real(np.inf), factor
            n = next_task(counter)

    return run


def forward(
    x: Tensor,
    y: Tensor,
    plan: Plan,
    mask: Tensor | None,
    score: str,
    context: str,
    *,
    residual: bool = True,
    partial: bool = False,
    gathered: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Run the layer on contiguous CPU rows.

    Args:
        x: entities [N, d].
        y: relations [2R, d], or [2R, 2 d] with planes.
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
        [E] are in relation order: each triple precedes its inverse, and a masked triple has -inf. The softmax
        tables [N, 2] and [2R, 2] hold the maximum of each row and one over its sum of exp(s - maximum). The
        weight of a triple is exp(s - maximum) times the second number. The maximum is +inf for a row without
        a live triple or outside the context.
    """
    width, chunks, slots = x.shape[1], len(plan.relation_chunk_row), int(plan.cut_slot[-1])
    with_entities, with_relations = context != "relation", context != "entity"
    read = x if gathered is None else gathered
    s = new_result(x, 2 * len(plan.head))
    part, top, total = _parts(x, 2 * chunks if with_relations else 0)
    relation_pass(
        width, chunks,
        read, y, plan.head, plan.tail, plan.triple, plan.relation_chunk, plan.relation_chunk_row,
        plan.triple[:0].bool() if mask is None else mask.view(-1),
        0 if mask is None else mask.ndim, with_relations,
        s, part, top, total, score=score,
    )  # fmt: skip
    own_rows = y[:, :width].contiguous()  # without planes this is all of y
    own_x, own_y = x if residual else x[:0], own_rows if residual and not partial else own_rows[:0]
    new_x, new_y = _results(x, with_entities, residual), _results(own_rows, with_relations, residual)
    norm_x = x.new_empty(len(x), 2) if with_entities else _no_weights(x)
    norm_y = y.new_empty(len(y), 2) if with_relations else _no_weights(y)
    if with_relations:
        merge_pass(
            width, len(y),
            new_y, own_y, plan.relation_row, plan.relation_part, part, top, total, norm_y,
        )  # fmt: skip
    if with_entities:
        part, top, total = _parts(x, slots)
        entity_pass(
            width, len(plan.entity_task) - 1,
            read, y, own_x, plan.context_relation, plan.context_tail, plan.context_record,
            plan.entity_chunk, plan.entity_chunk_row, plan.entity_chunk_slot, plan.entity_task, s,
            new_x, norm_x, part, top, total, score=score,
        )  # fmt: skip
        merge_pass(
            width, len(plan.cut_row),
            new_x, own_x, plan.cut_row, plan.cut_slot, part, top, total, norm_x,
        )  # fmt: skip
    if has_planes(SCORES[score]):  # the layer adds nothing to the normals
        sums, new_y = new_y, _results(y, False, residual and not (partial and with_relations))
        new_y[:, :width] = sums
    return new_x, new_y, s, norm_x, norm_y


def scores_as_given(s: Tensor, plan: Plan) -> Tensor:
    """Return the scores [E] of ``forward`` in the given order: first all triples, then their inverses."""
    given = s.new_empty(s.shape)
    given[plan.triple], given[plan.triple + len(plan.triple)] = s[0::2], s[1::2]
    return given


def _results(rows: Tensor, written: bool, residual: bool) -> Tensor:
    """Return uninitialized memory if the passes write all of it, else the rows without a change."""
    if written:
        return new_result(rows, *rows.shape)
    return rows.clone() if residual else rows.new_zeros(rows.shape)


def _no_weights(rows: Tensor) -> Tensor:
    """Return the softmax table [N, 2] (maximum, factor) of rows with weight zero for all triples."""
    return rows.new_tensor([math.inf, 0]).repeat(len(rows), 1)


def _parts(x: Tensor, slots: int) -> tuple[Tensor, Tensor, Tensor]:
    """Allocate the sums, maxima and totals of chunks."""
    return x.new_empty(slots, x.shape[1]), x.new_empty(slots), x.new_empty(slots)
