"""Cache of large data sets in the user's cache folder. The key is the content of their files."""

import hashlib
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from lightcake_fast.data.knowledge_graph import KnowledgeGraph
from lightcake_fast.data.public import cache_folder
from lightcake_fast.data.splitting import SPLITS
from lightcake_fast.files import replace_file

FORMAT = "lightcake_fast 3"  # increase after a change of the readers' results or of the copy's layout
SMALLEST_BYTES = 1 << 25  # reading a smaller data set takes about a second


def kept(
    files: Sequence[Path], read: Callable[[], KnowledgeGraph], name: str, options: str
) -> KnowledgeGraph:
    """Load the knowledge graph of these files from the cache, or read it and add it to the cache.

    Args:
        files: The files to read. Their order is a part of the key.
        read: Function that reads them.
        name: Name of the data set.
        options: Text of all options that affect the result.
    """
    if sum(path.stat().st_size for path in files) < SMALLEST_BYTES:
        return read()
    try:
        before = _versions(files)
        place = cache_folder() / "prepared" / f"{content_key(files, options)}.safetensors"
    except (OSError, RuntimeError):  # an unreadable file, which `read` reports, or no home folder
        return read()
    found = load(place, name)
    if found is not None:
        return found
    graph = read()
    with suppress(OSError):  # a full or read-only cache is not an error
        if _versions(files) != before:  # a file changed after its hash was computed
            return graph
        place.parent.mkdir(parents=True, exist_ok=True)
        save(place, graph, files[0].parent)
    return graph


def _versions(files: Sequence[Path]) -> list[tuple[int, int, int]]:
    found = [path.stat() for path in files]
    return [(file.st_ino, file.st_size, file.st_mtime_ns) for file in found]


def load(place: Path, name: str) -> KnowledgeGraph | None:
    """Load a graph that `save` wrote; None if the file is missing or damaged."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        arrays = load_file(place)
        entities, relations = (
            tuple(arrays[names].tobytes().decode().split("\0")) for names in ("entities", "relations")
        )
        train, valid, test = (arrays[split] for split in SPLITS)
        dropped = dict(zip(SPLITS, arrays["duplicates"].tolist(), strict=True))
        notes = tuple(arrays["notes"].tobytes().decode().split("\0"))
        return KnowledgeGraph(
            name, entities, relations, train, valid, test, dropped, tuple(filter(None, notes))
        )
    except (OSError, ValueError, KeyError, SafetensorError):
        return None


def save(place: Path, graph: KnowledgeGraph, folder: Path) -> None:
    """Write a graph without NUL in its names. Notes lose the folder, because it may differ next time."""
    from safetensors.numpy import save_file

    arrays: dict[str, Any] = {split: graph.split(split) for split in SPLITS}
    notes = [note.replace(f"{folder}{os.sep}", "") for note in graph.notes]
    for field, texts in (("entities", graph.entities), ("relations", graph.relations), ("notes", notes)):
        arrays[field] = np.frombuffer("\0".join(texts).encode(), np.uint8)
    arrays["duplicates"] = np.array([graph.duplicates[split] for split in SPLITS])
    replace_file(place, lambda temporary: save_file(arrays, temporary))


def content_key(files: Sequence[Path], options: str = "") -> str:
    """A hash of the options and of the files' names (without folders) and contents."""
    digest = hashlib.blake2b(f"{FORMAT} {options}".encode(), digest_size=20)
    for path in files:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            digest.update(f"\\0{path.name} {size}\\0".encode())
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
