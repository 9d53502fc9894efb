"""Reader for a folder of tab-separated triples, with or without files that name the ids."""

import gzip
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from operator import methodcaller
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lightcake_fast.data.knowledge_graph import SPLITS, KnowledgeGraph
from lightcake_fast.errors import InputError

TRIPLE_SUFFIXES = (".txt", ".tsv", ".txt.gz", ".tsv.gz")
ID_SUFFIXES = (".dict", ".dict.gz")
TRIPLE_FIELDS = ("head", "relation", "tail")
ID_FIELDS = ("id", "name")
_MAX_SHOWN = 60


@dataclass(frozen=True)
class Table:
    """A tab-separated file taken apart.

    Attributes:
        path: The file.
        columns: One list of names a field, all of the same length; blank lines are left out.
        blank_lines: Numbers of the blank lines, ascending, from 1.
    """

    path: Path
    columns: tuple[list[str], ...]
    blank_lines: tuple[int, ...]

    def place(self, row: int) -> str:
        """`file:line` of a row, for messages."""
        line = row + 1
        for blank in self.blank_lines:
            line += blank <= line
        return f"{self.path}:{line}"


def find_file(folder: Path, stem: str, suffixes: Iterable[str]) -> Path | None:
    """The one file `stem + suffix` of a folder.

    Raises:
        InputError: Several of them are there.
    """
    found = [path for suffix in suffixes if (path := folder / f"{stem}{suffix}").is_file()]
    if len(found) > 1:
        names = " and ".join(path.name for path in found)
        raise InputError(f"{folder}: got {names}, wanted only one of them")
    for suffix in () if found else suffixes:
        if (path := folder / f"{stem}{suffix}").is_dir():
            raise InputError(f"{path}: got a folder, wanted a file")
    return found[0] if found else None


def read_folder(folder: Path, name: str | None = None) -> KnowledgeGraph:
    """Read a data set from a folder.

    The folder holds `train`, `valid` and `test` as `.txt` or `.tsv`, plain or with `.gz`: one triple a line,
    `head<TAB>relation<TAB>tail`, UTF-8. Names are kept as they are written: never parsed, never stripped.
    CRLF line ends and a missing last one are fine, blank lines are skipped, a triple that a split holds twice
    is kept once. `entities.dict` and `relations.dict`, each optional, fix the ids: `id<TAB>name` a line, ids
    from 0 without gaps. Without them ids go by first appearance in train, valid, test (head before tail).

    Args:
        folder: The folder.
        name: Name of the data set; None takes the folder's.

    Raises:
        InputError: Something in it is wrong. The message names the file and, where there is one, the line.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: wanted a folder with train, valid and test files, got no folder")
    tables = [_read_triples(folder, split) for split in SPLITS]
    entity_ids = _read_ids(folder, "entities")
    if entity_ids is None:
        pairs = chain.from_iterable(zip(table.columns[0], table.columns[2], strict=True) for table in tables)
        entity_ids = _number(chain.from_iterable(pairs))
    relation_ids = _read_ids(folder, "relations")
    if relation_ids is None:
        relation_ids = _number(chain.from_iterable(table.columns[1] for table in tables))
    triples = [_to_ids(table, entity_ids, relation_ids) for table in tables]
    _check_trained(tables, triples, len(relation_ids))
    train, valid, test = (drop_duplicates(rows) for rows in triples)
    dropped = (len(rows) - len(kept) for rows, kept in zip(triples, (train, valid, test), strict=True))
    return KnowledgeGraph(
        name=name or folder.resolve().name,
        entities=tuple(entity_ids),
        relations=tuple(relation_ids),
        train=train,
        valid=valid,
        test=test,
        duplicates=dict(zip(SPLITS, dropped, strict=True)),
    )


def drop_duplicates(triples: NDArray[np.int64]) -> NDArray[np.int64]:
    """The distinct rows of int64 `[T, 3]`, in the order in which each first appears."""
    order = np.lexsort(triples.T)  # stable: among equal rows the first stays first
    in_order = triples[order]
    repeated = np.zeros(len(triples), dtype=bool)
    repeated[order[1:]] = (in_order[1:] == in_order[:-1]).all(axis=1)
    return triples[~repeated]


def read_table(path: Path, fields: tuple[str, ...]) -> Table:
    """Split a file into columns.

    Args:
        path: Tab-separated file, UTF-8, plain or gzip (by its `.gz`).
        fields: What a line holds, for the message about a line that does not.

    Raises:
        InputError: The file cannot be read or is no text, or a line has too few, too many or empty fields.
    """
    text = _read_text(path)
    if "\r" in text:
        text = text.replace("\r\n", "\n").removesuffix("\r")
    lines = text.removesuffix("\n").split("\n")
    blank: list[int] = []
    if set(map(methodcaller("count", "\t"), lines)) != {len(fields) - 1}:
        lines, blank = _drop_blank_lines(path, lines, fields)
    flat = "\t".join(lines).split("\t") if lines else []
    table = Table(path, tuple(flat[first :: len(fields)] for first in range(len(fields))), tuple(blank))
    for field, column in zip(fields, table.columns, strict=True):
        if "" in column:
            raise InputError(f"{table.place(column.index(''))}: got an empty {field}, {_wanted(fields)}")
    return table


def _drop_blank_lines(path: Path, lines: list[str], fields: tuple[str, ...]) -> tuple[list[str], list[int]]:
    """The lines with fields and the numbers of the blank ones; raises at the first that is neither."""
    kept: list[str] = []
    blank: list[int] = []
    for number, line in enumerate(lines, 1):
        found = line.count("\t") + 1
        if found == len(fields):
            kept.append(line)
        elif found == 1 and not line.strip():
            blank.append(number)
        else:
            raise InputError(f"{path}:{number}: got {found} field{'s' * (found > 1)}, {_wanted(fields)}")
    return kept, blank


def _wanted(fields: tuple[str, ...]) -> str:
    return f"wanted {'<TAB>'.join(fields)}"


def _read_text(path: Path) -> str:
    """The text of a file, without a byte order mark."""
    try:
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = gzip.decompress(data)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path}: not a whole gzip file ({error})") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    data = data.removeprefix(b"\xef\xbb\xbf")
    position = data.find(b"\0")
    if position >= 0:
        raise InputError(f"{path}:{_line(data, position)}: got a NUL byte, wanted text")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        found = f"got byte 0x{data[error.start]:02x}, wanted UTF-8 text"
        raise InputError(f"{path}:{_line(data, error.start)}: {found}") from error


def _line(data: bytes, position: int) -> int:
    return data.count(b"\n", 0, position) + 1


def _read_triples(folder: Path, split: str) -> Table:
    """The triples of a split as names."""
    path = find_file(folder, split, TRIPLE_SUFFIXES)
    if path is None:
        wanted = ", ".join(f"{split}{suffix}" for suffix in TRIPLE_SUFFIXES)
        raise InputError(f"{folder}: got no {split} file, wanted one of {wanted}")
    table = read_table(path, TRIPLE_FIELDS)
    if not table.columns[0]:
        raise InputError(f"{path}:1: no triple, wanted at least one")
    return table


def _read_ids(folder: Path, stem: str) -> dict[str, int] | None:
    """Names in the order of their ids, mapped to them; None without an id file."""
    path = find_file(folder, stem, ID_SUFFIXES)
    if path is None:
        return None
    table = read_table(path, ID_FIELDS)
    numbers, names = table.columns
    by_id: dict[int, str] = {}
    ids: dict[str, int] = {}
    for row, (number, name) in enumerate(zip(numbers, names, strict=True)):
        # int() alone takes "1_000", " 7" and digits of other scripts
        index = int(number) if number.isascii() and number.isdigit() and len(number) < 19 else -1
        if not 0 <= index < len(names):
            wanted = f"wanted 0 to {len(names) - 1} for {len(names)} names"
            raise InputError(f"{table.place(row)}: got id {_show(number)}, {wanted}")
        if index in by_id:
            raise InputError(f"{table.place(row)}: got id {index} a second time, wanted each once")
        if name in ids:
            raise InputError(f"{table.place(row)}: got name {_show(name)} a second time, wanted each once")
        by_id[index] = name
        ids[name] = index
    return {by_id[index]: index for index in range(len(by_id))}


def _number(names: Iterable[str]) -> dict[str, int]:
    """Ids by first appearance."""
    return {name: index for index, name in enumerate(dict.fromkeys(names))}


def _to_ids(table: Table, entities: dict[str, int], relations: dict[str, int]) -> NDArray[np.int64]:
    """Triples as int64 `[T, 3]`."""
    columns = [
        _look_up(table, 0, entities, "entities"),
        _look_up(table, 1, relations, "relations"),
        _look_up(table, 2, entities, "entities"),
    ]
    return np.stack(columns, axis=1)


def _look_up(table: Table, column: int, ids: dict[str, int], stem: str) -> NDArray[np.int64]:
    """One column of triples as ids, int64 `[T]`."""
    names = table.columns[column]
    try:
        return np.fromiter(map(ids.__getitem__, names), dtype=np.int64, count=len(names))
    except KeyError as error:
        name = error.args[0]
        place = table.place(names.index(name))
        raise InputError(f"{place}: {TRIPLE_FIELDS[column]} {_show(name)} is not in {stem}.dict") from error


def _check_trained(tables: list[Table], triples: list[NDArray[np.int64]], num_relations: int) -> None:
    """Raise if valid or test has a relation that no training triple has: nothing could be learned of it."""
    trained = np.zeros(num_relations, dtype=bool)
    trained[triples[0][:, 1]] = True
    for table, rows in zip(tables[1:], triples[1:], strict=True):
        untrained = ~trained[rows[:, 1]]
        if untrained.any():
            row = int(untrained.argmax())
            raise InputError(
                f"{table.place(row)}: relation {_show(table.columns[1][row])} has no training triple"
            )


def _show(name: str) -> str:
    """A name for a message: quoted, control characters escaped, cut when very long."""
    return repr(name if len(name) <= _MAX_SHOWN else name[:_MAX_SHOWN] + "...")
