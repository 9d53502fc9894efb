"""Graphs that reach every way to cut rows, with random rows and the results of a layer."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from lightcake_fast.graph import ContextGraph
from lightcake_fast.kernels import plan
from lightcake_fast.kernels.plan import ENTITY_CHUNK, RELATION_CHUNK
from lightcake_fast.ops import context_layer
from lightcake_fast.scores import BUILT_IN, FUSED, score_named

QUICK_SCORES = ("distmult", "transe", "complex")  # one and two columns, linear and nonlinear
SCORES = tuple(s if s in QUICK_SCORES else pytest.param(s, marks=pytest.mark.full) for s in FUSED)
CPU_SCORES = (*SCORES, "transh")
KERNELS = (*(("numba", score) for score in BUILT_IN), *(("triton", score) for score in FUSED))
CONTEXTS = ("both", "entity", "relation")

Triples = npt.NDArray[np.int64]
Case = tuple[Triples, int, int]  # triples, N, R


def degrees(rng: np.random.Generator) -> Case:
    """Entity k and relation k have k triples, k = 0 .. 9: every remainder of the unrolled loops."""
    heads = np.repeat(np.arange(10), np.arange(10))
    tails = rng.permutation(np.arange(10, 10 + len(heads)))
    return np.stack([heads, heads, tails], 1), 60, 10


def relation_edges(rng: np.random.Generator) -> Case:
    """Relations with one triple less than a chunk, exactly a chunk, and one more; sorted."""
    relations = np.repeat(np.arange(3), [RELATION_CHUNK - 1, RELATION_CHUNK, RELATION_CHUNK + 1])
    heads, tails = rng.integers(0, 40, (2, len(relations)))
    triples = np.stack([heads, relations, tails], 1)
    return triples[np.lexsort(triples.T[::-1])], 40, 3


def hubs(rng: np.random.Generator) -> Case:
    """Entity 0 has one context triple more than a chunk, entity 1 exactly a chunk, as heads and tails."""
    count = 2 * ENTITY_CHUNK + 1
    hub, other = np.arange(count) % 2, np.arange(count) // 2 + 2
    forward = rng.random(count) < 0.5
    heads, tails = np.where(forward, hub, other), np.where(forward, other, hub)
    return rng.permutation(np.stack([heads, rng.integers(0, 2, count), tails], 1)), other[-1] + 1, 2


def duplicates(rng: np.random.Generator) -> Case:
    """Unsorted triples. Most of them occur twice, and some are loops."""
    triples = rng.integers(0, [7, 2, 7], (20, 3))
    triples[:4, 2] = triples[:4, 0]
    return rng.permutation(np.concatenate([triples, triples[:14]])), 8, 2


def _between(rng: np.random.Generator, count: int, entities: int, relations: int) -> Triples:
    return rng.integers(0, [entities, relations, entities], (count, 3))


def sparse(rng: np.random.Generator) -> Case:
    """Entities with one context triple and with none, a relation with one triple and one with none."""
    triples = np.concatenate([[[0, 0, 1], [2, 1, 3]], _between(rng, 7, 6, 1) + np.array([4, 2, 4])])
    return triples, 14, 4


def edges(rng: np.random.Generator) -> Case:
    """Entities with one context triple less than a chunk, a chunk, and one more; the same for relations."""
    entity_chunk, (relation_chunk, _) = plan.GPU_ENTITY_CHUNK, plan.GPU_RELATION_CHUNK
    heads = np.repeat([0, 1, 2], [entity_chunk - 1, entity_chunk, entity_chunk + 1])
    heads = np.append(heads, np.full(3 * (relation_chunk - entity_chunk), 3))
    relations = np.repeat([0, 1, 2], [relation_chunk - 1, relation_chunk, relation_chunk + 1])
    tails = np.arange(len(heads)) % 20 + 4
    return np.stack([heads, rng.permutation(relations), tails], 1), 24, 3


def hub(rng: np.random.Generator) -> Case:
    """One entity is head or tail of most triples, and one relation has most triples. Both rows are cut."""
    count = 3 * max(plan.GPU_ENTITY_CHUNK, plan.GPU_RELATION_CHUNK[0])
    triples = _between(rng, count, 9, 2)
    triples[: count // 2, 0], triples[count // 2 + 2 :, 2], triples[4:, 1] = 5, 5, 1
    return triples, 9, 2


# Graphs with cut rows for the Numba passes and for the Triton kernels.
CPU_GRAPHS = {function.__name__: function for function in (degrees, relation_edges, hubs, duplicates)}
GPU_GRAPHS = {function.__name__: function for function in (sparse, edges, hub, duplicates)}
GRAPHS = CPU_GRAPHS | GPU_GRAPHS


def layer_inputs(
    name: str, width: int, dtype: torch.dtype, device: str = "cpu", seed: int = 7
) -> tuple[Tensor, Tensor, ContextGraph, Tensor]:
    """Return entities, relations, graph, and a mask: a third of the triples, one relation, one entity."""
    rng = np.random.default_rng(seed)
    triples, num_entities, num_relations = GRAPHS[name](rng)
    graph = ContextGraph.from_triples(torch.from_numpy(triples).to(device), num_entities, num_relations)
    x, y = random_rows(graph, width, dtype, seed=seed)
    mask = rng.random(len(triples)) < 0.3
    mask |= triples[:, 1] == triples[-1, 1]
    mask |= (triples[:, [0, 2]] == triples[0, 0]).any(1)
    return x.to(device), y.to(device), graph, torch.from_numpy(mask).to(device)


def random_rows(
    graph: ContextGraph, width: int, dtype: torch.dtype, *, scale: float = 0.7, seed: int = 1
) -> tuple[Tensor, Tensor]:
    """Return normal rows [N, d] and [2R, d]. At the given scale, DistMult scores are below about one."""
    random = torch.Generator().manual_seed(seed)
    scale /= max(width, 4) ** (1 / 6)
    x, y = (
        (torch.randn(rows, width, generator=random, dtype=torch.float64) * scale).to(dtype)
        for rows in (graph.num_entities, 2 * graph.num_relations)
    )
    return x, y


def with_planes(y: Tensor) -> Tensor:
    """Return relations [2R, 2 d] with planes from [2R, d]: normals of length one are added."""
    normals = torch.randn(y.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    return torch.cat([y, torch.nn.functional.normalize(normals, dim=1).to(y)], 1)


def as_read(y: Tensor, score: str) -> Tensor:
    """Return relations [2R, d] in the form that the layers of a score read."""
    return with_planes(y) if score_named(score).planes else y


def layer_results(
    x: Tensor, y: Tensor, graph: ContextGraph, *, dtype: torch.dtype | None = None, **options: Any
) -> dict[str, Tensor]:
    """Return a layer's new rows and the gradients of one random combination of them, by name.

    With ``dtype``, the layer computes in this dtype from the same numbers: its upstream gradients are first
    rounded to the dtype of ``x`` and ``y``.
    """
    given = x.dtype
    x, y = (table.detach().to(dtype or given).requires_grad_() for table in (x, y))
    # the reference returns its input if the context does not change a table
    rows = [table.clone() for table in context_layer(x, y, graph, **options)]
    random = torch.Generator().manual_seed(2)
    upstream = [torch.randn(t.shape, generator=random, dtype=torch.float64).to(given).to(t) for t in rows]
    grad_x, grad_y = torch.autograd.grad(rows, (x, y), upstream)
    return {
        "entities": rows[0].detach(),
        "relations": rows[1].detach(),
        "dL/dentities": grad_x,
        "dL/drelations": grad_y,
    }


def pairwise(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return few combinations of a grid's values, so that any two values of two keys occur together."""
    missing = {
        frozenset([(a, x), (b, y)])
        for a, b in itertools.combinations(grid, 2)
        for x in grid[a]
        for y in grid[b]
    }
    rest = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    pairs = [set(map(frozenset, itertools.combinations(case.items(), 2))) for case in rest]
    cases = []
    while missing:
        best = max(range(len(rest)), key=lambda n: len(missing & pairs[n]))
        missing -= pairs.pop(best)
        cases.append(rest.pop(best))
    return cases
