"""Writer for a folder of tab-separated triples, which the reader gives back as it was."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lightcake_fast.data.assembly import drop_duplicates
from lightcake_fast.data.knowledge_graph import SPLITS, KnowledgeGraph
from lightcake_fast.data.names import check_distinct, check_encoding, check_names, quote
from lightcake_fast.errors import InputError
from lightcake_fast.files import replace_text

BYTE_ORDER_MARK = "\ufeff"


def write_folder(data: KnowledgeGraph, folder: Path) -> None:
    """Write a data set so that `read_folder` gives an equal one, ids included.

    Args:
        data: The data set.
        folder: Where to; made where it is not there.

    Raises:
        InputError: See `check_readable`.
    """
    check_readable(data)
    folder.mkdir(parents=True, exist_ok=True)
    for kind, names in (("entities", data.entities), ("relations", data.relations)):
        replace_text(folder / f"{kind}.dict", id_map(names))
    entities, relations = data.entities, data.relations
    for split in SPLITS:
        triples = data.split(split).tolist()
        text = "".join(f"{entities[h]}\t{relations[r]}\t{entities[t]}\n" for h, r, t in triples)
        mark = BYTE_ORDER_MARK if text.startswith(BYTE_ORDER_MARK) else ""  # the reader leaves out the first
        replace_text(folder / f"{split}.tsv", mark + text)


def check_readable(data: KnowledgeGraph) -> None:
    """Check what the reader sees to, of a graph that did not come from it.

    Raises:
        InputError: A split holds a triple twice; a name stands for two ids, cannot be encoded or cannot stand
            in a tab-separated file; or a relation of valid or test has no training triple.
    """
    for kind, names in (("entities", data.entities), ("relations", data.relations)):
        check_encoding(kind, names)
        check_names(kind, names)
        check_distinct(kind, names)
    trained = np.bincount(data.train[:, 1], minlength=data.num_relations) > 0
    for split in SPLITS:
        triples = data.split(split).astype(np.int32, copy=False)
        repeated = len(triples) - len(drop_duplicates(triples, data.num_entities, data.num_relations))
        if repeated:
            raise InputError(f"{split}: got {repeated:,} rows that came before, wanted each once")
        for relation in triples[~trained[triples[:, 1]], 1][:1]:
            name = quote(data.relations[relation])
            raise InputError(f"{split}: relation {name} has no training triple")


def id_map(names: Sequence[str]) -> str:
    """Names by id as `id<TAB>name` lines."""
    return "".join(f"{id}\t{name}\n" for id, name in enumerate(names))
