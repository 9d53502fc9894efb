"""Partition of entities among ranks: balanced work and few shared rows."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightcake_fast.compiled import run_compiled
from lightcake_fast.errors import InputError
from lightcake_fast.sharding.shard import Ids, Layout

METHODS = ("greedy", "metis")
SLACK = 1.1  # maximum work per rank in the greedy method, as a multiple of the mean
PASSES = 8  # passes over all entities: the first places them, the others move them


def owners(triples: NDArray[np.integer[Any]], num_entities: int, parts: int, method: str = "greedy") -> Ids:
    """Return the rank of each entity, int64 (N,), equal in every process and on every machine.

    Args:
        triples: int32 or int64 (T, 3), the training triples.
        num_entities: N.
        parts: P, at least 1.
        method: "greedy" visits the entities in decreasing order of work. It puts each entity on the rank with
            most of its neighbors, with a penalty for full ranks. Later passes repeat this with all neighbors
            placed. "metis" uses the METIS library through the package pymetis.

    Raises:
        InputError: The method is unknown, or pymetis is not installed.

    Source: Stanton and Kliot, KDD 2012 (linear deterministic greedy); Nishimura and Ugander, KDD 2013.
    """
    if method not in METHODS:
        raise InputError(f"method: expected one of {', '.join(METHODS)}, got {method!r}")
    if parts == 1:
        return np.zeros(num_entities, np.int64)
    first, neighbour = _neighbours(triples, num_entities)
    weight = np.diff(first) + 1  # one row costs about as much work as one triple
    if method == "metis":
        return _metis(first, neighbour, weight, parts)
    owner = np.full(num_entities, -1, np.int32)
    load = np.zeros(parts)
    order = np.argsort(-weight, kind="stable").astype(np.int32)
    for _ in range(PASSES):
        run_compiled(_place, order, first, neighbour, weight, SLACK * weight.sum() / parts, owner, load)
    return owner.astype(np.int64)


def _place(order, first, neighbour, weight, room, owner, load):  # type: ignore[no-untyped-def]
    """Put each entity on the rank with the largest neighbors x free room, else with the most free room."""
    parts = len(load)
    near = np.zeros(parts)
    for v in order:
        if owner[v] >= 0:
            load[owner[v]] -= weight[v]
        near[:] = 0
        for j in range(first[v], first[v + 1]):
            if owner[neighbour[j]] >= 0 and neighbour[j] != v:
                near[owner[neighbour[j]]] += 1
        best = 0
        for p in range(1, parts):
            gain = near[p] * (1 - load[p] / room) - near[best] * (1 - load[best] / room)
            if gain > 0 or (gain == 0 and load[p] < load[best]):
                best = p
        owner[v] = best
        load[best] += weight[v]


def _neighbours(triples: NDArray[np.integer[Any]], num_entities: int) -> tuple[Ids, NDArray[np.int32]]:
    """Return a CSR over entities: bounds (N + 1,), and the other end of each triple of an entity."""
    ends = triples[:, ::2].astype(np.int32, copy=False)
    heads, tails = np.concatenate([ends[:, 0], ends[:, 1]]), np.concatenate([ends[:, 1], ends[:, 0]])
    first = np.concatenate([[0], np.cumsum(np.bincount(heads, minlength=num_entities))])
    return first, tails[np.argsort(heads, kind="stable")]


def _metis(first: Ids, neighbour: NDArray[np.int32], weight: Ids, parts: int) -> Ids:
    try:
        import pymetis
    except ImportError as error:
        raise InputError(
            "method: expected an installed pymetis for 'metis', got none: run pip install "
            "'lightcake_fast[scale]', or use 'greedy'"
        ) from error
    entity = np.repeat(np.arange(len(weight)), np.diff(first))
    pairs, times = np.unique(entity * len(weight) + neighbour, return_counts=True)
    entity, other = np.divmod(pairs, len(weight))
    real = entity != other
    bounds = np.concatenate([[0], np.cumsum(np.bincount(entity[real], minlength=len(weight)))])
    _, found = pymetis.part_graph(
        parts,
        pymetis.CSRAdjacency(bounds.tolist(), other[real].tolist()),
        vweights=weight.tolist(),
        eweights=times[real].tolist(),
    )
    return np.array(found, np.int64)


def balance(layouts: list[Layout], held: list[int], triples: int) -> tuple[float, float]:
    """Return the halo rows of all ranks per row, and the maximum triples of a rank relative to the mean."""
    rows, halo = sum(len(one.rows) for one in layouts), sum(len(one.halo) for one in layouts)
    return halo / max(rows, 1), max(held) * len(layouts) / max(triples, 1)
