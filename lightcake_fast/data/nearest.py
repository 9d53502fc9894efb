"""Find the names most similar to a misspelt name, in well under a second among a million names."""

import difflib
from collections.abc import Iterator, Sequence
from itertools import chain, islice

import numpy as np
from numpy.typing import NDArray

_MOST_COMPARED = 512  # maximum number of names for difflib
_LETTERS = 1 << 14  # maximum number of letters for difflib, whose time grows with both
_BLOCK = 1 << 17  # names per block, a few MB


def nearest_names(name: str, names: Sequence[str], count: int = 3) -> list[str]:
    """Up to `count` names similar to `name`, the most similar first.

    `difflib` compares up to a few hundred names. From a longer list, it compares only the names that share
    the most pairs of neighboring bytes with `name`.

    Args:
        name: The misspelt name.
        names: Names to search.
        count: Maximum number of names.
    """
    compared = max(8, min(_MOST_COMPARED, _LETTERS // max(len(name), 1)))
    block = _BLOCK
    while len(names) > compared:
        names = list(chain.from_iterable(_shortlists(name, names, compared, block)))
        block = len(names)
    return difflib.get_close_matches(name, names, count)


def _shortlists(name: str, names: Sequence[str], compared: int, block: int) -> Iterator[Sequence[str]]:
    """Per block, the names that share the most pairs of bytes with `name`, relative to their length."""
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
    """UTF-8 bytes of the names, with a NUL before, between and after them."""
    return np.frombuffer("\0".join(["", *names, ""]).encode(errors="replace"), np.uint8)


def _pairs(text: NDArray[np.uint8]) -> NDArray[np.uint16]:
    """One number per pair of neighboring bytes."""
    pairs = text[:-1].astype(np.uint16)
    pairs <<= 8
    pairs |= text[1:]
    return pairs
