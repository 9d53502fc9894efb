"""The search for paths of two triples, for Numba."""

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]


def count_paths(
    heads: Ids, tails: Ids, bounds: Ids, other: Ids, relation: Ids, relations: int
) -> tuple[Ids, NDArray[np.int32], Ids]:
    """Find the kinds of paths of two triples that join pairs.

    Args:
        heads: int64 (B,).
        tails: int64 (B,).
        bounds: int64 (N + 2,), where each entity's triples begin and end.
        other: int64 (D,), the other end of each triple, sorted for each entity.
        relation: int64 (D,), which leads there.
        relations: 2R.

    Returns:
        The kinds of each pair in order, first relation x 2R + second; the number of paths of each; and how
        many kinds each pair has, int64 (B,).
    """
    sizes = np.empty(len(heads), np.int64)
    kinds, numbers = np.empty(2 * len(heads) + 16, np.int64), np.empty(2 * len(heads) + 16, np.int32)
    found, left = np.empty(1024, np.int64), 0
    for n in range(len(heads)):
        size, found = _find(heads[n], tails[n], bounds, other, relation, relations, found)
        while left + size > len(kinds):
            kinds, numbers = _doubled(kinds), _doubled(numbers)
        first = left
        for kind in np.sort(found[:size]):
            if left > first and kinds[left - 1] == kind:
                numbers[left - 1] += 1
            else:
                kinds[left], numbers[left] = kind, 1
                left += 1
        sizes[n] = left - first
    return kinds[:left].copy(), numbers[:left].copy(), sizes


@numba.njit(nogil=True)  # type: ignore[untyped-decorator]
def _find(
    head: int, tail: int, bounds: Ids, other: Ids, relation: Ids, relations: int, found: Ids
) -> tuple[int, Ids]:
    """How many paths join a pair, and the kind of each in a buffer: that given, or a longer one."""
    half, size = relations // 2, 0
    a, end_a = bounds[head], bounds[head + 1]
    b, end_b = bounds[tail], bounds[tail + 1]
    while a < end_a and b < end_b:
        middle = other[a]
        if middle < other[b]:
            a = seek(other, a, end_a, other[b])
            continue
        if other[b] < middle:
            b = seek(other, b, end_b, middle)
            continue
        start_b = b
        while b < end_b and other[b] == middle:
            b += 1
        while a < end_a and other[a] == middle:
            while size + b - start_b > len(found):
                found = _doubled(found)
            for back in relation[start_b:b]:  # which leads from the tail
                if middle != head and middle != tail:
                    found[size] = relation[a] * relations + (back - half if back >= half else back + half)
                    size += 1
            a += 1
    return size, found


@numba.njit(nogil=True)  # type: ignore[untyped-decorator]
def _doubled(buffer: NDArray[Any]) -> NDArray[Any]:
    longer = np.empty(2 * len(buffer), buffer.dtype)
    longer[: len(buffer)] = buffer
    return longer


@numba.njit(nogil=True)  # type: ignore[untyped-decorator]
def seek(other: Ids, place: int, end: int, wanted: int) -> int:
    """The first place from this one on, below the end, of an entity that is not below the wanted one."""
    step = 1
    while place + step < end and other[place + step] < wanted:
        place += step
        step *= 2
    end = min(place + step, end)
    while place < end:
        middle = (place + end) // 2
        if other[middle] < wanted:
            place = middle + 1
        else:
            end = middle
    return place
