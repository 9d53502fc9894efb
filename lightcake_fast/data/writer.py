"""Writer for a folder of tab-separated triples, which the reader gives back as it was."""

from collections.abc import Sequence
from pathlib import Path

from lightcake_fast.data.knowledge_graph import SPLITS, KnowledgeGraph
from lightcake_fast.errors import InputError
from lightcake_fast.files import replace_text


def write_folder(data: KnowledgeGraph, folder: Path) -> None:
    """Write a data set so that `read_folder` gives an equal one, ids included.

    Args:
        data: The data set.
        folder: Where to; made where it is not there.

    Raises:
        InputError: A name cannot stand in a tab-separated file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for kind, names in (("entities", data.entities), ("relations", data.relations)):
        for name in names:
            if not name or any(mark in name for mark in "\t\n\r\0"):
                raise InputError(f"{kind}: got the name {name!r}, which cannot stand in a tab-separated file")
        replace_text(folder / f"{kind}.dict", id_map(names))
    entities, relations = data.entities, data.relations
    for split in SPLITS:
        triples = data.split(split).tolist()
        lines = (f"{entities[h]}\t{relations[r]}\t{entities[t]}\n" for h, r, t in triples)
        replace_text(folder / f"{split}.tsv", "".join(lines))


def id_map(names: Sequence[str]) -> str:
    """Names by id as `id<TAB>name` lines."""
    return "".join(f"{id}\t{name}\n" for id, name in enumerate(names))
