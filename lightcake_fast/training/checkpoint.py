"""Checkpoint files: safetensors with a checksum and what they belong to, written whole or not at all."""

import json
import zlib
from collections.abc import Mapping
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
from lightcake_fast.files import parse_json, replace_tensors
from lightcake_fast.training.config import TrainingConfig, complete

FORMAT = 1
NOTES = "lightcake_fast"  # key in the header of the file
MAX_HEADER = 1 << 20  # bytes: a hundred times what the models here need


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
    replace_tensors(path, host, header)


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
        _check_header(path)
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
    try:
        notes = parse_json(text)
        _check_identity(path, notes, config, fingerprint)
    except (TypeError, KeyError, AttributeError) as error:
        raise InputError(f"{path}: not a checkpoint of lightcake_fast: its notes are made up") from error
    return tensors, notes


def _check_header(path: Path) -> None:
    """Raise where the header's length cannot be right, before anything of that length is read."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
    if not 2 <= length <= min(MAX_HEADER, size - 8):
        raise InputError(
            f"{path}: missing, cut short or damaged: got a header of {length} bytes in a file of {size}, "
            f"wanted at most {MAX_HEADER}"
        )


def _check_identity(path: Path, notes: Mapping[str, Any], config: TrainingConfig, fingerprint: str) -> None:
    if notes["format"] != FORMAT:
        raise InputError(
            f"{path}: has format {notes['format']} (lightcake_fast {notes['version']}), "
            f"wanted {FORMAT} (lightcake_fast {__version__})"
        )
    if notes["fingerprint"] != fingerprint:
        raise InputError(
            f"{path}: made from another data set (fingerprint {notes['fingerprint'][:12]}) than "
            f"the one given now ({fingerprint[:12]})"
        )
    made = complete(notes["config"])
    for name, wanted in config.fixed().items():
        if made.get(name) != wanted:
            raise InputError(f"{path}: made with {name} {made.get(name)!r}, the run's is {wanted!r}")


def _checksum(text: str, tensors: Mapping[str, Tensor]) -> str:
    """CRC-32 over a text and the names, types, shapes and content of tensors."""
    value = zlib.crc32(text.encode())
    for name, tensor in sorted(tensors.items()):
        value = zlib.crc32(f"{name} {tensor.dtype} {list(tensor.shape)}".encode(), value)
        content: NDArray[np.uint8] = tensor.reshape(-1).view(torch.uint8).numpy()
        value = zlib.crc32(content.data, value)
    return f"{value:08x}"
