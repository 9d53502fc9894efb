"""Which rank owns which entity: a partition whose ranks have about equal work and few rows in common."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightcake_fast.compiled import run_compiled
from lightcake_fast.errors import InputError
from lightcake_fast.sharding.shard import Ids, Layout

METHODS = ("greedy", "metis")
SLACK = 1.1  # of an even share of the work, at most, for the greedy method
PASSES = 8  # over all entities: the first places them, the others move them


def owners(triples: NDArray[np.integer[Any]], num_entities: int, parts: int, method: str = "greedy") -> Ids:
    """Each entity's rank, int64 (N,): the same in every process, on every machine.

    Args:
        triples: int32 or int64 (T, 3), the training triples.
        num_entities: N.
        parts: P, at least 1.
        method: "greedy" takes the entities, heaviest first, and puts each where most of its neighbours are,
            the less so the fuller the place is; then again, with all neighbours placed. "metis" takes the
            METIS library, by the package pymetis.

    Raises:
        InputError: There is no such method, or pymetis is not installed.

    Source: Stanton and Kliot, KDD 2012 (linear deterministic greedy); Nishimura and Ugander, KDD 2013.
    """
    if method not in METHODS:
        raise InputError(f"method: got {method!r}, wanted one of {', '.join(METHODS)}")
    if parts == 1:
        return np.zeros(num_entities, np.int64)
    first, neighbour = _neighbours(triples, num_entities)
    weight = np.diff(first) + 1  # a row's own work is about a triple's
    if method == "metis":
        return _metis(first, neighbour, weight, parts)
    owner = np.full(num_entities, -1, np.int32)
    load = np.zeros(parts)
    order = np.argsort(-weight, kind="stable").astype(np.int32)
    for _ in range(PASSES):
        run_compiled(_place, order, first, neighbour, weight, SLACK * weight.sum() / parts, owner, load)
    return owner.astype(np.int64)


def _place(order, first, neighbour, weight, room, owner, load):  # type: ignore[no-untyped-def]
    """Put each entity where neighbours times the room left are most, else where there is most room."""
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
    """A CSR over entities: bounds (N + 1,), and the other end of each of an entity's triples."""
    ends = triples[:, ::2].astype(np.int32, copy=False)
    heads, tails = np.concatenate([ends[:, 0], ends[:, 1]]), np.concatenate([ends[:, 1], ends[:, 0]])
    first = np.concatenate([[0], np.cumsum(np.bincount(heads, minlength=num_entities))])
    return first, tails[np.argsort(heads, kind="stable")]


def _metis(first: Ids, neighbour: NDArray[np.int32], weight: Ids, parts: int) -> Ids:
    try:
        import pymetis
    except ImportError as error:
        raise InputError(
            "method: got 'metis' without pymetis, wanted it (pip install 'lightcake_fast[scale]') or 'greedy'"
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
    """Halo rows of all ranks by the rows there are, and the most triples of a rank by an even share."""
    rows, halo = sum(len(one.rows) for one in layouts), sum(len(one.halo) for one in layouts)
    return halo / max(rows, 1), max(held) * len(layouts) / max(triples, 1)
