"""Read a folder of tab-separated triples, with or without id files."""

from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

from lightcake_fast.data import prepared
from lightcake_fast.data.assembly import assemble
from lightcake_fast.data.knowledge_graph import KnowledgeGraph
from lightcake_fast.data.names import FIELDS, quote, trim
from lightcake_fast.data.sources import read_sources
from lightcake_fast.data.splitting import SHARES, SPLITS
from lightcake_fast.data.table import Table
from lightcake_fast.errors import InputError

TRIPLE_SUFFIXES = (".txt", ".tsv", ".txt.gz", ".tsv.gz")
ID_SUFFIXES = (".dict", ".dict.gz")
ID_FIELDS = ("id", "name")


def read_folder(
    folder: Path, name: str | None = None, *, strip: bool = False, header: bool | None = None
) -> KnowledgeGraph:
    """Read a data set from a folder.

    The folder contains `train`, `valid` and `test` files: `.txt` or `.tsv`, plain or `.gz`, in UTF-8. Each
    line is one triple, `head<TAB>relation<TAB>tail`. Names are never parsed or trimmed. A carriage return in
    a name is an error. CRLF line ends and a missing last line end are allowed. Blank lines are skipped. Each
    split keeps one copy of a duplicate triple.

    The optional files `entities.dict` and `relations.dict` define the ids. Each line is `id<TAB>name`, with
    ids from 0 without gaps. Without them, ids follow the first appearance in train, valid, test (head before
    tail).

    Large data sets are read once. The user's cache folder then keeps a copy; its key is the content of the
    files.

    Args:
        folder: The folder.
        name: Name of the data set; None means the name of the folder.
        strip: Trim names: remove leading and trailing white space of any kind and byte order marks.
        header: Whether to skip the first row of each split as a header. In a folder without id files, None
            skips a first row such as `head relation tail`, with a warning.

    Raises:
        InputError: A file is wrong. The message gives the file and, if possible, the line.
    """
    if not folder.is_dir():
        raise InputError(
            f"{folder}: expected a folder with train, valid and test files, got no folder: correct the path"
        )
    splits = [_find_split(folder, split) for split in SPLITS]
    ids = [find_file(folder, stem, ID_SUFFIXES) for stem in ("entities", "relations")]
    name = name or folder.resolve().name
    if header is None and any(ids):
        header = False  # names in id files are not titles

    def read() -> KnowledgeGraph:
        known = [_read_ids(path, strip) for path in ids]
        tables = [Table(path, FIELDS, header=header) for path in splits]
        return KnowledgeGraph(*assemble(name, tables, *known, strip=strip))

    return prepared.kept([*splits, *filter(None, ids)], read, name, f"strip {strip} header {header}").warned()


def read_file(
    path: Path,
    name: str | None = None,
    *,
    split: Sequence[float] | str = SHARES,
    strip: bool = False,
    header: bool | None = None,
) -> KnowledgeGraph:
    """Read all triples from one file and split them at random, with a fixed seed.

    Args:
        path: The file (see `KnowledgeGraph.from_triples`).
        name: Name of the data set; None means the name of the file.
        split: Shares of train, valid and test, as numbers or as comma-separated text.
        strip: As in `read_folder`.
        header: Whether to skip the first row as a header. None skips a first row such as
            `head,relation,tail`, with a warning.

    Raises:
        InputError: The file or the shares are wrong.
    """

    def read() -> KnowledgeGraph:
        made = read_sources(path, None, None, split=split, seed=0, name=name, strip=strip, header=header)
        return KnowledgeGraph(*made)

    name = name or path.name.partition(".")[0]
    options = f"split {split} strip {strip} header {header}"
    return prepared.kept([path], read, name, options).warned()


def find_file(folder: Path, stem: str, suffixes: Iterable[str]) -> Path | None:
    """Find the file `stem + suffix` in a folder; None if it is missing.

    Raises:
        InputError: Several such files exist, or it is a folder.
    """
    found = [path for suffix in suffixes if (path := folder / f"{stem}{suffix}").is_file()]
    if len(found) > 1:
        names = " and ".join(path.name for path in found)
        raise InputError(f"{folder}: expected one {stem} file, got {names}: remove all except one")
    for suffix in () if found else suffixes:
        if (path := folder / f"{stem}{suffix}").is_dir():
            raise InputError(f"{path}: expected a file, got a folder: remove or rename it")
    return found[0] if found else None


def _find_split(folder: Path, split: str) -> Path:
    path = find_file(folder, split, TRIPLE_SUFFIXES)
    if path is None:
        wanted = ", ".join(f"{split}{suffix}" for suffix in TRIPLE_SUFFIXES)
        raise InputError(f"{folder}: expected one of {wanted}, got no {split} file: add it")
    return path


def _read_ids(path: Path | None, strip: bool) -> dict[str, int] | None:
    """Map names to ids, in the order of the ids; None without an id file."""
    if path is None:
        return None
    table = Table(path, ID_FIELDS)
    numbers_and_names = list(chain.from_iterable(table.read()))
    numbers, names = numbers_and_names[0::2], numbers_and_names[1::2]
    if strip:
        names = [trim(name) for name in names]
    by_id: dict[int, str] = {}
    ids: dict[str, int] = {}
    for row, (number, name) in enumerate(zip(numbers, names, strict=True)):
        # int() would also accept "1_000", " 7" and digits of other scripts
        index = int(number) if number.isascii() and number.isdigit() and len(number) < 19 else -1
        if not 0 <= index < len(names):
            wanted = f"expected an id from 0 to {len(names) - 1} (number of names: {len(names)})"
            raise InputError(f"{table.place(row)}: {wanted}, got {quote(number)}: correct the id")
        if index in by_id:
            raise InputError(f"{table.place(row)}: expected distinct ids, got {index} twice: correct the id")
        if name in ids:
            raise InputError(
                f"{table.place(row)}: expected distinct names, got {quote(name)} twice: rename one"
            )
        by_id[index] = name
        ids[name] = index
    return {by_id[index]: index for index in range(len(by_id))}
