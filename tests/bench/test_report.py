"""Report on a benchmark run."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.report import main, read_results
from lightcake_fast import cli

MACHINE = {"device": "cpu", "device_name": "A chip, 2 threads", "versions": {"python": "3.11"}}


def entry(seconds: float, items: int, **info: Any) -> dict[str, Any]:
    """A benchmark as pytest-benchmark writes it, reduced to the fields that the report reads."""
    return {"stats": {"min": seconds}, "extra_info": {**MACHINE, "items": items, **info}}


def layer(model: str, mode: str, seconds: float, **info: Any) -> dict[str, Any]:
    return entry(seconds, 2000, kind="layer", mode=mode, model=model, data="toy", **info)


BESIDE = {"PyG RGCNConv": 0.03}
RESULTS = {
    "benchmarks": [
        layer("lightcake", "forward", 0.0005),
        layer("lightcake", "both", 0.002, parameters=1_500_000, peak_bytes=1_000_000),
        layer("lightcake eager", "both", 0.15),
        layer("rgcn", "both", 0.02, parameters=6_000_000),
        layer("gather", "forward", 0.0001),
        entry(
            0.003, 2000, kind="peers", mode="both", model="transe", data="toy", beside={"PyG RGCNConv": 0.03}
        ),
        entry(2.5, 1, kind="import", mode="torch", model="", data=""),
    ],
    "not_run": [{"kind": "layer", "model": "PyG", "data": "toy", "device": "cpu", "reason": "does not fit"}],
}

REPORT = """\
# Benchmarks

Fastest rounds. A ratio above 1 means that the model is faster.

- A chip, 2 threads; {'python': '3.11'}

## layer, cpu

| data | model | mode | items | ms | M items/s | R-GCN / this | eager / this | gather / this \
| peak MB | parameters |
|---|---|---|---|---|---|---|---|---|---|---|
| toy | lightcake | forward | 2,000 | 0.5 | 4 |  |  | 0.2 |  |  |
| toy | lightcake | both | 2,000 | 2 | 1 | 10 | 75 |  | 1.0 | 1,500,000 |
| toy | lightcake eager | both | 2,000 | 150 | 0.0133 | 0.13 |  |  |  |  |
| toy | rgcn | both | 2,000 | 20 | 0.1 |  | 7.5 |  |  | 6,000,000 |
| toy | gather | forward | 2,000 | 0.1 | 20 |  |  |  |  |  |

## peers, cpu

| data | model | mode | items | ms | M items/s | PyG / this |
|---|---|---|---|---|---|---|
| toy | transe | both | 2,000 | 3 | 0.667 | 10 |

## import, cpu

| mode | items | ms |
|---|---|---|
| torch | 1 | 2,500 |

## not run

| kind | data | model | device | reason |
|---|---|---|---|---|
| layer | toy | PyG | cpu | does not fit |
"""


def test_report_of_a_fixed_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], peer: Callable[[str], Any]
) -> None:
    peer("matplotlib")
    (tmp_path / "run.json").write_text(json.dumps(RESULTS))
    main([str(tmp_path / "run.json"), "--figure", str(tmp_path / "layers.png")])
    assert capsys.readouterr().out == REPORT
    assert (tmp_path / "layers.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "text",
    [
        "",
        json.dumps(RESULTS)[:300],
        "[]",
        '{"benchmarks": 5}',
        '{"benchmarks": [7]}',
        '{"benchmarks": [{}]}',
        None,
    ],
)
def test_damaged_file_gives_one_line(
    text: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "x.json"
    if text is not None:
        file.write_text(text)
    assert cli.run(main, [str(file)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {file}: expected a file that --benchmark-json wrote")
    assert error.count("\n") == 1


def test_suite_writes_a_file_for_the_report(tmp_path: Path) -> None:
    file = tmp_path / "made.json"
    command = [sys.executable, "-m", "pytest", "bench/", "--benchmark-only", "-q", "-p", "no:cacheprovider"]
    chosen = "(test_layer and 300 and (gather or eager or FastRGCNConv) and forward) or (test_plan and 300)"
    done = subprocess.run(
        [*command, "-k", chosen, "--benchmark-json", str(file)],
        cwd=Path(__file__).resolve().parents[2],
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "layer, cpu" in done.stdout
    rows, left_out = read_results(file)
    assert {(row["kind"], row["mode"], row["model"]) for row in rows if row["device"] == "cpu"} >= {
        ("layer", "forward", "gather"),
        ("layer", "forward", "lightcake eager"),
        ("loading", "plan", ""),
    }
    assert "PyG FastRGCNConv" in {entry["model"] for entry in left_out}
