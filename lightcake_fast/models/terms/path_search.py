"""Search for paths of two triples, compiled by Numba."""

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from lightcake_fast.models.neighbours import Ids, Lists


def count_paths(
    heads: Ids, tails: Ids, head_list: Ids, of_heads: Lists, tail_list: Ids, of_tails: Lists, relations: int
) -> tuple[Ids, NDArray[np.int32], Ids]:
    """Find the kinds of paths of two triples that join pairs.

    Args:
        heads: int64 (B,), with the ids of ``other``.
        tails: int64 (B,), with the ids of ``other``.
        head_list: int64 (B,), the list number of each head.
        of_heads: lists of heads.
        tail_list: int64 (B,), the list number of each tail.
        of_tails: lists of tails.
        relations: 2R.

    Returns:
        The kinds of each pair in order, first relation x 2R + second; the number of paths per kind; and the
        number of kinds per pair, int64 (B,).
    """
    sizes = np.empty(len(heads), np.int64)
    kinds, numbers = np.empty(2 * len(heads) + 16, np.int64), np.empty(2 * len(heads) + 16, np.int32)
    found, left = np.empty(1024, np.int64), 0
    for n in range(len(heads)):
        a, b = head_list[n], tail_list[n]
        size, found = _find(heads[n], tails[n], a, of_heads, b, of_tails, relations, found)
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
    head: int, tail: int, list_a: int, lists_a: Lists, list_b: int, lists_b: Lists, relations: int, found: Ids
) -> tuple[int, Ids]:
    """Return the number of paths of a pair, and a buffer with their kinds; it can be a longer buffer."""
    half, size = relations // 2, 0
    other_a, other_b = lists_a.other, lists_b.other
    a, end_a = lists_a.bounds[list_a], lists_a.bounds[list_a + 1]
    b, end_b = lists_b.bounds[list_b], lists_b.bounds[list_b + 1]
    while a < end_a and b < end_b:
        middle = other_a[a]
        if middle < other_b[b]:
            a = seek(other_a, a, end_a, other_b[b])
            continue
        if other_b[b] < middle:
            b = seek(other_b, b, end_b, middle)
            continue
        start_b = b
        while b < end_b and other_b[b] == middle:
            b += 1
        while a < end_a and other_a[a] == middle:
            while size + b - start_b > len(found):
                found = _doubled(found)
            first = lists_a.relation[a] * relations
            for back in lists_b.relation[start_b:b]:  # relations from the tail
                if middle != head and middle != tail:
                    found[size] = first + (back - half if back >= half else back + half)
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
    """Return the first position from ``place`` on, below ``end``, with an entity of at least ``wanted``."""
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
