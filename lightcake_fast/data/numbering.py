"""Number the names of large files by first appearance, without a Python string per occurrence."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightcake_fast.compiled import run_compiled
from lightcake_fast.data.names import Source
from lightcake_fast.data.table import Table

SMALLEST_BYTES = 1 << 25  # for smaller files, compiling the functions below takes longer than reading
MULTIPLIER = 0x9E3779B97F4A7C15 - (1 << 64)  # of the hash: odd, with well-mixed bits
_BATCH = 256  # names per prefetch: their cache lines fit into L2
_FEWEST_SLOTS = 1 << 12

Bytes = NDArray[np.uint8]
Places = NDArray[np.int64]


def big_tables(sources: Sequence[Source]) -> list[Table]:
    """The sources, if all are tab-separated files and their total size is large; otherwise an empty list."""
    tables = [source for source in sources if type(source) is Table]
    with suppress(OSError):  # reading the file reports this error
        if len(tables) == len(sources) and sum(t.path.stat().st_size for t in tables) >= SMALLEST_BYTES:
            return tables
    return []


class Numbering:
    """A hash table that gives each new name the next number.

    A used slot is an int64: 31 bits of the name's hash, then number + 1. `_blob` holds all names, each with a
    NUL after it, and `_bounds` holds their offsets. If hashes are equal, the names themselves are compared.
    """

    def __init__(self) -> None:
        self._count = 0
        self._slots: Places = np.zeros(_FEWEST_SLOTS, np.int64)
        self._bounds: Places = np.zeros(1, np.int64)
        self._blob: Bytes = np.zeros(1, np.uint8)

    def number(self, data: Bytes, starts: Places, ends: Places) -> NDArray[np.int32]:
        """Numbers of the names `data[start:end]`, int32 `[n]`. The names must not contain NUL."""
        most = self._count + len(starts)
        if 2 * most > len(self._slots):
            bigger = np.zeros(1 << (3 * most).bit_length(), np.int64)
            run_compiled(_move, self._slots, bigger)
            self._slots = bigger
        self._bounds = _with_room(self._bounds, most + 1)
        self._blob = _with_room(self._blob, int(self._bounds[self._count]) + len(data) + len(starts) + 1)
        ids = np.empty(len(starts), np.int32)
        known = self._slots, self._bounds, self._blob, self._count
        self._count = run_compiled(_find_or_add, data, starts, ends, *known, MULTIPLIER, ids)
        return ids

    def names(self) -> tuple[str, ...]:
        """All names by number. The table must not be empty."""
        return tuple(self._blob[: self._bounds[self._count] - 1].tobytes().decode().split("\0"))


def _with_room(array: NDArray[Any], size: int) -> NDArray[Any]:
    """Grow an array to at least `size` elements. It doubles, so that the total cost of growth is linear."""
    if len(array) >= size:
        return array
    bigger = np.zeros(max(size, 2 * len(array)), array.dtype)
    bigger[: len(array)] = array
    return bigger


def _find_or_add(data, starts, ends, slots, bounds, blob, count, multiplier, ids):  # type: ignore[no-untyped-def]
    """Write the number of each name to `ids`, add new names, and return the number of names."""
    mask = len(slots) - 1
    tags = np.empty(_BATCH, np.int64)
    for first in range(0, len(starts), _BATCH):
        size = min(len(starts) - first, _BATCH)
        for i in range(size):
            mixed = np.int64(0)
            for j in range(starts[first + i], ends[first + i]):
                mixed = (mixed ^ data[j]) * multiplier
            tags[i] = (mixed >> 32) & 0x7FFFFFFF
        # prefetch: the exact loop below would wait for each cache line, these loads overlap
        for i in range(size):
            ids[first + i] = slots[tags[i] & mask] & 0x7FFFFFFF
        for i in range(size):
            ids[first + i] = blob[bounds[ids[first + i]]]
        for i in range(size):
            start, end = starts[first + i], ends[first + i]
            slot = tags[i] & mask
            while True:
                number = (slots[slot] & 0x7FFFFFFF) - 1
                if number < 0:
                    for j in range(end - start):
                        blob[bounds[count] + j] = data[start + j]
                    blob[bounds[count] + end - start] = 0
                    bounds[count + 1] = bounds[count] + end - start + 1
                    number = count
                    count += 1
                    slots[slot] = tags[i] << 32 | count
                    break
                if slots[slot] >> 32 == tags[i] and bounds[number + 1] - bounds[number] == end - start + 1:
                    j = 0
                    while j < end - start and blob[bounds[number] + j] == data[start + j]:
                        j += 1
                    if j == end - start:
                        break
                slot = (slot + 1) & mask
            ids[first + i] = number
    return count


def _move(slots, bigger):  # type: ignore[no-untyped-def]
    """Copy the entries of a hash table into a larger one."""
    mask = len(bigger) - 1
    for entry in slots:
        if entry:
            slot = (entry >> 32) & mask
            while bigger[slot]:
                slot = (slot + 1) & mask
            bigger[slot] = entry
