"""Checkpoints of several ranks: a file of each, and an index of those that belong together.

The index is written when all files of a save are there, under names of their own, and only then are those of
the save before removed: a kill at any moment leaves one save whole. Any number of ranks reads them, one too.
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
ROWS = "rows"  # of a rank's tensors: the entities whose rows it has
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
    """Write a rank's tensors; all ranks must call.

    Args:
        folder: The same for all ranks.
        stem: What the checkpoint is called: "last" or "best".
        tensors: By name; `ROWS` among them.
        tag: Of this save, on all ranks: no two saves of different content share it.
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
    world.agree(0)  # all files are there
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
    """Write one process's checkpoint; arguments as in `save_part`."""
    file = folder / f"{stem}.safetensors"
    save_checkpoint(file, tensors, config=config, fingerprint=fingerprint, notes=notes)
    if _index(folder, stem).exists():  # the run was that of several ranks before
        _index(folder, stem).unlink()
        _remove_parts(folder, stem)


def exists(folder: Path, stem: str) -> bool:
    """Whether a checkpoint was saved, in one file or in parts."""
    return (folder / f"{stem}.safetensors").exists() or _index(folder, stem).exists()


def load(
    folder: Path, stem: str, *, config: TrainingConfig, fingerprint: str, rows: Ids | None = None
) -> Saved:
    """Read a checkpoint, whoever saved it.

    Args:
        folder: Where it lies.
        stem: What it is called.
        config: As in `load_checkpoint`.
        fingerprint: As in `load_checkpoint`.
        rows: The entities whose rows are wanted, ascending; None for all.

    Returns:
        The tensors, of entities the rows wanted, and everything stored beside them.

    Raises:
        InputError: See `load_checkpoint`; or parts do not belong together.
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
    return max(found, key=lambda saved: _progress(saved[1]))  # of both a kill came between save and removal


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
    """The parts that an index names, one after another."""
    try:
        content = parse_json(index.read_text(encoding="utf-8"))
        tag, files = content["tag"], content["files"]
        # a folder may come from a stranger: names lead nowhere else
        good = content["format"] == FORMAT and files and all(_FILE.fullmatch(name) for name in files)
    except (TypeError, KeyError, InputError, UnicodeDecodeError):
        good = False
    if not good:
        raise InputError(f"{index}: damaged: wanted an index of a checkpoint's files")
    for name in files:
        tensors, notes = load_checkpoint(index.parent / name, config=config, fingerprint=fingerprint)
        if notes.get("tag") != tag:
            raise InputError(f"{index.parent / name}: is not of the save that {index.name} names")
        yield tensors, notes


def _merged(index: Path, parts: Iterator[Saved], own: Set[str], rows: Ids | None) -> Saved:
    """The rows wanted of `own` tensors from all parts, and the others, the same in all, from the first."""
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
            raise InputError(f"{index}: damaged: a part has other rows than it says")
        pieces.append((held[kept], {name: tensor[kept] for name, tensor in tables.items()}))
        merged, first = merged or tensors, first or notes
    held = torch.cat([names for names, _ in pieces])
    wanted = torch.arange(len(held)) if rows is None else torch.from_numpy(rows)
    order = torch.argsort(held)
    if not torch.equal(held[order], wanted):
        raise InputError(f"{index}: damaged: its parts do not have each entity's row once")
    for name in pieces[0][1]:
        merged[name] = torch.cat([tensors[name] for _, tensors in pieces])[order]
    return merged, first
