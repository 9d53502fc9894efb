"""Write refined embeddings for other programs: one safetensors file, or a folder of NumPy files."""

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lightcake_fast.data import check_names, id_map
from lightcake_fast.errors import InputError
from lightcake_fast.files import TEMPORARY, replace_tensors
from lightcake_fast.inference.answers import Embeddings

SUFFIX = ".safetensors"


def check_target(path: str | Path) -> Path:
    """Expand `~` in the path of an export, and check that the path is new.

    Raises:
        InputError: The path exists.
    """
    target = Path(path).expanduser()
    if target.exists():
        raise InputError(f"{target}: expected a new file or folder, got an existing one: choose another path")
    return target


def write_embeddings(embeddings: Embeddings, target: Path) -> None:
    """Write tables and names to a file (if the name ends in `SUFFIX`) or to a folder.

    A file contains `entity_names` and `relation_names` as UTF-8 bytes, one name per line in the order of ids.

    Raises:
        InputError: A tab-separated file cannot hold a name.
    """
    for kind, names in (("entities", embeddings.entity_names), ("relations", embeddings.relation_names)):
        check_names(kind, names)
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.suffix == SUFFIX:
        _write_file(embeddings, target)
    else:
        _write_folder(embeddings, target)


def _tensors(embeddings: Embeddings) -> dict[str, Tensor]:
    tables = {name: getattr(embeddings, name) for name in ("entities", "relations", "seen")}
    return {name: tensor.contiguous() for name, tensor in {**tables, **embeddings.others}.items()}


def _write_file(embeddings: Embeddings, target: Path) -> None:
    names = {"entity_names": embeddings.entity_names, "relation_names": embeddings.relation_names}
    # names are tensors, because safetensors rejects a header of more than 100 MB
    texts = {key: bytearray("\n".join(value).encode()) for key, value in names.items()}
    lines = {key: torch.frombuffer(text, dtype=torch.uint8) for key, text in texts.items()}
    replace_tensors(target, {**_tensors(embeddings), **lines}, {})


def _write_folder(embeddings: Embeddings, target: Path) -> None:
    # after an error, the temporary folder is removed
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", suffix=TEMPORARY, dir=target.parent) as place:
        staging = Path(place) / target.name
        staging.mkdir()
        for name, tensor in _tensors(embeddings).items():
            np.save(staging / f"{name}.npy", tensor.numpy(), allow_pickle=False)
        for name, names in (("entities", embeddings.entity_names), ("relations", embeddings.relation_names)):
            (staging / f"{name}.tsv").write_text(id_map(names), encoding="utf-8", newline="")
        staging.rename(target)
