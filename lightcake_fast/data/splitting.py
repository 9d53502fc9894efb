"""A split of triples by chance that keeps every entity and every relation in training where it can."""

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightcake_fast.errors import InputError, counted

Triples = NDArray[Any]
SHARES = (0.8, 0.1, 0.1)  # of train, valid and test, where nobody asks for others
_BLOCK = 1 << 16


def parse_shares(split: Sequence[float] | str) -> tuple[float, ...]:
    """Shares of train, valid and test from numbers or from text such as ".8,.1,.1".

    Raises:
        InputError: They are not three numbers above 0 with the sum 1.
    """
    try:
        shares = tuple(float(part) for part in (split.split(",") if isinstance(split, str) else split))
    except (TypeError, ValueError):
        shares = ()
    if len(shares) != 3 or not all(share > 0 for share in shares) or abs(sum(shares) - 1) > 1e-6:
        raise InputError(
            f"split: got {split!r}, wanted three shares above 0 with the sum 1, such as .8,.1,.1"
        )
    return shares


def split_triples(
    triples: Triples, num_entities: int, num_relations: int, shares: Sequence[float], seed: int = 0
) -> tuple[list[Triples], list[str]]:
    """Divide distinct triples `[T, 3]` by chance; equal arguments give equal splits.

    A triple is held out if its head, its tail and its relation have others left in training. Where too few
    are such, entities lose their last training triple, relations never.

    Returns:
        Train, valid and test, each in the order given; and what could not be kept, in words.

    Raises:
        InputError: There are too few triples for one in each split, or the seed is none.
    """
    try:
        random = np.random.default_rng(operator.index(seed))
    except (TypeError, ValueError) as error:
        raise InputError(f"seed: got {seed!r}, wanted a whole number of at least 0") from error
    asked = [max(round(share * len(triples)), 1) for share in shares[1:]]
    # of random() alone: its draws are the same in every numpy version
    order = np.argsort(random.random(len(triples)), kind="stable")
    held = np.array(_held_out(triples, order, num_entities, num_relations, sum(asked)), np.int64)
    if len(held) < 2:
        raise InputError(
            f"split: got {counted(len(triples), 'triple')} of {counted(num_relations, 'relation')}: none is "
            "left to hold out for valid and for test, wanted more"
        )
    held = held[np.argsort(random.random(len(held)), kind="stable")]
    valid, test = np.split(held, [min(max(round(len(held) * asked[0] / sum(asked)), 1), len(held) - 1)])
    part = np.zeros(len(triples), np.int8)
    part[valid], part[test] = 1, 2
    splits = [triples[part == number] for number in range(3)]
    notes = []
    if len(held) < sum(asked):
        notes.append(
            f"split: {counted(len(held), 'triple')} held out, not {sum(asked):,}: "
            "every relation keeps one in training"
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
    """Places of the triples to hold out, at most as many as wanted."""
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
    """Places and the triples there, made Python numbers a block at a time."""
    for start in range(0, len(places), _BLOCK):
        block = places[start : start + _BLOCK]
        yield from zip(block.tolist(), triples[block].tolist(), strict=True)
