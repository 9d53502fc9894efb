"""The names that look most like a misspelt one, found in well under a second among a million."""

import difflib
from collections.abc import Iterator, Sequence
from itertools import chain, islice

import numpy as np
from numpy.typing import NDArray

_MOST_COMPARED = 512  # names that difflib compares letter by letter
_LETTERS = 1 << 14  # and their letters, for names of equal length: difflib's time grows with both
_BLOCK = 1 << 17  # names that are ranked at a time: their bytes take a few MB


def nearest_names(name: str, names: Sequence[str], count: int = 3) -> list[str]:
    """Up to `count` names that look like `name`, the nearest first.

    A few hundred names are all compared by `difflib`. Of more names, only those that share the most pairs of
    neighboring bytes with `name` are compared.

    Args:
        name: A name, not necessarily one of the others.
        names: Where to look.
        count: Maximum number of names.
    """
    compared = max(8, min(_MOST_COMPARED, _LETTERS // max(len(name), 1)))
    block = _BLOCK
    while len(names) > compared:
        names = list(chain.from_iterable(_shortlists(name, names, compared, block)))
        block = len(names)
    return difflib.get_close_matches(name, names, count)


def _shortlists(name: str, names: Sequence[str], compared: int, block: int) -> Iterator[Sequence[str]]:
    """The names of each block that share the most pairs of bytes with `name`, relative to their length."""
    wanted = _bytes_of([name])
    shared = np.zeros(1 << 16, np.uint8)
    shared[_pairs(wanted)] = 1
    remaining = iter(names)
    while part := list(islice(remaining, block)):
        text = _bytes_of(part)
        ends = np.flatnonzero(text == 0)[1:]
        hits = np.add.reduceat(shared[_pairs(text)], np.append(0, ends[:-1]), dtype=np.int32)
        similarity = 2 * hits / (np.diff(ends, prepend=0) + len(wanted) - 1)
        best = np.argpartition(-similarity, compared)[:compared] if len(part) > compared else range(len(part))
        yield [part[index] for index in best]


def _bytes_of(names: Sequence[str]) -> NDArray[np.uint8]:
    """The names' UTF-8 bytes, with a NUL before, between and behind them."""
    return np.frombuffer("\0".join(["", *names, ""]).encode(errors="replace"), np.uint8)


def _pairs(text: NDArray[np.uint8]) -> NDArray[np.uint16]:
    """A number for each two neighboring bytes."""
    pairs = text[:-1].astype(np.uint16)
    pairs <<= 8
    pairs |= text[1:]
    return pairs
