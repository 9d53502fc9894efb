"""Knowledge graphs: the reader, the public data sets, the generated genealogy, and statistics."""

import re
from pathlib import Path

from lightcake_fast.data.family import family
from lightcake_fast.data.knowledge_graph import SPLITS, KnowledgeGraph
from lightcake_fast.data.names import check_names, check_no_header
from lightcake_fast.data.public import PUBLIC_DATASETS, public_folder
from lightcake_fast.data.reader import read_file, read_folder
from lightcake_fast.data.splitting import SHARES
from lightcake_fast.data.writer import check_readable, id_map, write_folder
from lightcake_fast.errors import InputError, did_you_mean

__all__ = [
    "SPLITS",
    "KnowledgeGraph",
    "check_names",
    "check_readable",
    "family",
    "id_map",
    "load_dataset",
    "read_file",
    "read_folder",
    "write_folder",
]


def load_dataset(
    dataset: str = "family",
    data_dir: str | Path | None = None,
    *,
    split: str | None = None,
    strip: bool = False,
    header: bool | None = None,
) -> KnowledgeGraph:
    """Load a data set by name, from a folder or from a file.

    Args:
        dataset: `family`, `family:PEOPLE` or `family:PEOPLE:SEED` (generated, see `family`); `fb15k-237`,
            `wn18rr`, `nell995` or `ddb14`, whatever their case; the path of a folder (see `read_folder`); or
            of a file with all triples (see `KnowledgeGraph.from_triples`), which are split by chance. A
            folder with one of these names needs a path with a slash: `./wn18rr`.
        data_dir: Folder with the public data sets' folders in it, looked at first; then come
            `$LIGHTCAKE_FAST_DATA`, the user's cache folder, and a download into the latter.
        split: Shares of train, valid and test for a file; None takes ".8,.1,.1".
        strip: Trim names (see `read_folder`).
        header: Whether the first row of your own file, or of each file of your own folder, is a header (see
            `read_folder`).

    Raises:
        InputError: There is no such data set, it cannot be downloaded, or its files are wrong.
    """
    path = Path(dataset).expanduser()
    if split is not None and not path.is_file():
        raise InputError(f"split: got {split!r} for {dataset!r}, wanted it for a file of triples alone")
    name = dataset.lower()
    if name.partition(":")[0] == "family" or name in PUBLIC_DATASETS:
        check_no_header(name, header)
    if name.partition(":")[0] == "family":
        return _generate(name)
    if name in PUBLIC_DATASETS:
        place = None if data_dir is None else Path(data_dir).expanduser()
        return read_folder(public_folder(PUBLIC_DATASETS[name], place), name, strip=strip)
    if path.is_file():
        return read_file(path, split=split or SHARES, strip=strip, header=header)
    if not path.is_dir():
        names = ["family", *PUBLIC_DATASETS]
        raise InputError(
            f"no data set {dataset!r}: wanted one of {', '.join(names)}, or the path of a folder "
            f"or file{did_you_mean(name, names)}"
        )
    return read_folder(path, strip=strip, header=header)


def _generate(name: str) -> KnowledgeGraph:
    """The genealogy that `family[:PEOPLE[:SEED]]` asks for."""
    numbers = name.split(":")[1:]
    if len(numbers) > 2 or not all(re.fullmatch("[0-9]{1,9}", number) for number in numbers):
        raise InputError(f"no data set {name!r}: wanted family, family:PEOPLE or family:PEOPLE:SEED")
    keywords = dict(zip(("people", "seed"), map(int, numbers), strict=False))
    return family(**keywords)
