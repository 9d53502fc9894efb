"""The report from a card, on the path that needs none."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SECTIONS = ["machine", "equality", "ceilings", "layers", "peers", "training_step", "uniform", "large"]


def report(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run it without the interpreter (it compiles kernels to count them) and without a GPU."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "bench.gpu_report", *arguments],
        cwd=ROOT,
        env={**environment, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_whole_path_runs_on_the_cpu(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    result = report("--device", "cpu", "--json", str(file))
    assert result.returncode == 0, result.stderr
    sections = json.loads(file.read_text())
    assert list(sections) == SECTIONS
    assert sections["equality"]["float32"] < 1e-4
    assert sections["layers"].keys() == {"family:60 distmult", "family:60 transe"}
    for layer in sections["layers"].values():
        assert 0 < layer["gathered_floor_ms"] < layer["all_bytes_floor_ms"]
        assert layer["both_ms"] > 0
    assert sections["peers"]["family:60"]["eager_ms"] > 0
    assert sections["training_step"]["launched_ms"] > 0
    assert "layers / family:60 distmult" in result.stdout


def test_without_a_gpu_it_says_so() -> None:
    result = report()
    assert result.returncode == 2
    assert "PyTorch sees no GPU here" in result.stderr
