"""Checkpoints of several ranks: one file per rank and an index of the files of one save.

No two saves share a file name. The index is written after all files of the save, and the files of the
previous save are removed after the index. A kill at any moment therefore leaves one complete save. Any number
of ranks can read it.
"""

import json
import re
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightcake_fast.errors import InputError
from lightcake_fast.files import parse_json, replace_text
from lightcake_fast.sharding.world import World
from lightcake_fast.training.checkpoint import load_checkpoint, save_checkpoint
from lightcake_fast.training.config import TrainingConfig
from lightcake_fast.training.experiment import by_entity
from lightcake_fast.training.state import names_of

FORMAT = 1
ROWS = "rows"  # tensor of a rank: the entities of its rows
_FILE = re.compile(r"[\w-]+\.safetensors")

Ids = NDArray[np.int64]
Saved = tuple[dict[str, Tensor], dict[str, Any]]


def save_part(
    folder: Path,
    stem: str,
    tensors: Mapping[str, Tensor],
    tag: str,
    world: World,
    *,
    config: TrainingConfig,
    fingerprint: str,
    notes: Mapping[str, Any],
) -> None:
    """Write the tensors of a rank. All ranks must call this.

    Args:
        folder: Folder, the same on all ranks.
        stem: Name of the checkpoint: "last" or "best".
        tensors: Tensors by name, including `ROWS`.
        tag: Name of this save, the same on all ranks. Saves with different content need different tags.
        world: All ranks.
        config: As in `save_checkpoint`.
        fingerprint: As in `save_checkpoint`.
        notes: As in `save_checkpoint`.

    Raises:
        OSError: A file cannot be written.
    """
    files = [f"{stem}-{tag}-{rank}-of-{world.ranks}.safetensors" for rank in range(world.ranks)]
    own = folder / files[world.rank]
    save_checkpoint(own, tensors, config=config, fingerprint=fingerprint, notes={**notes, "tag": tag})
    world.agree(0)  # all files are written
    if world.first:
        index = {"format": FORMAT, "tag": tag, "files": files}
        replace_text(_index(folder, stem), json.dumps(index, indent=2) + "\n")
        (folder / f"{stem}.safetensors").unlink(missing_ok=True)
        _remove_parts(folder, stem, keep=files)
    world.agree(0)


def save_whole(
    folder: Path,
    stem: str,
    tensors: Mapping[str, Tensor],
    *,
    config: TrainingConfig,
    fingerprint: str,
    notes: Mapping[str, Any],
) -> None:
    """Write the checkpoint of a single process. The arguments are as in `save_part`."""
    file = folder / f"{stem}.safetensors"
    save_checkpoint(file, tensors, config=config, fingerprint=fingerprint, notes=notes)
    if _index(folder, stem).exists():  # the previous save came from several ranks
        _index(folder, stem).unlink()
        _remove_parts(folder, stem)


def exists(folder: Path, stem: str) -> bool:
    """Whether a checkpoint exists, in one file or in parts."""
    return (folder / f"{stem}.safetensors").exists() or _index(folder, stem).exists()


def load(
    folder: Path, stem: str, *, config: TrainingConfig, fingerprint: str, rows: Ids | None = None
) -> Saved:
    """Read a checkpoint of one process or of several.

    Args:
        folder: Folder of the checkpoint.
        stem: Name of the checkpoint.
        config: As in `load_checkpoint`.
        fingerprint: As in `load_checkpoint`.
        rows: Entities to load, ascending. None loads all.

    Returns:
        The tensors, with the requested entity rows, and all stored notes.

    Raises:
        InputError: See `load_checkpoint`. The parts do not belong together.
    """
    whole, index = folder / f"{stem}.safetensors", _index(folder, stem)
    found = []
    if whole.exists() or not index.exists():
        tensors, notes = load_checkpoint(whole, config=config, fingerprint=fingerprint)
        if rows is not None:
            chosen = torch.from_numpy(rows)
            own = names_of(by_entity(config))
            tensors = {n: t[chosen] if n in own else t for n, t in tensors.items()}
        found.append((tensors, notes))
    if index.exists():
        own = names_of(by_entity(config))
        found.append(_merged(index, _parts(index, config, fingerprint), own, rows))
    return max(found, key=lambda saved: _progress(saved[1]))  # both exist after a kill before the removal


def _index(folder: Path, stem: str) -> Path:
    return folder / f"{stem}.json"


def _remove_parts(folder: Path, stem: str, keep: list[str] | None = None) -> None:
    for old in folder.glob(f"{stem}-*-of-*.safetensors"):
        if old.name not in (keep or ()):
            old.unlink()


def _progress(notes: Mapping[str, Any]) -> tuple[int, int]:
    try:
        position = notes.get("position", {"epoch": notes.get("epoch", 0), "step": 0})
        return int(position["epoch"]), int(position["step"])
    except (TypeError, KeyError, ValueError):
        return -1, -1


def _parts(index: Path, config: TrainingConfig, fingerprint: str) -> Iterator[Saved]:
    """Yield the parts of an index, one after another."""
    try:
        content = parse_json(index.read_text(encoding="utf-8"))
        tag, files = content["tag"], content["files"]
        # the folder may come from a stranger: a name must not lead to another folder
        good = content["format"] == FORMAT and files and all(_FILE.fullmatch(name) for name in files)
    except (TypeError, KeyError, InputError, UnicodeDecodeError):
        good = False
    if not good:
        raise InputError(f"{index}: expected an index of a checkpoint's files, got a damaged file")
    for name in files:
        tensors, notes = load_checkpoint(index.parent / name, config=config, fingerprint=fingerprint)
        if notes.get("tag") != tag:
            raise InputError(
                f"{index.parent / name}: expected tag {tag!r} of {index.name}, got {notes.get('tag')!r}"
            )
        yield tensors, notes


def _merged(index: Path, parts: Iterator[Saved], own: Set[str], rows: Ids | None) -> Saved:
    """Merge the requested rows of `own` tensors from all parts. Other tensors come from the first part."""
    merged: dict[str, Tensor] = {}
    pieces: list[tuple[Tensor, dict[str, Tensor]]] = []
    first: dict[str, Any] = {}
    for tensors, notes in parts:
        held = tensors.pop(ROWS, torch.zeros(0, dtype=torch.int64))
        kept = torch.ones_like(held, dtype=torch.bool)
        if rows is not None:
            kept = torch.from_numpy(np.isin(held.numpy(), rows))
        tables = {name: tensors.pop(name) for name in own & tensors.keys()}
        if any(len(tensor) != len(held) for tensor in tables.values()):
            raise InputError(f"{index}: expected one row per listed entity, got a damaged part")
        pieces.append((held[kept], {name: tensor[kept] for name, tensor in tables.items()}))
        merged, first = merged or tensors, first or notes
    held = torch.cat([names for names, _ in pieces])
    wanted = torch.arange(len(held)) if rows is None else torch.from_numpy(rows)
    order = torch.argsort(held)
    if not torch.equal(held[order], wanted):
        raise InputError(f"{index}: expected each entity's row once, got damaged parts")
    for name in pieces[0][1]:
        merged[name] = torch.cat([tensors[name] for _, tensors in pieces])[order]
    return merged, first
