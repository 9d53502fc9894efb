"""Forward of the context layer in Numba: relation pass, entity pass and merge, no E x d array."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightcake_fast.kernels.cpu_compiler import ANY_SCORE, Pass, next_task, vectorized_pass
from lightcake_fast.kernels.cpu_scores import phi_ent, phi_rel, psi, psi_term
from lightcake_fast.kernels.plan import Plan


@Pass
def relation_pass(score: str, width: int, digest: int) -> Any:
    """Both scores of each raw triple, and each chunk's share of its two relation sums.

    Triples (h, r, t) and (t, r + R, h) are settled together, four raw triples at a time: their entity
    rows stay in the first cache between the dot products and the sums. The running maximum of the
    online softmax moves seldom, so rescaling costs little. Rows moved a raw triple: e_h, e_t.
    """

    def run(
        x, y, head, tail, forward, inverse, triple, chunk, chunk_row, mask, has_mask, with_sums,
        s, part, part_top, part_total, tasks, counter,
    ):  # fmt: skip
        vectorized_pass()
        assert digest
        d = width if width > 0 else x.shape[1]
        real = x.dtype.type
        zero, low = real(0), real(-np.inf)
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
            for e0 in range(start, end, 4):
                # past the end the last triple is taken again, with weight zero
                e1, e2, e3 = min(e0 + 1, end - 1), min(e0 + 2, end - 1), min(e0 + 3, end - 1)
                i0, i1, i2, i3 = head[e0], head[e1], head[e2], head[e3]
                j0, j1, j2, j3 = tail[e0], tail[e1], tail[e2], tail[e3]
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
                a0, a1, a2, a3 = psi(score, a0), psi(score, a1), psi(score, a2), psi(score, a3)
                b0, b1, b2, b3 = psi(score, b0), psi(score, b1), psi(score, b2), psi(score, b3)
                if has_mask:
                    if mask[triple[e0]]:
                        a0, b0 = low, low
                    if mask[triple[e1]]:
                        a1, b1 = low, low
                    if mask[triple[e2]]:
                        a2, b2 = low, low
                    if mask[triple[e3]]:
                        a3, b3 = low, low
                s[forward[e0]], s[inverse[e0]] = a0, b0
                s[forward[e1]], s[inverse[e1]] = a1, b1
                s[forward[e2]], s[inverse[e2]] = a2, b2
                s[forward[e3]], s[inverse[e3]] = a3, b3
                if not with_sums:
                    continue
                if e0 + 1 >= end:
                    a1, b1 = low, low
                if e0 + 2 >= end:
                    a2, b2 = low, low
                if e0 + 3 >= end:
                    a3, b3 = low, low
                new_a, new_b = max(max(a0, a1), max(a2, a3)), max(max(b0, b1), max(b2, b3))
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
                if top_a == low or top_b == low:
                    continue  # nothing live so far
                a0, a1 = math.exp(a0 - top_a), math.exp(a1 - top_a)
                a2, a3 = math.exp(a2 - top_a), math.exp(a3 - top_a)
                b0, b1 = math.exp(b0 - top_b), math.exp(b1 - top_b)
                b2, b3 = math.exp(b2 - top_b), math.exp(b3 - top_b)
                total_a += a0 + a1 + a2 + a3
                total_b += b0 + b1 + b2 + b3
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
        x, y, relation, tail, chunk, chunk_row, chunk_slot, task, s,
        out, lse, part, part_top, part_total, tasks, counter,
    ):  # fmt: skip
        vectorized_pass()
        assert digest
        d = width if width > 0 else x.shape[1]
        real = x.dtype.type
        zero, low = real(0), real(-np.inf)
        n = next_task(counter)
        while n < tasks:
            for p in range(task[n], task[n + 1]):
                row, slot, start, end = chunk_row[p], chunk_slot[p], chunk[p], chunk[p + 1]
                target, place = (out, row) if slot < 0 else (part, slot)
                top, total = low, zero
                for e in range(start, end):
                    top = max(top, s[e])
                for k in range(d):
                    target[place, k] = zero
                for e0 in range(start, end if top > low else start, 4):
                    # past the end the last triple is taken again, with weight zero
                    e1, e2, e3 = min(e0 + 1, end - 1), min(e0 + 2, end - 1), min(e0 + 3, end - 1)
                    i0, i1, i2, i3 = relation[e0], relation[e1], relation[e2], relation[e3]
                    j0, j1, j2, j3 = tail[e0], tail[e1], tail[e2], tail[e3]
                    w0 = math.exp(s[e0] - top)
                    w1 = math.exp(s[e1] - top) if e0 + 1 < end else zero
                    w2 = math.exp(s[e2] - top) if e0 + 2 < end else zero
                    w3 = math.exp(s[e3] - top) if e0 + 3 < end else zero
                    total += w0 + w1 + w2 + w3
                    for k in range(d):
                        target[place, k] += (
                            w0 * phi_ent(score, y[i0, k], x[j0, k])
                            + w1 * phi_ent(score, y[i1, k], x[j1, k])
                            + w2 * phi_ent(score, y[i2, k], x[j2, k])
                            + w3 * phi_ent(score, y[i3, k], x[j3, k])
                        )
                if slot >= 0:
                    part_top[slot], part_total[slot] = top, total
                else:
                    factor = real(1) / total if top > low else zero
                    for k in range(d):
                        target[place, k] = x[row, k] + factor * target[place, k]
                    lse[row] = top + math.log(total) if top > low else real(np.inf)
            n = next_task(counter)

    return run


@Pass
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
                top = max(top, part_top[p])
            for p in range(first, last):
                total += part_total[p] * math.exp(part_top[p] - top) if part_top[p] > low else zero
            for k in range(d):
                out[row, k] = rows[row, k]
            for p in range(first, last):
                factor = math.exp(part_top[p] - top) / total if part_top[p] > low else zero
                for k in range(d):
                    out[row, k] += factor * part[p, k]
            lse[row] = top + math.log(total) if top > low else real(np.inf)
            n = next_task(counter)

    return run


def forward(
    x: Tensor, y: Tensor, plan: Plan, mask: Tensor | None, score: str, context: str
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The layer on contiguous CPU rows x [N, d] and y [2R, d].

    Returns:
        New x and y; the scores [E] in head order, -inf where masked; each row's log-sum-exp, [N] and
        [2R], +inf for a row without a live triple or outside the context, so that exp(s - lse) is the
        weight everywhere.
    """
    width, chunks, slots = x.shape[1], len(plan.relation_chunk_row), int(plan.cut_slot[-1])
    with_entities, with_relations = context != "relation", context != "entity"
    s = x.new_empty(2 * len(plan.head))
    part, top, total = _parts(x, 2 * chunks if with_relations else 0)
    relation_pass(
        score, width, chunks,
        x, y, plan.head, plan.tail, plan.forward, plan.inverse, plan.triple,
        plan.relation_chunk, plan.relation_chunk_row,
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
            x, y, plan.context_relation, plan.context_tail,
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
