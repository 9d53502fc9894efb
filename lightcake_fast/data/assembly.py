"""Names become a knowledge graph: ids of 32 bits block by block, each triple once, every relation trained."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from lightcake_fast.data.knowledge_graph import SPLITS, KnowledgeGraph
from lightcake_fast.data.names import FIELDS, Source, check_encoding, check_unbroken, odd_names, quote, trim
from lightcake_fast.data.numbering import Numbering, big_tables
from lightcake_fast.data.splitting import SHARES, split_triples
from lightcake_fast.data.table import Table
from lightcake_fast.errors import InputError

_REMAINDERS = 4_000_037  # a prime: far more than the triples that a split holds twice

Ids = NDArray[np.int32]


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
) -> KnowledgeGraph:
    """Number the names of train, valid and test, drop what a split holds twice, and check.

    Args:
        name: Name of the data set.
        sources: One for each split, or one that is to be split; each is read once.
        entity_ids: Ids of the entities' names, in their order; None numbers them by first appearance.
        relation_ids: The same for relations.
        ids_from: Where these come from, for messages.
        strip: Trim names (see `trim`).
        shares: Of the splits, if there is one source.
        seed: Of the draw, if there is one source.

    Raises:
        InputError: A split is empty, a name is not in the ids given or holds a tab, a line break or a NUL, or
            a relation has no training triple.
    """
    tables = big_tables(sources) if entity_ids is None and relation_ids is None and not strip else []
    if tables:
        triples, names = _number_tables(tables)
    else:
        entities = _by_appearance() if entity_ids is None else entity_ids
        relations = _by_appearance() if relation_ids is None else relation_ids
        triples = [_number(source, entities, relations, ids_from, strip) for source in sources]
        names = tuple(entities), tuple(relations)
        del entities, relations  # as large as everything that follows
        for kind, group in zip(("entities", "relations"), names, strict=True):
            check_encoding(kind, group)
    check_unbroken(sources, triples, *names)
    sizes = len(names[0]), len(names[1])
    notes = odd_names(sources, triples, *names)
    notes += chain.from_iterable(source.notes() for source in sources)
    _check_trained(sources, triples, names[1])
    counts = [len(rows) for rows in triples]
    for index in range(
        len(triples)
    ):  # each in the place of the one before it: they may be as large as memory
        triples[index] = drop_duplicates(triples[index], *sizes)
    dropped = [count - len(rows) for count, rows in zip(counts, triples, strict=True)]
    if len(triples) == 1:
        triples, told = split_triples(triples[0], *sizes, shares, seed)
        notes += told
        dropped += [0, 0]  # before they were split
    else:
        notes += _held_elsewhere(triples, *sizes)
    duplicates = dict(zip(SPLITS, dropped, strict=True))
    train, valid, test = triples
    return KnowledgeGraph(name, *names, train, valid, test, duplicates, tuple(notes))


def _held_elsewhere(triples: Sequence[Ids], num_entities: int, num_relations: int) -> list[str]:
    """What valid and test have that a split before them has: a model has seen the answer."""
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
            notes.append(f"{SPLITS[place]}: {again:,} of {len(own):,} triples are in {before} as well")
    return notes


def drop_duplicates(triples: Ids, num_entities: int, num_relations: int) -> Ids:
    """The distinct rows of ids `[T, 3]`, in the order in which each first appears."""
    if num_entities**2 * num_relations >= 2**63:
        order = np.lexsort(triples.T)  # stable: among equal rows the first stays first
        in_order = triples[order]
        repeated = np.zeros(len(triples), dtype=bool)
        repeated[order[1:]] = (in_order[1:] == in_order[:-1]).all(axis=1)
        return triples[~repeated]
    sizes = num_entities, num_relations
    keys = _keys(triples, *sizes)
    keys.sort()
    again = np.unique(keys[1:][keys[1:] == keys[:-1]])
    del keys  # as large as what follows, here and below
    if not len(again):
        return triples
    maybe = np.zeros(_REMAINDERS, dtype=bool)
    maybe[again % _REMAINDERS] = True
    remainders = _keys(triples, *sizes)
    remainders %= _REMAINDERS
    rows = np.flatnonzero(maybe[remainders])  # few, as a rule
    del remainders
    keys = _keys(triples[rows], *sizes)
    repeated = np.isin(keys, again)
    rows, keys = rows[repeated], keys[repeated]
    keep = np.ones(len(triples), dtype=bool)
    keep[rows] = False
    keep[rows[np.unique(keys, return_index=True)[1]]] = True
    return triples[keep]


def _keys(triples: Ids, num_entities: int, num_relations: int) -> NDArray[np.int64]:
    """A number for each triple, equal for equal ones alone."""
    keys = triples[:, 0].astype(np.int64)
    keys *= num_relations
    keys += triples[:, 1]
    keys *= num_entities
    keys += triples[:, 2]
    return keys


def _by_appearance() -> dict[str, int]:
    """A dictionary that gives a new name the next number: one look-up a name, seen before or not."""
    ids: defaultdict[str, int] = defaultdict()
    ids.default_factory = ids.__len__
    return ids


def _number_tables(tables: Sequence[Table]) -> tuple[list[Ids], tuple[tuple[str, ...], tuple[str, ...]]]:
    """Each table's triples as ids, `[T, 3]`, by first appearance, and the names of entities and relations."""
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
    """A split's triples as ids, `[T, 3]`."""
    blocks: list[Ids] = []
    done, start = 0, source.place(0)
    for names in source.read():
        if strip:
            names[:] = map(trim, names)
            if "" in names:
                row, column = divmod(names.index(""), 3)
                raise InputError(f"{source.place(done + row)}: got a blank {FIELDS[column]}, wanted a name")
        rows = np.empty((len(names) // 3, 3), np.int32)
        rows[:, 1] = _look_up(names[1::3], relations, source, done, FIELDS[1:2], ids_from[1])
        del names[1::3]
        pairs = _look_up(names, entities, source, done, FIELDS[::2], ids_from[0])
        rows[:, ::2] = pairs.reshape(-1, 2)
        done += len(rows)
        blocks.append(rows)
    return _concatenated(blocks, start)


def _concatenated(blocks: list[Ids], start: str) -> Ids:
    """The blocks of a source's triples as one, if there are any; messages say where it starts."""
    if not blocks:
        raise InputError(f"{start}: no triple, wanted at least one")
    return np.concatenate(blocks)


def _look_up(
    names: list[str], ids: dict[str, int], source: Source, done: int, fields: tuple[str, ...], ids_from: str
) -> Ids:
    """Ids of names, which are those of `fields` in turn; the first of them stands in row `done`."""
    try:
        return np.fromiter(map(ids.__getitem__, names), np.int32, len(names))
    except KeyError as error:
        name = error.args[0]
        row, column = divmod(names.index(name), len(fields))
        problem = f"{fields[column]} {quote(name)} is not in {ids_from}"
        raise InputError(f"{source.place(done + row)}: {problem}") from error


def _check_trained(sources: Sequence[Source], triples: list[Ids], relations: tuple[str, ...]) -> None:
    """Raise if valid or test has a relation that no training triple has: nothing could be learned of it."""
    trained = np.zeros(len(relations), dtype=bool)
    trained[triples[0][:, 1]] = True
    for source, rows in zip(sources[1:], triples[1:], strict=True):
        untrained = ~trained[rows[:, 1]]
        if untrained.any():
            row = int(untrained.argmax())
            relation = quote(relations[rows[row, 1]])
            raise InputError(f"{source.place(row)}: relation {relation} has no training triple")
