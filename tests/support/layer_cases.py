"""Graphs that try a context layer's cuts and edges, and a small cover of all pairs of a grid."""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lightcake_fast.graph import ContextGraph
from lightcake_fast.kernels import plan

Triples = npt.NDArray[np.int64]


def pairwise(grid: Mapping[str, Sequence[Any]], times: int = 1) -> list[dict[str, Any]]:
    """Few combinations of a grid's values, in which any two values of two keys meet so many times."""
    missing = Counter(
        {
            frozenset([(a, x), (b, y)]): times
            for a, b in itertools.combinations(grid, 2)
            for x in grid[a]
            for y in grid[b]
        }
    )
    rest = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    cases = []
    while missing:
        pairs = [Counter(map(frozenset, itertools.combinations(case.items(), 2))) for case in rest]
        best = max(range(len(rest)), key=lambda n: len(missing & pairs[n]))
        missing -= pairs[best]
        cases.append(rest.pop(best))
    return cases


def _between(rng: np.random.Generator, count: int, entities: int, relations: int) -> Triples:
    return rng.integers(0, [entities, relations, entities], (count, 3))


def sparse(rng: np.random.Generator) -> tuple[Triples, int, int]:
    """Entities of one context triple and of none, a relation of one triple and one of none."""
    triples = np.concatenate([[[0, 0, 1], [2, 1, 3]], _between(rng, 7, 6, 1) + np.array([4, 2, 4])])
    return triples, 14, 4


def edges(rng: np.random.Generator) -> tuple[Triples, int, int]:
    """Entities whose context is one below, at and above the chunk; relations likewise."""
    entity_chunk, (relation_chunk, _) = plan.GPU_ENTITY_CHUNK, plan.GPU_RELATION_CHUNK
    heads = np.repeat([0, 1, 2], [entity_chunk - 1, entity_chunk, entity_chunk + 1])
    heads = np.append(heads, np.full(3 * (relation_chunk - entity_chunk), 3))
    relations = np.repeat([0, 1, 2], [relation_chunk - 1, relation_chunk, relation_chunk + 1])
    tails = np.arange(len(heads)) % 20 + 4
    return np.stack([heads, rng.permutation(relations), tails], 1), 24, 3


def hub(rng: np.random.Generator) -> tuple[Triples, int, int]:
    """One entity in most triples, as head and as tail, one relation of most triples: both are cut."""
    count = 3 * max(plan.GPU_ENTITY_CHUNK, plan.GPU_RELATION_CHUNK[0])
    triples = _between(rng, count, 9, 2)
    triples[: count // 2, 0], triples[count // 2 + 2 :, 2], triples[4:, 1] = 5, 5, 1
    return triples, 9, 2


def duplicates(rng: np.random.Generator) -> tuple[Triples, int, int]:
    """Triples given twice, loops, and unsorted."""
    triples = _between(rng, 12, 5, 2)
    triples[:3, 2] = triples[:3, 0]
    return rng.permutation(np.concatenate([triples, triples[:8]])), 5, 2


GRAPHS = {function.__name__: function for function in (sparse, edges, hub, duplicates)}


def layer_inputs(
    name: str, width: int, dtype: torch.dtype, device: str = "cpu", seed: int = 0
) -> tuple[Tensor, Tensor, ContextGraph, Tensor]:
    """Entities, relations, graph and a mask: of a third, of all of a relation and all of an entity."""
    rng = np.random.default_rng(seed)
    triples, num_entities, num_relations = GRAPHS[name](rng)
    graph = ContextGraph.from_triples(torch.from_numpy(triples).to(device), num_entities, num_relations)
    scale = 0.7 / max(width, 4) ** (1 / 6)  # scores of about one, whatever the width
    x, y = (
        torch.from_numpy(rng.normal(scale=scale, size=(rows, width))).to(device, dtype)
        for rows in (num_entities, 2 * num_relations)
    )
    out = rng.random(len(triples)) < 0.3
    out |= (triples[:, 1] == triples[0, 1]) & (triples[:, 0] != triples[0, 0])
    out |= (triples[:, [0, 2]] == triples[-1, 0]).any(1)
    return x, y, graph, torch.from_numpy(out).to(device)
