"""Checkpoint files: safetensors with a checksum and what they belong to, written whole or not at all."""

import json
import os
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightcake_fast import __version__
from lightcake_fast.errors import InputError
from lightcake_fast.training.config import TrainingConfig

FORMAT = 1
NOTES = "lightcake_fast"  # key in the header of the file
TEMPORARY = ".tmp"


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Make or replace a file so that, whenever the process ends, the old or the new one is there whole.

    Args:
        path: The file.
        write: Writes the new content to the path it is given, in the same folder.
    """
    temporary = path.with_name(path.name + TEMPORARY)
    temporary.touch()
    mode = temporary.stat().st_mode
    write(temporary)
    temporary.chmod(mode)  # safetensors leaves files that only their owner can read
    with temporary.open("rb+") as file:
        os.fsync(file.fileno())
    temporary.replace(path)


def replace_text(path: Path, text: str) -> None:
    """`replace_file` with UTF-8 text."""
    replace_file(path, lambda temporary: temporary.write_text(text, encoding="utf-8", newline=""))


def save_checkpoint(
    path: Path,
    tensors: Mapping[str, Tensor],
    *,
    config: TrainingConfig,
    fingerprint: str,
    notes: Mapping[str, Any],
) -> None:
    """Write tensors with what they belong to.

    Args:
        path: The file.
        tensors: By name, on any device.
        config: The run's configuration; the fields that stay the same are stored.
        fingerprint: That of the data set.
        notes: More to store; plain values.

    Raises:
        OSError: The file cannot be written.
    """
    host = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    identity = {
        "format": FORMAT,
        "version": __version__,
        "fingerprint": fingerprint,
        "config": config.fixed(),
    }
    text = json.dumps({**identity, **notes})
    # one entry: safetensors writes several in random order, and equal checkpoints should be equal files
    header = {NOTES: f"{_checksum(text, host)} {text}"}

    def write(temporary: Path) -> None:
        try:
            safetensors.torch.save_file(host, temporary, metadata=header)
        except safetensors.SafetensorError as error:
            raise OSError(f"{path}: cannot be written: {error}") from error

    replace_file(path, write)


def load_checkpoint(
    path: Path, *, config: TrainingConfig, fingerprint: str
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `save_checkpoint` wrote.

    Returns:
        The tensors, in CPU memory, and everything stored beside them.

    Raises:
        InputError: The file is missing, damaged, or belongs to another data set, model or version.
    """
    try:
        with safetensors.safe_open(path, framework="pt", device="cpu") as file:
            header = file.metadata() or {}
            names = file.keys()
            tensors = {name: file.get_tensor(name) for name in names}
    except (OSError, safetensors.SafetensorError) as error:
        raise InputError(f"{path}: missing, cut short or damaged: {error}") from error
    if NOTES not in header:
        raise InputError(f"{path}: not a checkpoint of lightcake_fast")
    checksum, _, text = header[NOTES].partition(" ")
    if checksum != _checksum(text, tensors):
        raise InputError(f"{path}: damaged: its content does not match its checksum")
    notes: dict[str, Any] = json.loads(text)
    _check_identity(path, notes, config, fingerprint)
    return tensors, notes


def _check_identity(path: Path, notes: Mapping[str, Any], config: TrainingConfig, fingerprint: str) -> None:
    if notes["format"] != FORMAT:
        raise InputError(
            f"{path}: has format {notes['format']} (lightcake_fast {notes['version']}), "
            f"wanted {FORMAT} (lightcake_fast {__version__})"
        )
    if notes["fingerprint"] != fingerprint:
        raise InputError(
            f"{path}: made from another data set (fingerprint {notes['fingerprint'][:12]}) than "
            f"{config.dataset} is now ({fingerprint[:12]})"
        )
    for name, wanted in config.fixed().items():
        if notes["config"].get(name) != wanted:
            raise InputError(
                f"{path}: made with {name} {notes['config'].get(name)!r}, the run's is {wanted!r}"
            )


def _checksum(text: str, tensors: Mapping[str, Tensor]) -> str:
    """CRC-32 over a text and the names, types, shapes and content of tensors."""
    value = zlib.crc32(text.encode())
    for name, tensor in sorted(tensors.items()):
        value = zlib.crc32(f"{name} {tensor.dtype} {list(tensor.shape)}".encode(), value)
        content: NDArray[np.uint8] = tensor.reshape(-1).view(torch.uint8).numpy()
        value = zlib.crc32(content.data, value)
    return f"{value:08x}"
