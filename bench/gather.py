"""A lower bound on a CPU: read only the rows that a layer must read, with Numba, in the layer's order.

`python -m bench.gather [DATASET ...]` compares it with a layer at three widths, in alternating rounds.
"""

import argparse
import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from lightcake_fast.kernels.cpu_compiler import LONG_ROW, Pass, next_task, prefetch_row
from lightcake_fast.kernels.plan import Plan
from lightcake_fast.process import prepare_process

DATASETS = ("ddb14", "wn18rr", "nell995", "fb15k-237")
GOALS = {64: 2.5, 128: 2.0, 256: 2.0}  # by d: goal for the layer's time divided by the gather's time
ROUNDS = 25


@Pass
def entity_pass(width: int) -> Any:
    """Sum the rows of the tails over chunks of context triples in head order, from two tables if ``two``."""

    def run(x, g, tail, chunk, task, out, two, tasks, counter):
        d = width if width > 0 else x.shape[1]
        short, zero = d * x.itemsize < LONG_ROW, x.dtype.type(0)
        n = next_task(counter)
        while n < tasks:
            for q in range(task[n], task[n + 1]):
                end = chunk[q + 1]
                for k in range(d):
                    out[q, k] = zero
                for e in range(chunk[q], end):
                    if short and e + 4 < end:
                        prefetch_row(x, tail[e + 4], d)
                        if two:
                            prefetch_row(g, tail[e + 4], d)
                    t = tail[e]
                    if two:
                        for k in range(d):
                            out[q, k] += x[t, k] + g[t, k]
                    else:
                        for k in range(d):
                            out[q, k] += x[t, k]
            n = next_task(counter)

    return run


@Pass
def relation_pass(width: int) -> Any:
    """Sum the rows of both ends over chunks of raw triples in relation order, from two tables if ``two``."""

    def run(x, g, head, tail, chunk, out, two, tasks, counter):
        d = width if width > 0 else x.shape[1]
        short, zero = d * x.itemsize < LONG_ROW, x.dtype.type(0)
        p = next_task(counter)
        while p < tasks:
            end = chunk[p + 1]
            for k in range(d):
                out[p, k] = zero
            for e in range(chunk[p], end):
                if short and e + 4 < end:
                    prefetch_row(x, head[e + 4], d)
                    prefetch_row(x, tail[e + 4], d)
                    if two:
                        prefetch_row(g, head[e + 4], d)
                        prefetch_row(g, tail[e + 4], d)
                h, t = head[e], tail[e]
                if two:
                    for k in range(d):
                        out[p, k] += x[h, k] + x[t, k] + g[h, k] + g[t, k]
                else:
                    for k in range(d):
                        out[p, k] += x[h, k] + x[t, k]
            p = next_task(counter)

    return run


def gathered(plan: Plan, x: Tensor, g: Tensor | None) -> tuple[Tensor, Tensor]:
    """Read the rows ``x`` (N, d) of the two forward passes, or with ``g`` (N, d) the rows of the backward.

    Returns:
        The sums over the plan's chunks: of entities (Q, d), of relations (P, d).
    """
    width, two, other = x.shape[1], g is not None, x if g is None else g
    entities = x.new_empty(len(plan.entity_chunk_row), width)
    relations = x.new_empty(len(plan.relation_chunk_row), width)
    relation_pass(width, len(relations), x, other, plan.head, plan.tail, plan.relation_chunk, relations, two)
    tasks = len(plan.entity_task) - 1
    entity_pass(width, tasks, x, other, plan.context_tail, plan.entity_chunk, plan.entity_task, entities, two)
    return entities, relations


def gathered_by_definition(plan: Plan, x: Tensor, g: Tensor | None) -> tuple[Tensor, Tensor]:
    """Compute the same sums with PyTorch."""
    rows = x if g is None else x + g

    def sums(ids: Tensor, bounds: Tensor) -> Tensor:
        return functional.embedding_bag(ids.long(), rows, bounds, mode="sum", include_last_offset=True)

    ends = sums(plan.head, plan.relation_chunk) + sums(plan.tail, plan.relation_chunk)
    return sums(plan.context_tail, plan.entity_chunk), ends


def main() -> None:
    """Print the table."""
    prepare_process()
    from bench.layers import BUILDERS, TOLERANCE, compared, largest_difference, layer_input
    from bench.measuring import timed
    from lightcake_fast.training.runtime import device_name

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("datasets", nargs="*", default=DATASETS, metavar="DATASET")
    cpu = torch.device("cpu")
    print(f"{device_name(cpu)}, torch {torch.__version__}, best of {ROUNDS} alternating rounds\n")
    print("| data set | d | layer, ms | bare gather, ms | ratio | goal |\n|---|---|---|---|---|---|")
    for name in parser.parse_args().datasets:
        for dim, goal in GOALS.items():
            given = layer_input(name, dim)
            steps = {which: BUILDERS[which](given) for which in ("lightcake", "gather")}
            best = dict.fromkeys(steps, math.inf)
            for which, step in steps.items():
                difference = largest_difference(*compared(which, given, step.both(), None))
                assert difference < TOLERANCE, f"not timed: {which} on {name} differs by {difference:.1e}"
            for _ in range(ROUNDS):
                for which, step in steps.items():
                    best[which] = min(best[which], timed(step.both, cpu)[1])
            layer, gather = (1e3 * seconds for seconds in best.values())
            print(
                f"| {name} | {dim} | {layer:.1f} | {gather:.1f} | {layer / gather:.2f} | {goal:g} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
