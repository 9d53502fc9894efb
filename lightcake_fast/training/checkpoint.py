"""Checkpoint files: safetensors with a checksum and the identity of the run, written atomically."""

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
MAX_HEADER = 1 << 20  # bytes, a hundred times the header of the largest model here


def save_checkpoint(
    path: Path,
    tensors: Mapping[str, Tensor],
    *,
    config: TrainingConfig,
    fingerprint: str,
    notes: Mapping[str, Any],
) -> None:
    """Write tensors with the identity of their run.

    Args:
        path: File to write.
        tensors: Tensors by name, on any device.
        config: Configuration of the run. Only the fields that never change are stored.
        fingerprint: Fingerprint of the data set.
        notes: Additional plain values to store.

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
    # one entry only: safetensors writes several entries in random order, and equal checkpoints must be equal
    # files
    header = {NOTES: f"{_checksum(text, host)} {text}"}
    replace_tensors(path, host, header)


def load_checkpoint(
    path: Path, *, config: TrainingConfig, fingerprint: str
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a file of `save_checkpoint`.

    Returns:
        The tensors in CPU memory, and all stored notes.

    Raises:
        InputError: The file is missing or damaged, or belongs to another data set, model or version.
    """
    try:
        _check_header(path)
        with safetensors.safe_open(path, framework="pt", device="cpu") as file:
            header = file.metadata() or {}
            names = file.keys()
            tensors = {name: file.get_tensor(name) for name in names}
    except (OSError, safetensors.SafetensorError) as error:
        raise InputError(
            f"{path}: expected a complete checkpoint, got a missing, truncated or damaged file: {error}"
        ) from error
    if NOTES not in header:
        raise InputError(f"{path}: expected a checkpoint of lightcake_fast, got another safetensors file")
    checksum, _, text = header[NOTES].partition(" ")
    if checksum != _checksum(text, tensors):
        raise InputError(f"{path}: expected content that matches its checksum, got a damaged file")
    try:
        notes = parse_json(text)
        _check_identity(path, notes, config, fingerprint)
    except (TypeError, KeyError, AttributeError) as error:
        raise InputError(f"{path}: expected a checkpoint of lightcake_fast, got invalid notes") from error
    return tensors, notes


def _check_header(path: Path) -> None:
    """Check the length of the header before reading that many bytes."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
    if not 2 <= length <= min(MAX_HEADER, size - 8):
        raise InputError(
            f"{path}: expected a header of at most {MAX_HEADER} bytes, got a header of {length} bytes in a "
            f"truncated or damaged file of {size}"
        )


def _check_identity(path: Path, notes: Mapping[str, Any], config: TrainingConfig, fingerprint: str) -> None:
    if notes["format"] != FORMAT:
        raise InputError(
            f"{path}: expected format {FORMAT} (lightcake_fast {__version__}), "
            f"got format {notes['format']} (lightcake_fast {notes['version']})"
        )
    if notes["fingerprint"] != fingerprint:
        raise InputError(
            f"{path}: expected a checkpoint of the given data set (fingerprint {fingerprint[:12]}), "
            f"got one of another data set (fingerprint {notes['fingerprint'][:12]})"
        )
    made = complete(notes["config"])
    for name, wanted in config.fixed().items():
        if made.get(name) != wanted:
            raise InputError(f"{path}: expected a checkpoint with {name} {wanted!r}, got {made.get(name)!r}")


def _checksum(text: str, tensors: Mapping[str, Tensor]) -> str:
    """Compute the CRC-32 of a text and of names, types, shapes and contents of tensors."""
    value = zlib.crc32(text.encode())
    for name, tensor in sorted(tensors.items()):
        value = zlib.crc32(f"{name} {tensor.dtype} {list(tensor.shape)}".encode(), value)
        content: NDArray[np.uint8] = tensor.reshape(-1).view(torch.uint8).numpy()
        value = zlib.crc32(content.data, value)
    return f"{value:08x}"
