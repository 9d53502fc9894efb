"""The report on a benchmark run: exact for a fixed file, one line for a broken one."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.report import figures
from bench.report.__main__ import main
from bench.report.measurements import Measurement, NotRun, read_results
from bench.report.tables import print_table, tables
from lightcake_fast import cli
from lightcake_fast.errors import InputError
from lightcake_fast.terminal import Console

MACHINE = {
    "device": "cpu",
    "device_name": "A chip, 2 threads",
    "versions": {"python": "3.11", "torch": "2.9"},
}


def entry(seconds: float, items: int, **info: Any) -> dict[str, Any]:
    """A benchmark as pytest-benchmark writes it, cut to what is read."""
    return {
        "name": f"test_{info['kind']}",
        "stats": {"min": seconds, "rounds": 3, "mean": 9.9},
        "extra_info": {**MACHINE, "items": items, "items_per_second": items / seconds, **info},
    }


def layer(model: str, mode: str, seconds: float, **info: Any) -> dict[str, Any]:
    return entry(seconds, 2000, kind="layer", mode=mode, model=model, data="toy", dim=256, **info)


def results() -> dict[str, Any]:
    """A run with every kind of benchmark."""
    training = {"kind": "training", "data": "toy", "dim": 64}
    peers = {"mode": "both", "data": "toy", "dim": 256, "memory": "kept"}
    beside = {"lightcake eager": 0.15, "PyG RGCNConv": 0.03}
    scaling = {"kind": "scaling", "mode": "both", "data": "uniform", "dim": 64}
    fused = {"parameters": 1_500_000, "peak_bytes": 1_000_000, "gathered_bytes": 6_000_000}
    return {
        "benchmarks": [
            layer("lightcake", "forward", 0.0005, parameters=1_500_000),
            layer("lightcake", "backward", 0.0015, parameters=1_500_000),
            layer("lightcake", "both", 0.002, **fused),
            layer("lightcake eager", "both", 0.15, parameters=1_500_000, peak_bytes=20_000_000),
            layer("rgcn", "both", 0.02, parameters=6_000_000, peak_bytes=4_000_000),
            layer("gather", "forward", 0.0001),
            entry(0.002, 2000, kind="peers", model="lightcake", beside=beside, **peers),
            entry(
                0.003,
                2000,
                kind="peers",
                model="transe",
                beside={"lightcake eager": 0.012},
                **peers,
            ),
            entry(0.025, 512, mode="step", model="lightcake 1", layers=1, parameters=900, **training),
            entry(1.5, 51_200, mode="epoch", model="lightcake 1", layers=1, parameters=900, **training),
            entry(0.01, 512, mode="step", model="distmult", layers=0, peak_bytes=2_500_000, **training),
            entry(0.1, 10_000, model="lightcake", peak_bytes=320_000, **scaling),
            entry(0.02, 10_000, model="gather", **scaling),
            entry(0.25, 1500, kind="evaluation", mode="test split", model="lightcake 2", data="toy"),
            entry(2.5, 1, kind="import", mode="torch", model="", data=""),
        ],
        "not_run": [
            {"kind": "layer", "model": "PyG", "data": "toy", "device": "cpu", "reason": "does not fit"},
            {"kind": "layer", "model": "PyG", "data": "other", "device": "cpu", "reason": "not here"},
        ],
    }


REPORT = """\
# Benchmarks

- A chip, 2 threads; python 3.11, torch 2.9

Times are those of the fastest round; ratios are to the row of R-GCN (`rgcn`) and of plain PyTorch \
(`lightcake eager`). Peak memory is what was held beyond inputs, outputs and gradients.

## One layer on toy, cpu: 2,000 context triples, width 256

| model | forward ms | backward ms | both ms | M triples/s | / R-GCN | / eager | GB/s |
|---|---:|---:|---:|---:|---:|---:|---:|
| lightcake | 0.5 | 1.5 | 2 | 1 | 10x | 75x | 3.0 |
| rgcn |  |  | 20 | 0.1 | 1x | 7.5x |  |
| lightcake eager |  |  | 150 | 0.0133 | 0.13x | 1x |  |
| gather | 0.1 |  |  |  |  |  |  |

- PyG: does not fit

## Memory and parameters of one layer on toy, cpu, width 256

| model | peak MB | / R-GCN | / eager | parameters | / R-GCN | / eager |
|---|---:|---:|---:|---:|---:|---:|
| lightcake | 1.0 | 0.25x | 0.05x | 1,500,000 | 0.25x | 1x |
| rgcn | 4.0 | 1x | 0.2x | 6,000,000 | 1x | 4x |
| lightcake eager | 20.0 | 5x | 1x | 1,500,000 | 0.25x | 1x |

## Training on toy, cpu, width 64

| model | layers | step ms | epoch s | triples/s | peak MB | parameters |
|---|---:|---:|---:|---:|---:|---:|
| lightcake 1 | 1 | 25 | 1.50 | 20,480 |  | 900 |
| distmult | 0 | 10 |  | 51,200 | 2.5 |  |

## A layer and its peers in turn, cpu, forward and backward, width 256, freed memory kept

| data | model | ms | lightcake eager ms | ratio | PyG RGCNConv ms | ratio |
|---|---|---:|---:|---:|---:|---:|
| toy | lightcake | 2 | 150 | 75x | 30 | 15x |
| toy | transe | 3 | 12 | 4x |  |  |

## Layer by size of the graph, cpu, forward and backward, width 64

| graph | context triples | ms | ns a triple | gather ns | / gather | peak bytes a triple |
|---|---:|---:|---:|---:|---:|---:|
| uniform | 10,000 | 100 | 10000.0 | 2000.0 | 5.00 | 32 |

## Evaluation, loading, import and memory, cpu

| what | model | data | ms | items | items/s |
|---|---|---|---:|---:|---:|
| evaluation, test split | lightcake 2 | toy | 250 | 1,500 | 6,000 |
| import, torch |  |  | 2,500 | 1 |  |

## One layer, forward and backward, by model and data set, cpu

![One layer, forward and backward, by model and data set, cpu](models-cpu.png)

## A training step by number of layers, cpu

![A training step by number of layers, cpu](layers-cpu.png)

## A layer by size of the graph, forward and backward, cpu

![A layer by size of the graph, forward and backward, cpu](sizes-cpu.png)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "run.json").write_text(json.dumps(results()))
    return tmp_path / "run.json"


def test_the_report_of_a_fixed_file(
    file: Path, capsys: pytest.CaptureFixture[str], peer: Callable[[str], Any]
) -> None:
    peer("matplotlib")
    main([str(file)])
    folder = file.parent / "run-report"
    assert (folder / "report.md").read_text(encoding="utf-8") == REPORT
    assert capsys.readouterr().out == f"{folder / 'report.md'}\n"
    pictures = ["layers-cpu.png", "models-cpu.png", "sizes-cpu.png"]
    assert {path.name for path in folder.iterdir()} == {*pictures, "report.md"}
    for name in pictures:
        content = (folder / name).read_bytes()
        assert content.startswith(b"\x89PNG")
        assert len(content) > 10_000


def test_the_folder_may_be_chosen(file: Path, tmp_path: Path, peer: Callable[[str], Any]) -> None:
    peer("matplotlib")
    main([str(file), "--out", str(tmp_path / "deep" / "here")])
    assert (tmp_path / "deep" / "here" / "report.md").read_text(encoding="utf-8") == REPORT


def test_what_is_not_measured_is_not_drawn(tmp_path: Path, peer: Callable[[str], Any]) -> None:
    peer("matplotlib")
    measurements = [Measurement.from_entry(one) for one in results()["benchmarks"][-2:]]
    assert figures.draw_figures(measurements, tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_devices_have_tables_of_their_own() -> None:
    made = [
        Measurement.from_entry({**one, "extra_info": {**one["extra_info"], "device": device}})
        for device in ("cpu", "cuda")
        for one in results()["benchmarks"]
    ]
    titles = [table.title for table in tables(made, [])]
    assert len(titles) == 12
    assert [title.replace("cpu", "cuda") for title in titles[:6]] == titles[6:]


def test_data_sets_come_by_size_and_models_by_speed() -> None:
    entries = [
        layer(model, "both", seconds, entities=size) | {"name": data}
        for data, size, model, seconds in (
            ("big", 90, "rgcn", 3.0),
            ("small", 5, "rgcn", 2.0),
            ("big", 90, "lightcake", 1.0),
            ("small", 5, "gather", 0.1),
        )
    ]
    for one in entries:
        one["extra_info"]["data"] = one["name"]
    small, big = tables([Measurement.from_entry(one) for one in entries], [])
    assert [row[0] for row in small.rows] == ["gather", "rgcn"]
    assert [row[0] for row in big.rows] == ["lightcake", "rgcn"]


@pytest.mark.parametrize("width", [None, 80])
def test_a_terminal_and_a_pipe_show_every_cell(width: int | None) -> None:
    found = results()
    names = {"lightcake": "lightcake bfloat16 rows"}
    for one in found["benchmarks"]:
        info = one["extra_info"]
        info["model"] = names.get(info["model"], info["model"])
        info["parameters"] = 42_431_232
    text = io.StringIO()
    terminal: dict[str, Any] = {"force_terminal": True, "color_system": None, "width": width}
    console = Console(file=text, **(terminal if width else {}))
    made = tables([Measurement.from_entry(one) for one in found["benchmarks"]], [])
    for table in made:
        print_table(console, table)
    lines = text.getvalue().splitlines()
    for table in made:
        for row in table.rows:
            figures = [cell for cell in row[table.text :] if cell]
            assert any(all(f" {cell} " in f"{line} " for cell in figures) for line in lines), row
        assert table.title in text.getvalue()
    assert "…" not in text.getvalue()
    if width:
        assert max(len(line) for line in lines if "│" in line) <= width


def test_without_matplotlib_one_line_says_how_to_get_it(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"figures need matplotlib: pip install 'lightcake_fast\[plots\]'"):
        main([str(file)])


def broken(change: str) -> str:
    """A damaged results file."""
    content = results()
    first = content["benchmarks"][0]
    if change == "no extra_info":
        del first["extra_info"]
    elif change == "other suite":
        first["extra_info"] = {}
    elif change == "no stats":
        first["stats"] = None
    elif change == "zero":
        first["stats"]["min"] = 0.0
    elif change == "text for a number":
        first["stats"]["min"] = "fast"
    elif change == "strange not_run":
        content["not_run"] = [{"why": "?"}]
    return json.dumps(content)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON, or cut short"),
        (json.dumps(results())[:500], "not JSON, or cut short"),
        ("[]", "holds no benchmarks, wanted what --benchmark-json wrote"),
        ("{}", "holds no benchmarks"),
        ('{"benchmarks": []}', "holds no benchmarks"),
        ('{"benchmarks": 5}', "holds no benchmarks"),
        ('{"benchmarks": [7]}', "a benchmark: wanted a benchmark of this project's bench/ with kind, "),
        (broken("no extra_info"), "test_layer: wanted a benchmark of this project's bench/"),
        (broken("other suite"), "test_layer: wanted a benchmark of this project's bench/"),
        (broken("no stats"), "test_layer: wanted a benchmark of this project's bench/"),
        (broken("zero"), "test_layer: got 0.0 seconds, wanted more than 0"),
        (broken("text for a number"), "test_layer: wanted a benchmark of this project's bench/"),
        (broken("strange not_run"), "unexpected keyword argument"),
    ],
)
def test_a_broken_file_gets_one_line(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.json").write_text(text)
    assert cli.run(main, [str(tmp_path / "x.json")]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {tmp_path / 'x.json'}: ")
    assert message in error
    assert error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


def test_no_file() -> None:
    with pytest.raises(InputError, match=r"nowhere\.json: there is no such file"):
        main(["nowhere.json"])


def test_the_suite_writes_what_the_report_reads(tmp_path: Path) -> None:
    file = tmp_path / "made.json"
    command = [sys.executable, "-m", "pytest", "bench/", "--benchmark-only", "-q", "-p", "no:cacheprovider"]
    command += [
        "-k",
        "(test_layer and 300 and (gather or eager or FastRGCNConv) and forward) or (test_plan and 300)",
    ]
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [*command, "--benchmark-json", str(file)],
        cwd=root,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "One layer on family:300, cpu" in done.stdout
    measurements, left_out = read_results(file)
    assert {(m.kind, m.mode, m.model) for m in measurements if m.device == "cpu"} >= {
        ("layer", "forward", "gather"),
        ("layer", "forward", "lightcake eager"),
        ("loading", "plan", ""),
    }
    fast = NotRun("layer", "PyG FastRGCNConv", "family:300", "cpu", left_out[0].reason)
    assert fast in left_out


def test_replays_have_a_column_where_there_are_some() -> None:
    training = {"kind": "training", "data": "toy", "dim": 64, "model": "lightcake 1", "layers": 1}
    entries = [
        layer("lightcake", "both", 0.002),
        layer("lightcake", "replay", 0.001),
        entry(0.025, 512, mode="step", **training),
        entry(0.0125, 512, mode="replay", **training),
    ]
    one_layer, steps = tables([Measurement.from_entry(one) for one in entries], [])
    assert dict(zip(one_layer.header, one_layer.rows[0], strict=False))["replay ms"] == "1"
    step = dict(zip(steps.header, steps.rows[0], strict=True))
    assert (step["step ms"], step["replay ms"], step["triples/s"]) == ("25", "12.5", "20,480")
