"""Forward of the context layer in Numba: relation pass, entity pass and merge, no E x d array."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightcake_fast.kernels.cpu_compiler import (
    ANY_SCORE,
    LINE,
    LONG_ROW,
    Pass,
    light_pass,
    next_task,
    prefetch,
    vectorized_pass,
)
from lightcake_fast.kernels.cpu_math import exp
from lightcake_fast.kernels.cpu_scores import phi_ent, phi_rel, psi, psi_term
from lightcake_fast.kernels.plan import LONGEST_TASK, Plan

BLOCK = 16  # raw triples whose weights are computed at once


@Pass
def relation_pass(score: str, width: int, digest: int) -> Any:
    """Both scores of each raw triple, and each chunk's share of its two relation sums.

    Triples (h, r, t) and (t, r + R, h) are settled together, a block of raw triples at a time: their entity
    rows stay in the first cache between the dot products and the sums. The running maximum of the
    online softmax moves seldom, so rescaling costs little. A chunk whose triples are all masked has a
    total of zero; a NaN among its scores makes it NaN. Rows moved a raw triple: e_h, e_t.
    """

    def run(
        x, y, head, tail, triple, chunk, chunk_row, mask, has_mask, with_sums,
        s, part, part_top, part_total, tasks, counter,
    ):  # fmt: skip
        vectorized_pass()
        assert digest
        d = width if width > 0 else x.shape[1]
        real = x.dtype.type
        zero, low = real(0), real(-np.inf)
        short = d * x.itemsize < LONG_ROW
        weight_a, weight_b = np.empty(BLOCK, x.dtype), np.empty(BLOCK, x.dtype)
        p = next_task(counter)
        while p < tasks:
            row = chunk_row[p]
            back, p_back = row + y.shape[0] // 2, p + tasks
            start, end = chunk[p], chunk[p + 1]
            if with_sums:
                for k in range(d):
                    part[p, k] = zero
                    part[p_back, k] = zero
            top_a, top_b, total_a, total_b = low, low, zero, zero
            for first in range(start, end, BLOCK):
                last = min(first + BLOCK, end)
                for e0 in range(first, last, 4):
                    # past the end the last triple is taken again
                    e1, e2, e3 = min(e0 + 1, last - 1), min(e0 + 2, last - 1), min(e0 + 3, last - 1)
                    i0, i1, i2, i3 = head[e0], head[e1], head[e2], head[e3]
                    j0, j1, j2, j3 = tail[e0], tail[e1], tail[e2], tail[e3]
                    for e in range(min(e0 + 4, end), min(e0 + 8, end) if short else 0):
                        if head[e] != head[e - 1]:
                            for k in range(0, d, LINE):
                                prefetch(x, head[e], k)
                        if tail[e] != tail[e - 1]:
                            for k in range(0, d, LINE):
                                prefetch(x, tail[e], k)
                    a0, a1, a2, a3 = zero, zero, zero, zero
                    b0, b1, b2, b3 = zero, zero, zero, zero
                    for k in range(d):
                        r, r_back = y[row, k], y[back, k]
                        h, t = x[i0, k], x[j0, k]
                        a0 += psi_term(score, h, r, t)
                        b0 += psi_term(score, t, r_back, h)
                        h, t = x[i1, k], x[j1, k]
                        a1 += psi_term(score, h, r, t)
                        b1 += psi_term(score, t, r_back, h)
                        h, t = x[i2, k], x[j2, k]
                        a2 += psi_term(score, h, r, t)
                        b2 += psi_term(score, t, r_back, h)
                        h, t = x[i3, k], x[j3, k]
                        a3 += psi_term(score, h, r, t)
                        b3 += psi_term(score, t, r_back, h)
                    s[2 * e0], s[2 * e0 + 1] = psi(score, a0), psi(score, b0)
                    s[2 * e1], s[2 * e1 + 1] = psi(score, a1), psi(score, b1)
                    s[2 * e2], s[2 * e2 + 1] = psi(score, a2), psi(score, b2)
                    s[2 * e3], s[2 * e3 + 1] = psi(score, a3), psi(score, b3)
                if has_mask:
                    for e in range(first, last):
                        if mask[triple[e]]:
                            s[2 * e], s[2 * e + 1] = low, low
                if not with_sums:
                    continue
                new_a, new_b = low, low
                for e in range(first, last):
                    new_a, new_b = max(new_a, s[2 * e]), max(new_b, s[2 * e + 1])
                if new_a > top_a:
                    factor = math.exp(top_a - new_a)
                    total_a *= factor
                    for k in range(d):
                        part[p, k] *= factor
                    top_a = new_a
                if new_b > top_b:
                    factor = math.exp(top_b - new_b)
                    total_b *= factor
                    for k in range(d):
                        part[p_back, k] *= factor
                    top_b = new_b
                shift_a, shift_b = top_a if top_a > low else zero, top_b if top_b > low else zero
                for m in range(BLOCK):  # always as many, so that no remainder is left to scalars
                    e = min(first + m, last - 1)
                    weight_a[m], weight_b[m] = exp(s[2 * e] - shift_a), exp(s[2 * e + 1] - shift_b)
                for m in range(last - first, BLOCK):
                    weight_a[m], weight_b[m] = zero, zero
                for m in range(BLOCK):
                    total_a += weight_a[m]
                    total_b += weight_b[m]
                for m in range(0, last - first, 4):
                    e0 = first + m
                    e1, e2, e3 = min(e0 + 1, last - 1), min(e0 + 2, last - 1), min(e0 + 3, last - 1)
                    i0, i1, i2, i3 = head[e0], head[e1], head[e2], head[e3]
                    j0, j1, j2, j3 = tail[e0], tail[e1], tail[e2], tail[e3]
                    a0, a1, a2, a3 = weight_a[m], weight_a[m + 1], weight_a[m + 2], weight_a[m + 3]
                    b0, b1, b2, b3 = weight_b[m], weight_b[m + 1], weight_b[m + 2], weight_b[m + 3]
                    for k in range(d):
                        h, t = x[i0, k], x[j0, k]
                        sum_a, sum_b = a0 * phi_rel(score, h, t), b0 * phi_rel(score, t, h)
                        h, t = x[i1, k], x[j1, k]
                        sum_a += a1 * phi_rel(score, h, t)
                        sum_b += b1 * phi_rel(score, t, h)
                        h, t = x[i2, k], x[j2, k]
                        sum_a += a2 * phi_rel(score, h, t)
                        sum_b += b2 * phi_rel(score, t, h)
                        h, t = x[i3, k], x[j3, k]
                        sum_a += a3 * phi_rel(score, h, t)
                        sum_b += b3 * phi_rel(score, t, h)
                        part[p, k] += sum_a
                        part[p_back, k] += sum_b
            if with_sums:
                part_top[p], part_top[p_back] = top_a, top_b
                part_total[p], part_total[p_back] = total_a, total_b
            p = next_task(counter)

    return run


@Pass
def entity_pass(score: str, width: int, digest: int) -> Any:
    """The weighted sum over each head's context: from stored scores, without a dot product.

    Rows moved a context triple: e_t; a row's own e_h and result beside them.
    """

    def run(
        x, y, relation, tail, link, chunk, chunk_row, chunk_slot, task, s,
        out, lse, part, part_top, part_total, tasks, counter,
    ):  # fmt: skip
        vectorized_pass()
        assert digest
        d = width if width > 0 else x.shape[1]
        real = x.dtype.type
        zero, low = real(0), real(-np.inf)
        short = d * x.itemsize < LONG_ROW
        weight, tops = np.empty(LONGEST_TASK, x.dtype), np.empty(LONGEST_TASK, x.dtype)
        n = next_task(counter)
        while n < tasks:
            base, last = chunk[task[n]], chunk[task[n + 1]]
            for p in range(task[n], task[n + 1]):
                start, end, top = chunk[p] - base, chunk[p + 1] - base, low
                for m in range(start, end):
                    weight[m] = s[link[base + m]]
                    top = max(top, weight[m])
                top = top if top > low else zero
                tops[p - task[n]] = top
                for m in range(start, end):
                    weight[m] -= top
            for m in range(last - base):
                weight[m] = exp(weight[m])
            for p in range(task[n], task[n + 1]):
                row, slot, start, end = chunk_row[p], chunk_slot[p], chunk[p], chunk[p + 1]
                target, place = (out, row) if slot < 0 else (part, slot)
                total = zero
                for m in range(start - base, end - base):
                    total += weight[m]
                for k in range(d):
                    target[place, k] = zero
                for e0 in range(start, end if total != 0 else start, 4):
                    # past the end the last triple is taken again, with weight zero
                    e1, e2, e3 = min(e0 + 1, end - 1), min(e0 + 2, end - 1), min(e0 + 3, end - 1)
                    i0, i1, i2, i3 = relation[e0], relation[e1], relation[e2], relation[e3]
                    j0, j1, j2, j3 = tail[e0], tail[e1], tail[e2], tail[e3]
                    for e in range(min(e0 + 4, last), min(e0 + 8, last) if short else 0):
                        for k in range(0, d, LINE):
                            prefetch(x, tail[e], k)
                    w0 = weight[e0 - base]
                    w1 = weight[e1 - base] if e0 + 1 < end else zero
                    w2 = weight[e2 - base] if e0 + 2 < end else zero
                    w3 = weight[e3 - base] if e0 + 3 < end else zero
                    for k in range(d):
                        target[place, k] += (
                            w0 * phi_ent(score, y[i0, k], x[j0, k])
                            + w1 * phi_ent(score, y[i1, k], x[j1, k])
                            + w2 * phi_ent(score, y[i2, k], x[j2, k])
                            + w3 * phi_ent(score, y[i3, k], x[j3, k])
                        )
                top = tops[p - task[n]]
                if slot >= 0:
                    part_top[slot], part_total[slot] = top, total
                else:
                    factor = real(1) / total if total != 0 else zero
                    for k in range(d):
                        target[place, k] = x[row, k] + factor * target[place, k]
                    lse[row] = top + math.log(total) if total != 0 else real(np.inf)
            n = next_task(counter)

    return run


@light_pass
def merge_pass(score: str, width: int, digest: int) -> Any:
    """Rows cut into chunks from their parts, in the order of the chunks: repeatable on any threads."""

    def run(rows, row_of, bounds, part, part_top, part_total, out, lse, tasks, counter):
        vectorized_pass()
        assert digest
        d = width if width > 0 else rows.shape[1]
        real = rows.dtype.type
        zero, low = real(0), real(-np.inf)
        n = next_task(counter)
        while n < tasks:
            row, first, last = row_of[n], bounds[n], bounds[n + 1]
            top, total = low, zero
            for p in range(first, last):
                top = max(top, part_top[p]) if part_total[p] != 0 else top
            for p in range(first, last):
                total += part_total[p] * math.exp(part_top[p] - top) if part_total[p] != 0 else zero
            for k in range(d):
                out[row, k] = rows[row, k]
            for p in range(first, last):
                factor = math.exp(part_top[p] - top) / total if part_total[p] != 0 else zero
                for k in range(d):
                    out[row, k] += factor * part[p, k]
            lse[row] = top + math.log(total) if total != 0 else real(np.inf)
            n = next_task(counter)

    return run


def forward(
    x: Tensor, y: Tensor, plan: Plan, mask: Tensor | None, score: str, context: str
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The layer on contiguous CPU rows x [N, d] and y [2R, d].

    Returns:
        New x and y; the scores [E] in relation order, each triple's before its inverse's, -inf where masked;
        each row's log-sum-exp, [N] and [2R], +inf for a row without a live triple or outside the context,
        so that exp(s - lse) is the weight everywhere.
    """
    width, chunks, slots = x.shape[1], len(plan.relation_chunk_row), int(plan.cut_slot[-1])
    with_entities, with_relations = context != "relation", context != "entity"
    s = x.new_empty(2 * len(plan.head))
    part, top, total = _parts(x, 2 * chunks if with_relations else 0)
    relation_pass(
        score, width, chunks,
        x, y, plan.head, plan.tail, plan.triple, plan.relation_chunk, plan.relation_chunk_row,
        x.new_zeros(0, dtype=torch.bool) if mask is None else mask, mask is not None, with_relations,
        s, part, top, total,
    )  # fmt: skip
    new_x = torch.empty_like(x) if with_entities else x.clone()
    new_y = torch.empty_like(y) if with_relations else y.clone()
    lse_x, lse_y = x.new_full((len(x),), torch.inf), y.new_full((len(y),), torch.inf)
    if with_relations:
        merge_pass(
            ANY_SCORE, width, len(y),
            y, plan.relation_row, plan.relation_part, part, top, total, new_y, lse_y,
        )  # fmt: skip
    if with_entities:
        part, top, total = _parts(x, slots)
        entity_pass(
            score, width, len(plan.entity_task) - 1,
            x, y, plan.context_relation, plan.context_tail, plan.context_record,
            plan.entity_chunk, plan.entity_chunk_row, plan.entity_chunk_slot, plan.entity_task, s,
            new_x, lse_x, part, top, total,
        )  # fmt: skip
        merge_pass(
            ANY_SCORE, width, len(plan.cut_row),
            x, plan.cut_row, plan.cut_slot, part, top, total, new_x, lse_x,
        )  # fmt: skip
    return new_x, new_y, s, lse_x, lse_y


def _parts(x: Tensor, slots: int) -> tuple[Tensor, Tensor, Tensor]:
    """Room for the sums, maxima and totals of chunks."""
    return x.new_empty(slots, x.shape[1]), x.new_empty(slots), x.new_empty(slots)
