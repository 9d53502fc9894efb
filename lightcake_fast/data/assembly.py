"""Make a knowledge graph from names: 32-bit ids, distinct triples, and a check of the relations."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightcake_fast.data.names import FIELDS, Source, check_encoding, check_unbroken, odd_names, quote, trim
from lightcake_fast.data.numbering import Numbering, big_tables
from lightcake_fast.data.splitting import SHARES, SPLITS, split_triples
from lightcake_fast.data.table import Table
from lightcake_fast.errors import InputError

_REMAINDERS = 4_000_037  # a prime, far larger than the usual number of duplicates

Ids = NDArray[np.int32]


class Assembled(NamedTuple):
    """The fields of a `KnowledgeGraph`."""

    name: str
    entities: tuple[str, ...]
    relations: tuple[str, ...]
    train: Ids
    valid: Ids
    test: Ids
    duplicates: dict[str, int]
    notes: tuple[str, ...]


def assemble(
    name: str,
    sources: Sequence[Source],
    entity_ids: dict[str, int] | None = None,
    relation_ids: dict[str, int] | None = None,
    *,
    ids_from: tuple[str, str] = ("entities.dict", "relations.dict"),
    strip: bool = False,
    shares: Sequence[float] = SHARES,
    seed: int = 0,
) -> Assembled:
    """Number the names of train, valid and test, drop duplicates, and check the result.

    Args:
        name: Name of the data set.
        sources: One source per split, or a single source to split at random. Each is read once.
        entity_ids: Id per entity name, in the order of the ids; None numbers entities by first appearance.
        relation_ids: The same for relations.
        ids_from: Origin of these ids, for messages.
        strip: Trim names (see `trim`).
        shares: Shares of the splits, for a single source.
        seed: Seed of the random split, for a single source.

    Raises:
        InputError: A split is empty. A name is missing in the given ids, or contains a tab, a line break or
            a NUL. A relation has no training triple.
    """
    tables = big_tables(sources) if entity_ids is None and relation_ids is None and not strip else []
    if tables:
        triples, names = _number_tables(tables)
    else:
        entities = _by_appearance() if entity_ids is None else entity_ids
        relations = _by_appearance() if relation_ids is None else relation_ids
        triples = [_number(source, entities, relations, ids_from, strip) for source in sources]
        names = tuple(entities), tuple(relations)
        del entities, relations  # as large as all later arrays
        for kind, group in zip(("entities", "relations"), names, strict=True):
            check_encoding(kind, group)
    check_unbroken(sources, triples, *names)
    sizes = len(names[0]), len(names[1])
    notes = odd_names(sources, triples, *names)
    notes += chain.from_iterable(source.notes() for source in sources)
    _check_trained(sources, triples, names[1])
    counts = [len(rows) for rows in triples]
    for index in range(len(triples)):  # replace each array at once: two copies may not fit into memory
        triples[index] = drop_duplicates(triples[index], *sizes)
    dropped = [count - len(rows) for count, rows in zip(counts, triples, strict=True)]
    if len(triples) == 1:
        triples, told = split_triples(triples[0], *sizes, shares, seed)
        notes += told
        dropped += [0, 0]  # duplicates were dropped before the split
    else:
        notes += _held_elsewhere(triples, *sizes)
    duplicates = dict(zip(SPLITS, dropped, strict=True))
    train, valid, test = triples
    return Assembled(name, *names, train, valid, test, duplicates, tuple(notes))


def _held_elsewhere(triples: Sequence[Ids], num_entities: int, num_relations: int) -> list[str]:
    """Notes on triples of valid and test that an earlier split contains too: label leakage."""
    notes = []
    for place in (1, 2):
        own = triples[place]
        ends = np.zeros((2, num_entities), dtype=bool)
        ends[0, own[:, 0]] = ends[1, own[:, 2]] = True
        near = [rows[ends[0, rows[:, 0]] & ends[1, rows[:, 2]]] for rows in triples[:place]]
        others = drop_duplicates(np.concatenate(near), num_entities, num_relations)
        both = np.concatenate([others, own])
        again = len(both) - len(drop_duplicates(both, num_entities, num_relations))
        if again:
            before = " or ".join(SPLITS[:place])
            notes.append(f"{SPLITS[place]}: {again:,} of {len(own):,} triples are also in {before}")
    return notes


def drop_duplicates(triples: Ids, num_entities: int, num_relations: int) -> Ids:
    """Keep the distinct rows of ids `[T, 3]`, in order of first appearance."""
    if num_entities**2 * num_relations >= 2**63:
        order = np.lexsort(triples.T)  # a stable sort keeps the first of equal rows first
        in_order = triples[order]
        repeated = np.zeros(len(triples), dtype=bool)
        repeated[order[1:]] = (in_order[1:] == in_order[:-1]).all(axis=1)
        return triples[~repeated]
    sizes = num_entities, num_relations
    keys = _keys(triples, *sizes)
    keys.sort()
    again = np.unique(keys[1:][keys[1:] == keys[:-1]])
    del keys  # frees memory before the next large array, also below
    if not len(again):
        return triples
    maybe = np.zeros(_REMAINDERS, dtype=bool)
    maybe[again % _REMAINDERS] = True
    remainders = _keys(triples, *sizes)
    remainders %= _REMAINDERS
    rows = np.flatnonzero(maybe[remainders])  # usually few
    del remainders
    keys = _keys(triples[rows], *sizes)
    repeated = np.isin(keys, again)
    rows, keys = rows[repeated], keys[repeated]
    keep = np.ones(len(triples), dtype=bool)
    keep[rows] = False
    keep[rows[np.unique(keys, return_index=True)[1]]] = True
    return triples[keep]


def _keys(triples: Ids, num_entities: int, num_relations: int) -> NDArray[np.int64]:
    """One number per triple: equal numbers mean equal triples."""
    keys = triples[:, 0].astype(np.int64)
    keys *= num_relations
    keys += triples[:, 1]
    keys *= num_entities
    keys += triples[:, 2]
    return keys


def _by_appearance() -> dict[str, int]:
    """A dictionary that gives each new name the next id, with one look-up per name."""
    ids: defaultdict[str, int] = defaultdict()
    ids.default_factory = ids.__len__
    return ids


def _number_tables(tables: Sequence[Table]) -> tuple[list[Ids], tuple[tuple[str, ...], tuple[str, ...]]]:
    """Number by first appearance: ids `[T, 3]` per table, and the names of entities and relations."""
    entities, relations = Numbering(), Numbering()
    triples = []
    for table in tables:
        blocks: list[Ids] = []
        start = table.place(0)
        for data, ends in table.read_bytes():
            ends = ends.reshape(-1, 3)
            starts = np.append(-1, ends.flat[:-1]).reshape(-1, 3) + 1
            rows = np.empty(ends.shape, np.int32)
            for names, columns in ((entities, slice(0, 3, 2)), (relations, slice(1, 2))):
                numbers = names.number(data, starts[:, columns].ravel(), ends[:, columns].ravel())
                rows[:, columns] = numbers.reshape(len(rows), -1)
            blocks.append(rows)
        triples.append(_concatenated(blocks, start))
    return triples, (entities.names(), relations.names())


def _number(
    source: Source,
    entities: dict[str, int],
    relations: dict[str, int],
    ids_from: tuple[str, str],
    strip: bool,
) -> Ids:
    """Convert the triples of a split to ids `[T, 3]`."""
    blocks: list[Ids] = []
    done, start = 0, source.place(0)
    for names in source.read():
        if strip:
            names[:] = map(trim, names)
            if "" in names:
                row, column = divmod(names.index(""), 3)
                raise InputError(
                    f"{source.place(done + row)}: expected a name, got a blank {FIELDS[column]}: add the name"
                )
        rows = np.empty((len(names) // 3, 3), np.int32)
        rows[:, 1] = _look_up(names[1::3], relations, source, done, FIELDS[1:2], ids_from[1])
        del names[1::3]
        pairs = _look_up(names, entities, source, done, FIELDS[::2], ids_from[0])
        rows[:, ::2] = pairs.reshape(-1, 2)
        done += len(rows)
        blocks.append(rows)
    return _concatenated(blocks, start)


def _concatenated(blocks: list[Ids], start: str) -> Ids:
    """Concatenate the blocks of a source; `start` is its first row, for the message."""
    if not blocks:
        raise InputError(f"{start}: expected at least one triple, got none: add triples")
    return np.concatenate(blocks)


def _look_up(
    names: list[str], ids: dict[str, int], source: Source, done: int, fields: tuple[str, ...], ids_from: str
) -> Ids:
    """Look up the ids of names, which cycle through `fields`; the first name is in row `done`."""
    try:
        return np.fromiter(map(ids.__getitem__, names), np.int32, len(names))
    except KeyError as error:
        name = error.args[0]
        row, column = divmod(names.index(name), len(fields))
        problem = f"expected a {fields[column]} from {ids_from}, got {quote(name)}: add it there"
        raise InputError(f"{source.place(done + row)}: {problem}") from error


def _check_trained(sources: Sequence[Source], triples: list[Ids], relations: tuple[str, ...]) -> None:
    """Raise if a relation of valid or test has no training triple: a model cannot learn it."""
    trained = np.zeros(len(relations), dtype=bool)
    trained[triples[0][:, 1]] = True
    for source, rows in zip(sources[1:], triples[1:], strict=True):
        untrained = ~trained[rows[:, 1]]
        if untrained.any():
            row = int(untrained.argmax())
            relation = quote(relations[rows[row, 1]])
            raise InputError(
                f"{source.place(row)}: expected a relation with a training triple, got {relation}: "
                "add a training triple"
            )
