"""Reader for a folder of tab-separated triples, with or without files that name the ids."""

from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

from lightcake_fast.data import prepared
from lightcake_fast.data.assembly import assemble
from lightcake_fast.data.knowledge_graph import SPLITS, KnowledgeGraph
from lightcake_fast.data.names import FIELDS, quote, trim
from lightcake_fast.data.splitting import SHARES
from lightcake_fast.data.table import Table
from lightcake_fast.errors import InputError

TRIPLE_SUFFIXES = (".txt", ".tsv", ".txt.gz", ".tsv.gz")
ID_SUFFIXES = (".dict", ".dict.gz")
ID_FIELDS = ("id", "name")


def read_folder(
    folder: Path, name: str | None = None, *, strip: bool = False, header: bool | None = None
) -> KnowledgeGraph:
    """Read a data set from a folder.

    The folder holds `train`, `valid` and `test` as `.txt` or `.tsv`, plain or with `.gz`: one triple a line,
    `head<TAB>relation<TAB>tail`, UTF-8. Names are kept as they are written: never parsed, never stripped.
    A carriage return in a name is an error. CRLF line ends and a missing last one are fine, blank lines are
    skipped, a triple that a split holds twice is kept once. `entities.dict` and `relations.dict`, each
    optional, fix the ids: `id<TAB>name` a line, ids from 0 without gaps. Without them ids go by first
    appearance in train, valid, test (head before tail).

    Big files are read once: the user's cache folder keeps what came of them, found by their content.

    Args:
        folder: The folder.
        name: Name of the data set; None takes the folder's.
        strip: Trim names: spaces of any kind and byte order marks around them are left out.
        header: Whether the first row of each split is a header, which is left out. None leaves out a first
            row such as `head relation tail`, with a warning, in a folder without id files.

    Raises:
        InputError: Something in it is wrong. The message names the file and, where there is one, the line.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: wanted a folder with train, valid and test files, got no folder")
    splits = [_find_split(folder, split) for split in SPLITS]
    ids = [find_file(folder, stem, ID_SUFFIXES) for stem in ("entities", "relations")]
    name = name or folder.resolve().name
    if header is None and any(ids):
        header = False  # id files tell names from titles

    def read() -> KnowledgeGraph:
        known = [_read_ids(path, strip) for path in ids]
        return assemble(name, [Table(path, FIELDS, header=header) for path in splits], *known, strip=strip)

    return prepared.kept([*splits, *filter(None, ids)], read, name, f"strip {strip} header {header}").warned()


def read_file(
    path: Path,
    name: str | None = None,
    *,
    split: Sequence[float] | str = SHARES,
    strip: bool = False,
    header: bool | None = None,
) -> KnowledgeGraph:
    """Read all triples from one file and split them by chance, always in the same way.

    Args:
        path: The file (see `KnowledgeGraph.from_triples`).
        name: Name of the data set; None takes the file's.
        split: Shares of train, valid and test, as numbers or as text with commas between them.
        strip: As in `read_folder`.
        header: Whether the first row is a header, which is left out. None leaves out a first row such as
            `head,relation,tail`, with a warning.

    Raises:
        InputError: As in `read_folder`; or the shares are wrong.
    """
    from lightcake_fast.data.sources import graph_of

    def read() -> KnowledgeGraph:
        return graph_of(path, None, None, split=split, seed=0, name=name, strip=strip, header=header)

    name = name or path.name.partition(".")[0]
    options = f"split {split} strip {strip} header {header}"
    return prepared.kept([path], read, name, options).warned()


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


def _find_split(folder: Path, split: str) -> Path:
    path = find_file(folder, split, TRIPLE_SUFFIXES)
    if path is None:
        wanted = ", ".join(f"{split}{suffix}" for suffix in TRIPLE_SUFFIXES)
        raise InputError(f"{folder}: got no {split} file, wanted one of {wanted}")
    return path


def _read_ids(path: Path | None, strip: bool) -> dict[str, int] | None:
    """Names in the order of their ids, mapped to them; None without an id file."""
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
        # int() alone takes "1_000", " 7" and digits of other scripts
        index = int(number) if number.isascii() and number.isdigit() and len(number) < 19 else -1
        if not 0 <= index < len(names):
            wanted = f"wanted 0 to {len(names) - 1} for {len(names)} names"
            raise InputError(f"{table.place(row)}: got id {quote(number)}, {wanted}")
        if index in by_id:
            raise InputError(f"{table.place(row)}: got id {index} a second time, wanted each once")
        if name in ids:
            raise InputError(f"{table.place(row)}: got name {quote(name)} a second time, wanted each once")
        by_id[index] = name
        ids[name] = index
    return {by_id[index]: index for index in range(len(by_id))}
