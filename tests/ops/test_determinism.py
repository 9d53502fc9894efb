"""Two trainings in processes of their own end in equal bits, on the back end of each device."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.support.training_runs import TINY, assert_equal_runs

COMMAND = """
import sys
import torch
from lightcake_fast.train import main as train
torch.use_deterministic_algorithms(sys.argv[1] == "cuda")
torch.set_num_threads(2)
train(["--device", *sys.argv[1:]])
"""
ON_CARD = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.full  # in the quick run, trainings in one process are compared: test_shortages.py
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=ON_CARD)])
def test_two_trainings_end_in_equal_bits(device: str, tmp_path: Path) -> None:
    for name in ("first", "second"):
        flags = [*TINY, "--backend", "auto", "--epochs", "2", "--out", str(tmp_path / name)]
        subprocess.run(
            [sys.executable, "-c", COMMAND, device, *flags],
            env={**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "TRITON_INTERPRET": "0"},
            check=True,
        )
    assert_equal_runs(tmp_path / "first", tmp_path / "second")
