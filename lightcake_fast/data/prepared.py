"""Big data sets are read once: what came of their files is kept in the user's cache, found by content."""

import hashlib
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from lightcake_fast.data.knowledge_graph import SPLITS, KnowledgeGraph
from lightcake_fast.data.public import cache_folder
from lightcake_fast.files import replace_file

FORMAT = "lightcake_fast 3"  # a change of what a reader makes of a file, or of the copy's layout, counts up
SMALLEST_BYTES = 1 << 25  # smaller sets are read in about a second


def kept(
    files: Sequence[Path], read: Callable[[], KnowledgeGraph], name: str, options: str
) -> KnowledgeGraph:
    """What `read` makes of files, or made of the same content before.

    Args:
        files: What is read, in the order in which it counts.
        read: Reads them.
        name: Name of the data set.
        options: Whatever else decides what comes of them.
    """
    if sum(path.stat().st_size for path in files) < SMALLEST_BYTES:
        return read()
    try:
        before = _versions(files)
        place = cache_folder() / "prepared" / f"{content_key(files, options)}.safetensors"
    except (OSError, RuntimeError):  # a file that cannot be read, of which the reader tells; no home
        return read()
    found = load(place, name)
    if found is not None:
        return found
    graph = read()
    with suppress(OSError):  # a cache that is full or read-only is none
        if _versions(files) != before:  # what was read may not be what the key is of
            return graph
        place.parent.mkdir(parents=True, exist_ok=True)
        save(place, graph, files[0].parent)
    return graph


def _versions(files: Sequence[Path]) -> list[tuple[int, int, int]]:
    found = [path.stat() for path in files]
    return [(file.st_ino, file.st_size, file.st_mtime_ns) for file in found]


def load(place: Path, name: str) -> KnowledgeGraph | None:
    """What `save` wrote; None if it is not there or damaged."""
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
    """Keep a graph whose names hold no NUL; its notes forget the folder, which may be another next time."""
    from safetensors.numpy import save_file

    arrays: dict[str, Any] = {split: graph.split(split) for split in SPLITS}
    notes = [note.replace(f"{folder}{os.sep}", "") for note in graph.notes]
    for field, texts in (("entities", graph.entities), ("relations", graph.relations), ("notes", notes)):
        arrays[field] = np.frombuffer("\0".join(texts).encode(), np.uint8)
    arrays["duplicates"] = np.array([graph.duplicates[split] for split in SPLITS])
    replace_file(place, lambda temporary: save_file(arrays, temporary))


def content_key(files: Sequence[Path], options: str = "") -> str:
    """A hash of the files' names, without their folders, of their content and of options."""
    digest = hashlib.blake2b(f"{FORMAT} {options}".encode(), digest_size=20)
    for path in files:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            digest.update(f"\\0{path.name} {size}\\0".encode())
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
