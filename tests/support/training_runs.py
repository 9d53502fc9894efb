"""Helpers for tests of training: a run of a few seconds, and the comparison of two runs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from lightcake_fast.train import main as train
from tests.support.comparison import assert_bitwise_equal

# several steps per epoch with a short last batch, every option in use, and no kernel to compile
TINY = ["--dataset", "family:60", "--dim", "6", "--layers", "1", "--batch-size", "64"]
TINY += ["--backend", "reference", "--profile", "both", "--links", "--mixing"]
TINY += [
    "--input-dropout",
    "0.2",
    "--row-dropout",
    "0.1",
    "--unseen-rate",
    "0.1",
    "--lr-decay",
    "0.3",
    "--weight-average",
    "0.9",
    "--quiet",
]
TIMES = {"seconds", "total_seconds", "triples_per_second"}
EPOCHS = ["--epochs", "3"]  # for the uninterrupted run and the runs compared with it


def run(folder: Path, *flags: str) -> int:
    """Train in this process."""
    return train([*TINY, "--out", str(folder), *flags])


def resume(folder: Path, *flags: str) -> int:
    """Resume in this process."""
    return train(["--resume", str(folder), "--quiet", *flags])


def start(*flags: str, **environment: str) -> "subprocess.Popen[str]":
    """Start the command in a separate process."""
    return subprocess.Popen(
        [sys.executable, "-m", "lightcake_fast.train", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )


def without_times(value: Any) -> Any:
    """Return a JSON value without the fields that hold times."""
    if isinstance(value, dict):
        return {key: without_times(item) for key, item in value.items() if key not in TIMES}
    return value


def metrics(folder: Path) -> list[Any]:
    """Return the records of the epochs without times."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [without_times(json.loads(line)) for line in lines]


def tensors(folder: Path) -> dict[str, Tensor]:
    """Return the tensors of both checkpoints."""
    return {
        f"{file}:{name}": tensor
        for file in ("best.safetensors", "last.safetensors")
        for name, tensor in load_file(folder / file).items()
    }


def assert_equal_runs(folder: Path, expected: Path) -> None:
    """Assert that two runs wrote the same files with equal bits, except for times."""
    assert sorted(path.name for path in folder.iterdir()) == sorted(path.name for path in expected.iterdir())
    assert metrics(folder) == metrics(expected)
    for file in ("config.json", "results.json"):
        ours, theirs = (json.loads((path / file).read_text()) for path in (folder, expected))
        assert without_times(ours) == without_times(theirs), file
    best = "best.safetensors"
    assert (folder / best).read_bytes() == (expected / best).read_bytes()
    found, wanted = tensors(folder), tensors(expected)
    assert found.keys() == wanted.keys()
    for name, tensor in found.items():
        assert_bitwise_equal(tensor, wanted[name], name=name)
