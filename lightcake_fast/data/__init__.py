"""Knowledge graphs: the reader, the public data sets, the generated genealogy, and statistics."""

import re
from pathlib import Path

from lightcake_fast.data.family import family
from lightcake_fast.data.knowledge_graph import KnowledgeGraph
from lightcake_fast.data.names import check_names, check_no_header
from lightcake_fast.data.public import PUBLIC_DATASETS, public_folder
from lightcake_fast.data.reader import read_file, read_folder
from lightcake_fast.data.splitting import SHARES, SPLITS
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
        dataset: A name or a path. `family`, `family:PEOPLE` and `family:PEOPLE:SEED` are generated (see
            `family`). `fb15k-237`, `wn18rr`, `nell995` and `ddb14` are public data sets, in any case. A path
            leads to a folder (see `read_folder`) or to a file with all triples (see
            `KnowledgeGraph.from_triples`), which are split at random. A folder with one of these names needs
            a path with a slash: `./wn18rr`.
        data_dir: Folder that holds the folders of the public data sets. It is searched first, then
            `$LIGHTCAKE_FAST_DATA`, then the user's cache folder. A missing data set is downloaded into the
            cache folder.
        split: Shares of train, valid and test for a file; None means ".8,.1,.1".
        strip: Trim names (see `read_folder`).
        header: Whether the first row of a file, or of each file of a folder, is a header (see `read_folder`).
            Not for public and generated data sets.

    Raises:
        InputError: The data set is unknown, cannot be downloaded, or has wrong files.
    """
    path = Path(dataset).expanduser()
    if split is not None and not path.is_file():
        raise InputError(
            f"split: expected None for {dataset!r}, got {split!r}: leave it out, only a file is split"
        )
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
            f"dataset: expected one of {', '.join(names)}, or the path of a folder or file, "
            f"got {dataset!r}: correct the name or path{did_you_mean(name, names)}"
        )
    return read_folder(path, strip=strip, header=header)


def _generate(name: str) -> KnowledgeGraph:
    """Generate the genealogy `family[:PEOPLE[:SEED]]`."""
    numbers = name.split(":")[1:]
    if len(numbers) > 2 or not all(re.fullmatch("[0-9]{1,9}", number) for number in numbers):
        raise InputError(
            f"dataset: expected family, family:PEOPLE or family:PEOPLE:SEED, got {name!r}: give whole numbers"
        )
    keywords = dict(zip(("people", "seed"), map(int, numbers), strict=False))
    return family(**keywords)
