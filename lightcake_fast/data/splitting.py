"""Random split of triples. It keeps every relation and, if possible, every entity in training."""

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightcake_fast.errors import InputError, counted

Triples = NDArray[Any]
SPLITS = ("train", "valid", "test")
SHARES = (0.8, 0.1, 0.1)  # default shares of train, valid and test
_BLOCK = 1 << 16


def parse_shares(split: Sequence[float] | str) -> tuple[float, ...]:
    """Parse the shares of train, valid and test from numbers or from text such as ".8,.1,.1".

    Raises:
        InputError: The shares are not three positive numbers with sum 1.
    """
    try:
        shares = tuple(float(part) for part in (split.split(",") if isinstance(split, str) else split))
    except (TypeError, ValueError):
        shares = ()
    if len(shares) != 3 or not all(share > 0 for share in shares) or abs(sum(shares) - 1) > 1e-6:
        raise InputError(
            f"split: expected three positive shares with sum 1, got {split!r}: use shares such as .8,.1,.1"
        )
    return shares


def split_triples(
    triples: Triples, num_entities: int, num_relations: int, shares: Sequence[float], seed: int = 0
) -> tuple[list[Triples], list[str]]:
    """Split distinct triples `[T, 3]` at random. Equal arguments give equal splits.

    A triple is held out only if its head, tail and relation keep a training triple. If there are too few such
    triples, some entities lose their last training triple. A relation always keeps one.

    Returns:
        Train, valid and test, in the given order of triples, and warnings about smaller splits and lost
        entities.

    Raises:
        InputError: There are too few triples for three splits, or the seed is not an integer of at least 0.
    """
    try:
        random = np.random.default_rng(operator.index(seed))
    except (TypeError, ValueError) as error:
        raise InputError(f"seed: expected an integer of at least 0, got {seed!r}: use such a seed") from error
    asked = [max(round(share * len(triples)), 1) for share in shares[1:]]
    # random() gives the same numbers in every numpy version
    order = np.argsort(random.random(len(triples)), kind="stable")
    held = np.array(_held_out(triples, order, num_entities, num_relations, sum(asked)), np.int64)
    if len(held) < 2:
        raise InputError(
            f"split: expected triples for train, valid and test, got {counted(len(triples), 'triple')} of "
            f"{counted(num_relations, 'relation')}: add triples"
        )
    held = held[np.argsort(random.random(len(held)), kind="stable")]
    valid, test = np.split(held, [min(max(round(len(held) * asked[0] / sum(asked)), 1), len(held) - 1)])
    part = np.zeros(len(triples), np.int8)
    part[valid], part[test] = 1, 2
    splits = [triples[part == number] for number in range(3)]
    notes = []
    if len(held) < sum(asked):
        notes.append(
            f"split: {counted(len(held), 'triple')} held out instead of {sum(asked):,}: "
            "every relation keeps one training triple"
        )
    used, trained = (np.unique(rows[:, ::2]) for rows in (triples, splits[0]))
    if len(trained) < len(used):
        lost = len(used) - len(trained)
        have = "has" if lost == 1 else "have"
        notes.append(f"split: {counted(lost, 'entity')} {have} no training triple")
    return splits, notes


def _held_out(
    triples: Triples, order: NDArray[np.int64], num_entities: int, num_relations: int, wanted: int
) -> list[int]:
    """Row numbers of the triples to hold out, at most `wanted`."""
    uses = np.bincount(triples[:, ::2].ravel(), minlength=num_entities).tolist()
    left = np.bincount(triples[:, 1], minlength=num_relations).tolist()
    held: list[int] = []
    passed: list[int] = []
    for place, (head, relation, tail) in _rows(triples, order):
        if len(held) == wanted:
            return held
        more = 2 if head == tail else 1
        if left[relation] > 1 and uses[head] > more and uses[tail] > more:
            held.append(place)
            left[relation] -= 1
            uses[head] -= 1
            uses[tail] -= 1
        else:
            passed.append(place)
    for place, (_, relation, _) in _rows(triples, np.array(passed, np.int64)):
        if len(held) < wanted and left[relation] > 1:
            held.append(place)
            left[relation] -= 1
    return held


def _rows(triples: Triples, places: NDArray[np.int64]) -> Iterator[tuple[int, list[int]]]:
    """Yield row numbers and their triples as Python numbers, converted in blocks."""
    for start in range(0, len(places), _BLOCK):
        block = places[start : start + _BLOCK]
        yield from zip(block.tolist(), triples[block].tolist(), strict=True)
