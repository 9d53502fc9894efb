"""The four public data sets: search and download."""

import hashlib
import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import methodcaller
from pathlib import Path

from lightcake_fast.errors import InputError
from lightcake_fast.files import replace_file

BASE_URL = "https://raw.githubusercontent.com/hwwang55/PathCon/55cbf5a11298504018e0cf2c10b3447583773121/data"
DATA_VARIABLE = "LIGHTCAKE_FAST_DATA"
TIMEOUT_SECONDS = 30.0
RETRY_SECONDS = (1.0, 4.0)  # seconds before each new attempt
_BLOCK_BYTES = 1 << 16


@dataclass(frozen=True)
class PublicDataset:
    """A public data set.

    Attributes:
        folder: Name of its folder at the source. A local folder may differ in case.
        blobs: Git blob id per file name.
    """

    folder: str
    blobs: dict[str, str]


# Source: github.com/hwwang55/PathCon (MIT), `git ls-tree` of the commit in BASE_URL.
PUBLIC_DATASETS = {
    "fb15k-237": PublicDataset(
        "FB15k-237",
        {
            "entities.dict": "7c64b7eea5f22538d0cf815789d1b22e1a06feee",
            "relations.dict": "3ab5a19639f76f598262bbe93ee370be0bb01759",
            "train.txt": "64905fe4545b7f2f75454d0b6fd52dfdcab90ed4",
            "valid.txt": "1eb92bf5af311b25748db1b5d85db39cb34ba2e8",
            "test.txt": "01f6b3bf2fdc68b4913e816ac859921b740d09ee",
        },
    ),
    "wn18rr": PublicDataset(
        "wn18rr",
        {
            "entities.dict": "e0393449fc513397261edc873dcf3d82114dd461",
            "relations.dict": "40deef1026ad3d8bf50a95e2fcce9a53f6c0ce05",
            "train.txt": "7c7d11ee21594d729ef90f20ecef3adf7573109d",
            "valid.txt": "ca0bf43869c6b537b667b4f284c6074078bd0013",
            "test.txt": "fbd87d236e7183fc60c9320895a714d3f4716da0",
        },
    ),
    "nell995": PublicDataset(
        "NELL995",
        {
            "entities.dict": "87d151b9cb1823dcd10067985b077abb444f8577",
            "relations.dict": "bf92e0e9cde1d8109bcebcd320adc02a2d40cea5",
            "train.txt": "8b95a13bbc06672639f8524c170f912b473875f7",
            "valid.txt": "2f32c73633bc0adb1ce2701340070c4c2acc696f",
            "test.txt": "39c1ebe6a87cb0684017812af3dea4c55650eba2",
        },
    ),
    "ddb14": PublicDataset(
        "DDB14",
        {
            "entities.dict": "cb7eb07bb2c57c6a0636aacd0aa6096ec97a2f08",
            "relations.dict": "0f0ee403611f68d29d70fd1eb81257736e8745a9",
            "train.txt": "1b822a12d1f782968a89696de872081690f4820a",
            "valid.txt": "4bf39184c6b8671f5a27c354b6f7b7640d2a7c36",
            "test.txt": "89d7af0debb8542026fdefe61f4e7875863bace8",
        },
    ),
}


def public_folder(dataset: PublicDataset, data_dir: Path | None = None, base_url: str = BASE_URL) -> Path:
    """Find the folder of a public data set, or download it.

    The search order is `data_dir`, `$LIGHTCAKE_FAST_DATA`, the user's cache folder. If no place has all
    files, they are downloaded into the cache folder.

    Raises:
        InputError: `data_dir` or `$LIGHTCAKE_FAST_DATA` is not a folder, or a download failed. The message
            then says how to provide the files.
    """
    if data_dir is not None and not data_dir.is_dir():
        raise InputError(
            f"{data_dir}: expected a folder of data sets, got no folder: create it or correct --data-dir"
        )
    named = os.environ.get(DATA_VARIABLE)
    if data_dir is None and named and not Path(named).expanduser().is_dir():
        raise InputError(
            f"${DATA_VARIABLE}: expected a folder of data sets, got {named}, which is not a folder: "
            "create it or correct the variable"
        )
    found = find_folder(dataset, data_dir)
    if found is not None:
        return found
    target = cache_folder() / dataset.folder
    download(dataset, target, base_url)
    return target


def find_folder(dataset: PublicDataset, data_dir: Path | None = None) -> Path | None:
    """Find the folder of a public data set without a download (see `public_folder`); None if missing."""
    for place in _places(data_dir):
        for folder in _folders_named(dataset.folder, place):
            if not _missing(dataset, folder):
                return folder
    return None


def cache_folder() -> Path:
    """The folder `lightcake_fast` in `$XDG_CACHE_HOME`, or in `~/.cache` without this variable."""
    # the XDG standard says to ignore a relative path
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "lightcake_fast"


def download(dataset: PublicDataset, target: Path, base_url: str = BASE_URL) -> None:
    """Download the missing files of a data set. Each is verified, then moved into place.

    Args:
        dataset: The data set.
        target: Folder for its files; created if missing.
        base_url: URL that contains the folder `dataset.folder`.

    Raises:
        InputError: A file could not be downloaded or verified. Earlier files stay.
        OSError: A file could not be written. Earlier files stay.
    """
    # imported here, because rich slows down the start
    from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

    from lightcake_fast.terminal import Console, shown_on

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    console = Console(stderr=True)
    # transient: after a failed download, the bar would be misleading
    progress = Progress(*columns, console=console, transient=True)
    with shown_on(console, progress):
        for name in _missing(dataset, target):
            url = f"{base_url}/{dataset.folder}/{name}"
            task = progress.add_task(f"{dataset.folder}/{name}", total=None)

            def show(done: int, length: int | None, task: TaskID = task) -> None:
                progress.update(task, completed=done, total=length)

            try:
                content = _fetch_patiently(url, show)
                _verify(content, dataset.blobs[name])
            except (OSError, http.client.HTTPException, ValueError) as error:
                reason = error.reason if type(error) is urllib.error.URLError else error
                problem = f"{url}: expected a download, got {reason or type(error).__name__}"
                raise InputError(
                    f"{problem}: try again, or put the files {', '.join(dataset.blobs)} into "
                    f"{target.parent}/{dataset.folder}, or into DIR/{dataset.folder} with --data-dir DIR or "
                    f"${DATA_VARIABLE}=DIR"
                ) from error
            target.mkdir(parents=True, exist_ok=True)
            replace_file(target / name, methodcaller("write_bytes", content))


def blob_id(content: bytes | bytearray) -> str:
    """The git blob id of this content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _places(data_dir: Path | None) -> Iterator[Path]:
    """Places to search. Lazy, because the cache folder raises an error for a user without a home folder."""
    if data_dir is not None:
        yield data_dir
    if variable := os.environ.get(DATA_VARIABLE):
        yield Path(variable).expanduser()
    yield cache_folder()


def _folders_named(name: str, place: Path) -> list[Path]:
    """Folders in `place` with this name, in any case; the exact name comes first."""
    if not place.is_dir():
        return []
    found = [path for path in place.iterdir() if path.name.lower() == name.lower() and path.is_dir()]
    return sorted(found, key=lambda path: (path.name != name, path.name))


def _missing(dataset: PublicDataset, folder: Path) -> list[str]:
    return [name for name in dataset.blobs if not (folder / name).is_file()]


def _fetch_patiently(url: str, show: Callable[[int, int | None], None]) -> bytearray:
    """Download a whole body. Retry after temporary errors, such as a broken connection."""
    for wait in (*RETRY_SECONDS, None):
        content = bytearray()
        try:
            for block, length in _fetch(url):
                content += block
                show(len(content), length)
        except (OSError, http.client.HTTPException) as error:
            refused = isinstance(error, urllib.error.HTTPError) and error.code < 500
            if wait is None or refused:
                raise
            time.sleep(wait)
        else:
            break
    return content


def _fetch(url: str) -> Iterator[tuple[bytes, int | None]]:
    """Yield blocks of a body, with its total length if the server sends it."""
    with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as response:
        header = response.headers.get("Content-Length")
        length = int(header) if header is not None else None
        received = 0
        while block := response.read(_BLOCK_BYTES):
            received += len(block)
            yield block, length
    # http.client does not report an early end of a body that is read in blocks
    if length is not None and received < length:
        raise ConnectionError(f"the connection ended after {received} of {length} bytes")


def _verify(content: bytearray, wanted: str) -> None:
    found = blob_id(content)
    if found != wanted:
        raise ValueError(f"{len(content)} bytes with git blob id {found} instead of {wanted}")
