"""Write a data set as a folder of tab-separated triples for `read_folder`."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lightcake_fast.data.assembly import drop_duplicates
from lightcake_fast.data.knowledge_graph import KnowledgeGraph
from lightcake_fast.data.names import check_distinct, check_encoding, check_names, quote
from lightcake_fast.data.splitting import SPLITS
from lightcake_fast.errors import InputError
from lightcake_fast.files import replace_text

BYTE_ORDER_MARK = "\ufeff"


def write_folder(data: KnowledgeGraph, folder: Path) -> None:
    """Write a data set. `read_folder` then returns an equal data set with equal ids.

    Args:
        data: The data set.
        folder: Target folder; created if missing.

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
        # the reader removes the first mark
        mark = BYTE_ORDER_MARK if text.startswith(BYTE_ORDER_MARK) else ""
        replace_text(folder / f"{split}.tsv", mark + text)


def check_readable(data: KnowledgeGraph) -> None:
    """Check that `read_folder` can read a graph back after `write_folder`.

    Raises:
        InputError: A split contains a duplicate triple. Two ids have the same name. A name cannot be encoded
            or written to a tab-separated file. A relation of valid or test has no training triple.
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
            raise InputError(f"{split}: expected distinct triples, got {repeated:,} duplicates: remove them")
        for relation in triples[~trained[triples[:, 1]], 1][:1]:
            name = quote(data.relations[relation])
            raise InputError(
                f"{split}: expected a relation with a training triple, got {name}: add a training triple"
            )


def id_map(names: Sequence[str]) -> str:
    """The text of an id file: `id<TAB>name` lines."""
    return "".join(f"{id}\t{name}\n" for id, name in enumerate(names))
