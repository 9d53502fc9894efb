"""Backward of the context layer in Numba: row products, relation pass and entity pass.

The backward computes all d-wide values again. It reads from the forward only the scores, the softmax of each
row (maximum and one over the sum) and the new rows. Source: docs/op.md, "The gradient of one layer".
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numba.extending import register_jitable

from lightcake_fast.kernels.cpu_blocks import NumbaBlock, along, along_from, normal, own_products
from lightcake_fast.kernels.cpu_compiler import LONG_ROW, Pass, next_task, prefetch_row
from lightcake_fast.kernels.cpu_math import FAST, exp
from lightcake_fast.kernels.cpu_memory import new_result
from lightcake_fast.kernels.cpu_merge import sum_pass
from lightcake_fast.kernels.plan import LONGEST_TASK, Plan
from lightcake_fast.kernels.scores import SCORES, has_planes

if TYPE_CHECKING:
    from torch import Tensor

ROWS = 64  # rows per task of the row products
SUMMED = 32  # context triples whose gradients form one partial sum
BLOCK = 16  # raw triples per block; their weights are computed together
LINK = 4  # numbers per context triple from the relation pass to the entity pass; the last is unused
PLANES_LINK = 8  # the same with planes; the last two are unused


@Pass
def row_dot_pass(width: int) -> Any:
    """D = <g, x' - x> of each row. All triples of a row share this part of dL/ds.

    Without ``old`` rows, ``new`` already holds the differences.
    """

    def run(g, new, old, row_dot, tasks, counter):
        d = width if width > 0 else g.shape[1]
        zero = g.dtype.type(0)
        n = next_task(counter)
        while n < tasks:
            for row in range(n * ROWS, min((n + 1) * ROWS, g.shape[0])):
                total = zero
                if len(old):
                    for k in range(d):
                        total += g[row, k] * (new[row, k] - old[row, k])
                else:
                    for k in range(d):
                        total += g[row, k] * new[row, k]
                row_dot[row] = total
            n = next_task(counter)

    return run


@register_jitable(**FAST)
def slope_weight(w):
    """The weight as a factor of dL/ds. At weight one it is zero: there X equals D except for rounding."""
    return w - w if w == 1 else w


@Pass
def relation_pass(width: int, block: NumbaBlock) -> Any:
    """dL/ds of each raw triple and its inverse, and each chunk's share of dL/dr of both.

    With X = <g_h, phi_ent>, Y = <q_r, phi_rel>: delta = alpha (X - D_h) + beta (Y - D_r). ``link`` passes
    four numbers per context triple to the entity pass: slope, beta, alpha and one unused number. It is in
    relation order, and each triple precedes its inverse. With planes, each part holds dL/dr and then dL/dw,
    and ``link`` has eight numbers. The extra numbers are the coefficient c of the relation r + c w, and the
    gradients of the projected head and tail along the normal.

    ``q`` is None for relations without context. Numba compiles this case separately, without Y and beta. Rows
    moved per raw triple: e_h, e_t, g_h, g_t.
    """
    phi_ent, phi_rel, slope, grad_r = block.phi_ent, block.phi_rel, block.slope, block.grad_r
    at, add, plus, dot, columns = block.at, block.add, block.plus, block.dot, block.columns
    grad_h, zeros, lean, planes = block.grad_h, block.zeros, block.lean, block.planes
    tables, stride = (2, PLANES_LINK) if planes else (1, LINK)

    def run(
        x, y, g, q, head, tail, chunk, chunk_row,
        s, norm_x, norm_y, row_dot_x, row_dot_y, link, part, tasks, counter,
    ):  # fmt: skip
        d = width if width > 0 else x.shape[1]
        zero, one = y.dtype.type(0), y.dtype.type(1)
        block = BLOCK if d <= 128 else BLOCK // 2  # the rows of a block stay in the L1 cache
        w = np.zeros((18, BLOCK), y.dtype)
        own_a, own_b, of_a, of_b, factor_a, factor_b = w[0], w[1], w[2], w[3], w[4], w[5]
        alpha_a, alpha_b, beta_a, beta_b = w[6], w[7], w[8], w[9]
        # With planes, products with the normal: t - h, the tail, the gradient of the head row, the gradient
        # of the projected h.
        lean_a, lean_b, tail_a, tail_b = w[10], w[11], w[12], w[13]
        pull_a, pull_b, turn_a, turn_b = w[14], w[15], w[16], w[17]
        short, num_relations = d * x.itemsize < LONG_ROW, y.shape[0] // 2
        short_g = d * g.itemsize < LONG_ROW
        p = next_task(counter)
        while p < tasks:
            row = chunk_row[p]
            back, p_back = row + num_relations, p + tasks
            start, end = chunk[p], chunk[p + 1]
            for k in range(tables * d):
                part[p, k] = zero
                part[p_back, k] = zero
            q_a, q_b = zero, zero
            if planes:
                (square_a, r_a), (square_b, r_b) = own_products(y, row, d), own_products(y, back, d)
                if q is not None:
                    q_a, q_b = along(q, row, y, row, d), along(q, back, y, back, d)
            for first in range(start, end, block):
                last = min(first + block, end)
                for e0 in range(first, last, 2):
                    e1 = min(e0 + 1, last - 1)  # past the end the loop reads the last triple again
                    i0, i1, j0, j1 = head[e0], head[e1], tail[e0], tail[e1]
                    m0, m1 = e0 - first, e1 - first
                    if planes:
                        for e in range(e0, e1 + 1):
                            i, j, m = head[e], tail[e], e - first
                            lean_a[m] = along_from(x, i, j, y, row, d)
                            lean_b[m] = along_from(x, j, i, y, back, d)
                            tail_a[m], tail_b[m] = along(x, j, y, row, d), along(x, i, y, back, d)
                            pull_a[m], pull_b[m] = along(g, i, y, row, d), along(g, j, y, back, d)
                    for e in range(min(e0 + 4, end), min(e0 + 6, end) if short else 0):
                        if head[e] != head[e - 1]:
                            prefetch_row(x, head[e], d)
                            if short_g:
                                prefetch_row(g, head[e], d)
                        if tail[e] != tail[e - 1]:
                            prefetch_row(x, tail[e], d)
                            if short_g:
                                prefetch_row(g, tail[e], d)
                    ent_a0, rel_a0, ent_b0, rel_b0 = zero, zero, zero, zero
                    ent_a1, rel_a1, ent_b1, rel_b1 = zero, zero, zero, zero
                    for k in range(d // columns):
                        r, r_back = at(y, row, k), at(y, back, k)
                        h, t = at(x, i0, k), at(x, j0, k)
                        ent_a0 += dot(phi_ent(lean(r, y, row, k, tail_a[m0]), t), at(g, i0, k))
                        ent_b0 += dot(phi_ent(lean(r_back, y, back, k, tail_b[m0]), h), at(g, j0, k))
                        if q is not None:
                            rel_a0 += dot(phi_rel(h, t), at(q, row, k))
                            rel_b0 += dot(phi_rel(t, h), at(q, back, k))
                        h, t = at(x, i1, k), at(x, j1, k)
                        ent_a1 += dot(phi_ent(lean(r, y, row, k, tail_a[m1]), t), at(g, i1, k))
                        ent_b1 += dot(phi_ent(lean(r_back, y, back, k, tail_b[m1]), h), at(g, j1, k))
                        if q is not None:
                            rel_a1 += dot(phi_rel(h, t), at(q, row, k))
                            rel_b1 += dot(phi_rel(t, h), at(q, back, k))
                    own_a[m0], of_a[m0], own_b[m0], of_b[m0] = ent_a0, rel_a0, ent_b0, rel_b0
                    own_a[m1], of_a[m1], own_b[m1], of_b[m1] = ent_a1, rel_a1, ent_b1, rel_b1
                for m in range(last - first):  # gather first, so that LLVM can vectorize the arithmetic below
                    i, j, n = head[first + m], tail[first + m], 2 * (first + m)
                    alpha_a[m], alpha_b[m] = s[n] - norm_x[i, 0], s[n + 1] - norm_x[j, 0]
                    factor_a[m], factor_b[m] = norm_x[i, 1], norm_x[j, 1]
                    own_a[m], own_b[m] = own_a[m] - row_dot_x[i], own_b[m] - row_dot_x[j]
                    if q is not None:
                        beta_a[m], beta_b[m] = s[n] - norm_y[row, 0], s[n + 1] - norm_y[back, 0]
                        of_a[m], of_b[m] = of_a[m] - row_dot_y[row], of_b[m] - row_dot_y[back]
                        if planes:
                            of_a[m], of_b[m] = of_a[m] - lean_a[m] * q_a, of_b[m] - lean_b[m] * q_b
                # a fixed count, so that no scalar remainder loop is needed; the extra entries are not read
                for m in range(BLOCK):
                    alpha_a[m], alpha_b[m] = exp(alpha_a[m]) * factor_a[m], exp(alpha_b[m]) * factor_b[m]
                    own_a[m] = slope_weight(alpha_a[m]) * own_a[m]
                    own_b[m] = slope_weight(alpha_b[m]) * own_b[m]
                    if q is not None:
                        beta_a[m] = exp(beta_a[m]) * norm_y[row, 1]
                        beta_b[m] = exp(beta_b[m]) * norm_y[back, 1]
                        own_a[m] += slope_weight(beta_a[m]) * of_a[m]
                        own_b[m] += slope_weight(beta_b[m]) * of_b[m]
                for m in range(last - first):
                    n = 2 * (first + m)
                    own_a[m], own_b[m] = slope(own_a[m], s[n]), slope(own_b[m], s[n + 1])
                    own, inverse = stride * n, stride * (n + 1)
                    link[own], link[own + 1], link[own + 2] = own_a[m], beta_a[m], alpha_a[m]
                    link[inverse], link[inverse + 1], link[inverse + 2] = own_b[m], beta_b[m], alpha_b[m]
                    if planes:
                        turn_a[m] = own_a[m] * (lean_a[m] * (one - square_a) - r_a) - beta_a[m] * q_a
                        turn_b[m] = own_b[m] * (lean_b[m] * (one - square_b) - r_b) - beta_b[m] * q_b
                        link[own + 3], link[own + 4] = lean_a[m], turn_a[m]
                        link[inverse + 3], link[inverse + 4] = lean_b[m], turn_b[m]
                        link[own + 5] = alpha_a[m] * pull_a[m] - turn_a[m]
                        link[inverse + 5] = alpha_b[m] * pull_b[m] - turn_b[m]
                for e0 in range(first, last, 2):
                    e1 = min(e0 + 1, last - 1)
                    i0, i1, j0, j1 = head[e0], head[e1], tail[e0], tail[e1]
                    m0, m1 = e0 - first, e1 - first
                    a0, alpha_a0, b0, alpha_b0 = own_a[m0], alpha_a[m0], own_b[m0], alpha_b[m0]
                    a1, alpha_a1, b1, alpha_b1 = own_a[m1], alpha_a[m1], own_b[m1], alpha_b[m1]
                    if e0 + 1 >= last:
                        a1, b1, alpha_a1, alpha_b1 = zero, zero, zero, zero
                    for k in range(d // columns):
                        r, r_back = at(y, row, k), at(y, back, k)
                        h0, t0, h1, t1 = at(x, i0, k), at(x, j0, k), at(x, i1, k), at(x, j1, k)
                        r0, back0 = lean(r, y, row, k, lean_a[m0]), lean(r_back, y, back, k, lean_b[m0])
                        r1, back1 = lean(r, y, row, k, lean_a[m1]), lean(r_back, y, back, k, lean_b[m1])
                        first_a = grad_r(a0, alpha_a0, at(g, i0, k), h0, r0, t0)
                        first_b = grad_r(b0, alpha_b0, at(g, j0, k), t0, back0, h0)
                        add(part, p, k, plus(first_a, grad_r(a1, alpha_a1, at(g, i1, k), h1, r1, t1)))
                        add(part, p_back, k, plus(first_b, grad_r(b1, alpha_b1, at(g, j1, k), t1, back1, h1)))
                if planes:
                    for e in range(first, last):
                        i, j, m = head[e], tail[e], e - first
                        for k in range(d):
                            r, r_back = at(y, row, k), at(y, back, k)
                            h, t, q_r, q_back = at(x, i, k), at(x, j, k), zeros(zero), zeros(zero)
                            if q is not None:
                                q_r, q_back = at(q, row, k), at(q, back, k)
                            g_h, g_t = at(g, i, k), at(g, j, k)
                            r = lean(r, y, row, k, lean_a[m])
                            r_back = lean(r_back, y, back, k, lean_b[m])
                            to_h = grad_h(own_a[m], beta_a[m], q_r, h, r, t)
                            to_t = grad_h(own_b[m], beta_b[m], q_back, t, r_back, h)
                            part[p, d + k] += (
                                turn_a[m] * (t[0] - h[0])
                                + lean_a[m] * to_h[0]
                                - alpha_a[m] * (pull_a[m] * t[0] + tail_a[m] * g_h[0])
                            )
                            part[p_back, d + k] += (
                                turn_b[m] * (h[0] - t[0])
                                + lean_b[m] * to_t[0]
                                - alpha_b[m] * (pull_b[m] * h[0] + tail_b[m] * g_t[0])
                            )
            p = next_task(counter)

    return run


@Pass
def entity_pass(width: int, block: NumbaBlock) -> Any:
    """dL/dh: each context triple for its head and the inverse for its tail, in one sweep.

    Gradients are summed in groups of ``SUMMED`` triples. Adding each one to a large sum would lose the digits
    of small numbers. The gradients ``own_rows`` are added last, if there are any. Rows moved per context
    triple: e_t, g_t. Rows moved per row: e_h, g_h and the result.
    """
    grad_h, grad_t, columns = block.grad_h, block.grad_t, block.columns
    at, add, plus, zeros = block.at, block.add, block.plus, block.zeros
    lean, planes = block.lean, block.planes
    stride, taken = (PLANES_LINK, 9) if planes else (LINK, 5)

    def run(
        x, y, g, q, own_rows, relation, tail, record, chunk, chunk_row, chunk_slot, task, link,
        out, part, tasks, counter,
    ):  # fmt: skip
        d = width if width > 0 else x.shape[1]
        zero = y.dtype.type(0)
        short, num_relations = d * x.itemsize < LONG_ROW, y.shape[0] // 2
        handed, acc = np.empty((LONGEST_TASK, taken), y.dtype), np.empty((1, d), y.dtype)
        n = next_task(counter)
        while n < tasks:
            base, last = chunk[task[n]], chunk[task[n + 1]]
            # load all links at once, so that their cache misses do not fall between the rows
            for e in range(base, last):
                own, inverse, m = stride * record[e], stride * (record[e] ^ 1), e - base
                handed[m, 0], handed[m, 1] = link[own], link[own + 1]
                handed[m, 2], handed[m, 3], handed[m, 4] = link[inverse], link[inverse + 1], link[inverse + 2]
                if planes:
                    handed[m, 5], handed[m, 6] = link[own + 3], link[own + 4]
                    handed[m, 7], handed[m, 8] = link[inverse + 3], link[inverse + 5]
            for p in range(task[n], task[n + 1]):
                row, slot = chunk_row[p], chunk_slot[p]
                target, to = (out, row) if slot < 0 else (part, slot)
                start, end = chunk[p], chunk[p + 1]
                for k in range(d):
                    acc[0, k] = zero
                for first in range(start, end, SUMMED):
                    if first == start + SUMMED:
                        for k in range(d):
                            target[to, k], acc[0, k] = acc[0, k], zero
                    elif first > start:
                        for k in range(d):
                            target[to, k] += acc[0, k]
                            acc[0, k] = zero
                    for e in range(first, min(first + SUMMED, end)):
                        r, t, m = relation[e], tail[e], e - base
                        back = r + num_relations if r < num_relations else r - num_relations
                        if short:
                            soon = tail[min(e + 4, last - 1)]
                            prefetch_row(x, soon, d)
                            prefetch_row(g, soon, d)
                        a, beta_a = handed[m, 0], handed[m, 1]
                        b, beta_b, alpha_b = handed[m, 2], handed[m, 3], handed[m, 4]
                        lean_a, turn_a, lean_b, turn_b = zero, zero, zero, zero
                        if planes:
                            lean_a, turn_a = handed[m, 5], handed[m, 6]
                            lean_b, turn_b = handed[m, 7], handed[m, 8]
                        for k in range(d // columns):
                            e_h, e_t, e_r, e_back = at(x, row, k), at(x, t, k), at(y, r, k), at(y, back, k)
                            e_r, e_back = lean(e_r, y, r, k, lean_a), lean(e_back, y, back, k, lean_b)
                            g_t = at(g, t, k)
                            if q is None:
                                as_head = grad_h(a, zero, zeros(zero), e_h, e_r, e_t)
                                as_tail = grad_t(b, alpha_b, g_t, zero, zeros(zero), e_t, e_back, e_h)
                            else:
                                as_head = grad_h(a, beta_a, at(q, r, k), e_h, e_r, e_t)
                                as_tail = grad_t(b, alpha_b, g_t, beta_b, at(q, back, k), e_t, e_back, e_h)
                            add(acc, 0, k, plus(as_head, as_tail))
                            if planes:
                                acc[0, k] -= turn_a * normal(y, r, k, d) + turn_b * normal(y, back, k, d)
                if end > start + SUMMED:
                    for k in range(d):
                        acc[0, k] += target[to, k]
                if slot < 0 and len(own_rows):
                    for k in range(d):
                        target[to, k] = acc[0, k] + own_rows[row, k]
                else:
                    for k in range(d):
                        target[to, k] = acc[0, k]
            n = next_task(counter)

    return run


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
    plan: Plan,
    score: str,
    *,
    residual: bool = True,
    partial: bool = False,
    gathered: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute dL/dx [N, d] and dL/dy [2R, d] from the new rows' gradients g, q and the results of forward.

    With planes, y, q and dL/dy have shape [2R, 2 d]. A row without a live triple or outside the context has
    maximum +inf, so its weights are zero. Without ``residual``, new_x and new_y are the sums alone. With
    ``partial``, dL/dy leaves out q, because other workers hold more triples of the relations.
    """
    width, chunks, slots = x.shape[1], len(plan.relation_chunk_row), int(plan.cut_slot[-1])
    read = x if gathered is None else gathered
    row_dot_x, row_dot_y = x.new_empty(len(x)), x.new_empty(len(y))
    row_dot_pass(width, -(-len(x) // ROWS), g, new_x, x if residual else x[:0], row_dot_x)
    # the layer adds nothing to the normals
    of_y = (rows[:, :width].contiguous() for rows in (q, new_y, y if residual else y[:0]))
    row_dot_pass(width, -(-len(y) // ROWS), *of_y, row_dot_y)
    own_g, own_q = g if residual else g[:0], q if residual and not partial else q[:0]
    # if all relations have weight zero for all triples, no gradient passes through q
    through_q = None if bool((norm_y[:, 0] == math.inf).all()) else q

    stride = PLANES_LINK if has_planes(SCORES[score]) else LINK
    link, grad_y = new_result(x, len(s) * stride), y.new_empty(y.shape)
    part = y.new_empty(2 * chunks, y.shape[1])
    relation_pass(
        width, chunks,
        read, y, g, through_q, plan.head, plan.tail, plan.relation_chunk, plan.relation_chunk_row,
        s, norm_x, norm_y, row_dot_x, row_dot_y, link, part, score=score,
    )  # fmt: skip
    sum_pass(y.shape[1], len(y), grad_y, own_q, plan.relation_row, plan.relation_part, part)

    grad_x, part = new_result(x, *x.shape), x.new_empty(slots, width)
    entity_pass(
        width, len(plan.entity_task) - 1,
        read, y, g, through_q, own_g, plan.context_relation, plan.context_tail, plan.context_record,
        plan.entity_chunk, plan.entity_chunk_row, plan.entity_chunk_slot, plan.entity_task,
        link, grad_x, part, score=score,
    )  # fmt: skip
    sum_pass(width, len(plan.cut_row), grad_x, own_g, plan.cut_row, plan.cut_slot, part)
    return grad_x, grad_y
