"""Backward of the context layer in Numba: row products, relation pass, entity pass and sum of parts.

Everything d-wide is computed again; from the forward come the scores, the log-sum-exps and the new rows.
Source: docs/op.md, "The gradient of one layer".
"""

import math
from typing import Any

import torch
from torch import Tensor

from lightcake_fast.kernels.cpu_compiler import ANY_SCORE, Pass, next_task, vectorized_pass
from lightcake_fast.kernels.cpu_scores import grad_h, grad_r, grad_t, phi_ent, phi_rel, slope
from lightcake_fast.kernels.plan import Plan

ROWS = 64  # rows of a task of the row products
LINK = 5  # numbers a context triple hands from the relation pass to the entity pass


@Pass
def product_pass(score: str, width: int, digest: int) -> Any:
    """D = <g, x' - x> of each row: the part of dL/ds that all triples of a row share."""

    def run(g, new, old, product, tasks, counter):
        vectorized_pass()
        assert digest
        d = width if width > 0 else g.shape[1]
        zero = g.dtype.type(0)
        n = next_task(counter)
        while n < tasks:
            for row in range(n * ROWS, min((n + 1) * ROWS, g.shape[0])):
                total = zero
                for k in range(d):
                    total += g[row, k] * (new[row, k] - old[row, k])
                product[row] = total
            n = next_task(counter)

    return run


@Pass
def relation_pass(score: str, width: int, digest: int) -> Any:
    """dL/ds of each raw triple and its inverse, and each chunk's share of dL/dr of both.

    With X = <g_h, phi_ent>, Y = <q_r, phi_rel>: delta = alpha (X - D_h) + beta (Y - D_r). Five numbers a
    context triple go to the entity pass: its slope and beta; slope, beta and alpha of its inverse. Rows
    moved a raw triple: e_h, e_t, g_h, g_t.
    """

    def run(
        x, y, g, q, head, tail, forward, inverse, chunk, chunk_row,
        s, lse_x, lse_y, product_x, product_y, link, part, tasks, counter,
    ):  # fmt: skip
        vectorized_pass()
        assert digest
        d = width if width > 0 else x.shape[1]
        zero = x.dtype.type(0)
        p = next_task(counter)
        while p < tasks:
            row = chunk_row[p]
            back, p_back = row + y.shape[0] // 2, p + tasks
            start, end = chunk[p], chunk[p + 1]
            for k in range(d):
                part[p, k] = zero
                part[p_back, k] = zero
            for e0 in range(start, end, 2):
                e1 = min(e0 + 1, end - 1)  # past the end the last triple is taken again, with weight zero
                i0, i1, j0, j1 = head[e0], head[e1], tail[e0], tail[e1]
                ent_a0, rel_a0, ent_b0, rel_b0 = zero, zero, zero, zero
                ent_a1, rel_a1, ent_b1, rel_b1 = zero, zero, zero, zero
                for k in range(d):
                    r, r_back, q_r, q_back = y[row, k], y[back, k], q[row, k], q[back, k]
                    h, t = x[i0, k], x[j0, k]
                    ent_a0 += phi_ent(score, r, t) * g[i0, k]
                    rel_a0 += phi_rel(score, h, t) * q_r
                    ent_b0 += phi_ent(score, r_back, h) * g[j0, k]
                    rel_b0 += phi_rel(score, t, h) * q_back
                    h, t = x[i1, k], x[j1, k]
                    ent_a1 += phi_ent(score, r, t) * g[i1, k]
                    rel_a1 += phi_rel(score, h, t) * q_r
                    ent_b1 += phi_ent(score, r_back, h) * g[j1, k]
                    rel_b1 += phi_rel(score, t, h) * q_back
                f0, f1, v0, v1 = forward[e0], forward[e1], inverse[e0], inverse[e1]
                alpha_a0, beta_a0 = math.exp(s[f0] - lse_x[i0]), math.exp(s[f0] - lse_y[row])
                alpha_b0, beta_b0 = math.exp(s[v0] - lse_x[j0]), math.exp(s[v0] - lse_y[back])
                alpha_a1, beta_a1 = math.exp(s[f1] - lse_x[i1]), math.exp(s[f1] - lse_y[row])
                alpha_b1, beta_b1 = math.exp(s[v1] - lse_x[j1]), math.exp(s[v1] - lse_y[back])
                a0 = alpha_a0 * (ent_a0 - product_x[i0]) + beta_a0 * (rel_a0 - product_y[row])
                b0 = alpha_b0 * (ent_b0 - product_x[j0]) + beta_b0 * (rel_b0 - product_y[back])
                a1 = alpha_a1 * (ent_a1 - product_x[i1]) + beta_a1 * (rel_a1 - product_y[row])
                b1 = alpha_b1 * (ent_b1 - product_x[j1]) + beta_b1 * (rel_b1 - product_y[back])
                a0, b0 = slope(score, a0, s[f0]), slope(score, b0, s[v0])
                a1, b1 = slope(score, a1, s[f1]), slope(score, b1, s[v1])
                link[f0, 0], link[f0, 1], link[f0, 2], link[f0, 3] = a0, beta_a0, b0, beta_b0
                link[v0, 0], link[v0, 1], link[v0, 2], link[v0, 3] = b0, beta_b0, a0, beta_a0
                link[f1, 0], link[f1, 1], link[f1, 2], link[f1, 3] = a1, beta_a1, b1, beta_b1
                link[v1, 0], link[v1, 1], link[v1, 2], link[v1, 3] = b1, beta_b1, a1, beta_a1
                link[f0, 4], link[v0, 4], link[f1, 4], link[v1, 4] = alpha_b0, alpha_a0, alpha_b1, alpha_a1
                if e0 + 1 >= end:
                    a1, b1, alpha_a1, alpha_b1 = zero, zero, zero, zero
                for k in range(d):
                    r, r_back = y[row, k], y[back, k]
                    h0, t0, h1, t1 = x[i0, k], x[j0, k], x[i1, k], x[j1, k]
                    part[p, k] += grad_r(score, a0, alpha_a0, g[i0, k], h0, r, t0) + grad_r(
                        score, a1, alpha_a1, g[i1, k], h1, r, t1
                    )
                    part[p_back, k] += grad_r(score, b0, alpha_b0, g[j0, k], t0, r_back, h0) + grad_r(
                        score, b1, alpha_b1, g[j1, k], t1, r_back, h1
                    )
            p = next_task(counter)

    return run


@Pass
def entity_pass(score: str, width: int, digest: int) -> Any:
    """dL/dh: each context triple as its head's, its inverse as its tail's, in one sweep.

    Rows moved a context triple: e_t, g_t; a row's own e_h, g_h and result beside them.
    """

    def run(
        x, y, g, q, relation, tail, chunk, chunk_row, chunk_slot, task, link, out, part, tasks, counter
    ):  # fmt: skip
        vectorized_pass()
        assert digest
        d = width if width > 0 else x.shape[1]
        zero = x.dtype.type(0)
        half = y.shape[0] // 2
        n = next_task(counter)
        while n < tasks:
            for p in range(task[n], task[n + 1]):
                row, slot = chunk_row[p], chunk_slot[p]
                target, place = (out, row) if slot < 0 else (part, slot)
                for k in range(d):
                    target[place, k] = g[row, k] if slot < 0 else zero
                for e in range(chunk[p], chunk[p + 1]):
                    r, t = relation[e], tail[e]
                    back = r + half if r < half else r - half
                    a, beta_a, b, beta_b, alpha_b = link[e, 0], link[e, 1], link[e, 2], link[e, 3], link[e, 4]
                    for k in range(d):
                        target[place, k] += grad_h(
                            score, a, beta_a, q[r, k], x[row, k], y[r, k], x[t, k]
                        ) + grad_t(
                            score, b, alpha_b, g[t, k], beta_b, q[back, k], x[t, k], y[back, k], x[row, k]
                        )
            n = next_task(counter)

    return run


@Pass
def sum_pass(score: str, width: int, digest: int) -> Any:
    """The gradient of rows cut into chunks: their own plus their parts, in the order of the chunks."""

    def run(gradient, row_of, bounds, part, out, tasks, counter):
        vectorized_pass()
        assert digest
        d = width if width > 0 else gradient.shape[1]
        n = next_task(counter)
        while n < tasks:
            row = row_of[n]
            for k in range(d):
                out[row, k] = gradient[row, k]
            for p in range(bounds[n], bounds[n + 1]):
                for k in range(d):
                    out[row, k] += part[p, k]
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
    lse_x: Tensor,
    lse_y: Tensor,
    plan: Plan,
    score: str,
) -> tuple[Tensor, Tensor]:
    """dL/dx [N, d] and dL/dy [2R, d] from the gradients g, q of the new rows and what forward returned.

    A row without a live triple, or outside the context, has lse +inf: its weights are exactly zero.
    """
    width, chunks, slots = x.shape[1], len(plan.relation_chunk_row), int(plan.cut_slot[-1])
    product_x, product_y = x.new_empty(len(x)), x.new_empty(len(y))
    product_pass(ANY_SCORE, width, -(-len(x) // ROWS), g, new_x, x, product_x)
    product_pass(ANY_SCORE, width, -(-len(y) // ROWS), q, new_y, y, product_y)

    link, part, grad_y = x.new_empty(len(s), LINK), x.new_empty(2 * chunks, width), torch.empty_like(y)
    relation_pass(
        score, width, chunks,
        x, y, g, q, plan.head, plan.tail, plan.forward, plan.inverse,
        plan.relation_chunk, plan.relation_chunk_row,
        s, lse_x, lse_y, product_x, product_y, link, part,
    )  # fmt: skip
    sum_pass(ANY_SCORE, width, len(y), q, plan.relation_row, plan.relation_part, part, grad_y)

    grad_x, part = torch.empty_like(x), x.new_empty(slots, width)
    entity_pass(
        score, width, len(plan.entity_task) - 1,
        x, y, g, q, plan.context_relation, plan.context_tail,
        plan.entity_chunk, plan.entity_chunk_row, plan.entity_chunk_slot, plan.entity_task,
        link, grad_x, part,
    )  # fmt: skip
    sum_pass(ANY_SCORE, width, len(plan.cut_row), g, plan.cut_row, plan.cut_slot, part, grad_x)
    return grad_x, grad_y
