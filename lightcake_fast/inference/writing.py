"""Refined embeddings as files that other programs read: one safetensors file, or a folder of NumPy files."""

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
    """Where an export goes, `~` taken for the home folder.

    Raises:
        InputError: There is something already.
    """
    target = Path(path).expanduser()
    if target.exists():
        raise InputError(f"{target}: exists, wanted a new file or folder")
    return target


def write_embeddings(embeddings: Embeddings, target: Path) -> None:
    """Write tables and names: as a file where the name ends in `SUFFIX`, else as a folder.

    A file holds `entity_names` and `relation_names` as UTF-8 bytes, a name per line in the order of the ids.

    Raises:
        InputError: A name cannot stand in a tab-separated file.
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
    # as tensors: a header of more than 100 MB is refused by safetensors
    texts = {key: bytearray("\n".join(value).encode()) for key, value in names.items()}
    lines = {key: torch.frombuffer(text, dtype=torch.uint8) for key, text in texts.items()}
    replace_tensors(target, {**_tensors(embeddings), **lines}, {})


def _write_folder(embeddings: Embeddings, target: Path) -> None:
    # the folder appears whole, or what there is of it goes
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", suffix=TEMPORARY, dir=target.parent) as place:
        staging = Path(place) / target.name
        staging.mkdir()
        for name, tensor in _tensors(embeddings).items():
            np.save(staging / f"{name}.npy", tensor.numpy(), allow_pickle=False)
        for name, names in (("entities", embeddings.entity_names), ("relations", embeddings.relation_names)):
            (staging / f"{name}.tsv").write_text(id_map(names), encoding="utf-8", newline="")
        staging.rename(target)
