"""Checkpoints in parts: loaded with any number of ranks, never mixed between saves."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lightcake_fast.errors import InputError
from lightcake_fast.models import MODELS
from lightcake_fast.sharding.shard import Ids
from lightcake_fast.sharding.world import World
from lightcake_fast.training import parts
from lightcake_fast.training.presets import resolve
from lightcake_fast.training.run_folder import Position
from tests.support.comparison import assert_bitwise_equal
from tests.support.models import Shifted
from tests.support.worlds import in_threads

SAME: dict[str, Any] = {"config": resolve({"model": "distmult"}), "fingerprint": "of the data"}
OF_ENTITIES = ("model.entities", "average.entities", "adam.shift.exp_avg", "model.shift", "entities")
WHOLE = {
    **{name: torch.arange(20.0).view(10, 2) + 20 * number for number, name in enumerate(OF_ENTITIES)},
    "model.relations": torch.ones(4, 2),
    "adam.shift.step": torch.tensor(3.0),
}
OWNER = np.array([2, 0, 0, 2, 1, 0, 2, 2, 1, 0])


@pytest.fixture(autouse=True)
def _more_rows_per_entity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the model an extra weight with one row per entity."""
    monkeypatch.setitem(MODELS, "distmult", dataclasses.replace(MODELS["distmult"], make=Shifted))


def notes(step: int) -> dict[str, Any]:
    return {"position": dataclasses.asdict(Position(epoch=1, step=step))}


def save_in_parts(folder: Path, step: int = 5, ranks: int = 3) -> None:
    def work(world: World) -> None:
        rows = torch.from_numpy(np.flatnonzero(OWNER % ranks == world.rank))
        own = {n: t[rows] if n in OF_ENTITIES else t for n, t in WHOLE.items()} | {parts.ROWS: rows}
        parts.save_part(folder, "last", own, f"1-{step}", world, **SAME, notes=notes(step))

    in_threads(ranks, work)


def load(folder: Path, rows: Ids | None = None) -> tuple[dict[str, Tensor], int]:
    tensors, found = parts.load(folder, "last", **SAME, rows=rows)
    return tensors, found["position"]["step"]


def assert_whole(tensors: dict[str, Tensor]) -> None:
    assert tensors.keys() == WHOLE.keys()
    for name, tensor in WHOLE.items():
        assert_bitwise_equal(tensors[name], tensor, name=name)


def test_checkpoint_parts_load_with_any_number_of_ranks(tmp_path: Path) -> None:
    assert not parts.exists(tmp_path, "last")
    save_in_parts(tmp_path)
    assert parts.exists(tmp_path, "last")
    assert_whole(load(tmp_path)[0])
    rows = np.array([0, 3, 4, 9])
    for _ in range(2):  # from parts, then from one file
        tensors, _ = load(tmp_path, rows)
        assert tensors.keys() == WHOLE.keys()
        for name, tensor in tensors.items():
            wanted = WHOLE[name][rows] if name in OF_ENTITIES else WHOLE[name]
            assert_bitwise_equal(tensor, wanted, name=name)
        parts.save_whole(tmp_path, "last", WHOLE, **SAME, notes=notes(6))
    assert [path.name for path in tmp_path.iterdir()] == ["last.safetensors"]
    save_in_parts(tmp_path, step=7, ranks=2)
    names = {"last.json", "last-1-7-0-of-2.safetensors", "last-1-7-1-of-2.safetensors"}
    assert {path.name for path in tmp_path.iterdir()} == names, "of the save before nothing is left"


@pytest.mark.parametrize("newer", ["whole", "parts"])
def test_the_newer_of_two_saves_is_loaded_after_a_kill(tmp_path: Path, newer: str) -> None:
    save_in_parts(tmp_path, step=5)
    other = tmp_path / "other"
    other.mkdir()
    parts.save_whole(other, "last", WHOLE, **SAME, notes=notes(6 if newer == "whole" else 4))
    (other / "last.safetensors").rename(tmp_path / "last.safetensors")
    assert load(tmp_path)[1] == (6 if newer == "whole" else 5)


def test_incomplete_saves_are_ignored(tmp_path: Path) -> None:
    save_in_parts(tmp_path, step=5)
    kept = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    save_in_parts(tmp_path, step=6)
    for name, content in kept.items():
        (tmp_path / name).write_bytes(content)  # the index last, as before its replacement
    tensors, step = load(tmp_path)
    assert_whole(tensors)
    assert step == 5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"files": ["../last-1-5-0-of-3.safetensors"]}, "damaged"),
        ({"files": []}, "damaged"),
        ({"format": 2}, "damaged"),
        ({"tag": "1-4"}, "expected tag '1-4' of last.json, got "),
        ({"files": ["last-1-5-0-of-3.safetensors"]}, "each entity's row once"),
        ({"files": ["last-1-5-0-of-3.safetensors"] * 3}, "each entity's row once"),
        ({"files": ["gone.safetensors"]}, "missing"),
    ],
)
def test_damaged_index_is_reported(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    save_in_parts(tmp_path)
    index = tmp_path / "last.json"
    index.write_text(json.dumps({**json.loads(index.read_text()), **change}))
    with pytest.raises(InputError, match=message):
        load(tmp_path)


def test_binary_index_is_reported(tmp_path: Path) -> None:
    save_in_parts(tmp_path)
    (tmp_path / "last.json").write_bytes(b"\xff")
    with pytest.raises(InputError, match="expected an index of a checkpoint's files, got a damaged file"):
        load(tmp_path)
