"""The command in separate processes: signals, SIGKILL, exit codes and output."""

import importlib
import io
import json
import random
import re
import runpy
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from lightcake_fast import cli
from lightcake_fast.data import load_dataset
from lightcake_fast.terminal import Console
from lightcake_fast.train import main as train
from lightcake_fast.training.config import fields
from lightcake_fast.training.presets import resolve
from lightcake_fast.training.progress import Reporter, hyperparameters
from lightcake_fast.training.run_folder import Position, RunFolder
from tests.support.processes import FILE_EVENTS, HANG, signalled
from tests.support.trained_runs import write_dataset
from tests.support.training_runs import TINY, assert_equal_runs, start

COMMAND = importlib.import_module("lightcake_fast.train")  # `lightcake_fast.train` is the function
LONG = [*TINY, "--epochs", "60", "--patience", "60"]
LEAST_EVENTS = 900  # file events of the long run are more: all signals arrive before its end


def finish(*flags: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run the command to its end."""
    process = start(*flags, **environment)
    out, err = process.communicate(timeout=HANG)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("long") / "run"
    done = finish(*LONG, "--out", str(folder))
    assert (done.returncode, done.stderr) == (0, "")
    return folder


@pytest.mark.full  # in the quick run, test_resume.py sends signals in this process
def test_sigint_and_sigterm_save_first(long_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    flags = [*LONG, "--out", str(folder)]
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        done = finish(*flags, **signalled(tmp_path, number, FILE_EVENTS, str(folder), LEAST_EVENTS // 3))
        assert (done.returncode, done.stderr) == (code, "")
        assert (folder / "last.safetensors").exists()
        assert not (folder / "results.json").exists()
        flags = ["--resume", str(folder), "--quiet"]
    assert finish(*flags).returncode == 0
    assert_equal_runs(folder, long_run)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(11))
def test_run_survives_three_random_kills(long_run: Path, tmp_path: Path, seed: int) -> None:
    moments = random.Random(seed)
    folder = tmp_path / "run"
    for _ in range(3):
        flags = ["--resume", str(folder), "--quiet"] if folder.exists() else [*LONG, "--out", str(folder)]
        moment = moments.randrange(1, LEAST_EVENTS // 3)
        done = finish(*flags, **signalled(tmp_path, signal.SIGKILL, FILE_EVENTS, str(folder), moment))
        assert done.returncode == -signal.SIGKILL
    done = finish("--resume", str(folder), "--quiet")
    assert (done.returncode, done.stderr) == (0, "")
    assert_equal_runs(folder, long_run)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--epochs", "0"], "error: epochs: expected an integer of at least 1, got 0"),
        (
            ["--batch-size", "1" + "0" * 19],
            "error: batch_size: expected an integer of at least 1 and below 2147483648",
        ),
        (["--epoch", "3"], "error: unrecognized arguments: --epoch 3"),
        (["--score", "rescal"], "error: score: expected one of distmult, transe, complex"),
        (["--dim", "wide"], "error: argument --dim: invalid int value: 'wide'"),
        (["--device", "tpu"], "error: device: expected auto, cpu, cuda or cuda:N, got 'tpu'"),
        (["--dataset", "nowhere/to/be/found"], "error: dataset: expected one of "),
        (["--resume", "nowhere"], "error: nowhere: expected a run folder"),
    ],
)
def test_wrong_flags_give_one_line_and_exit_code_2(
    tmp_path: Path, flags: list[str], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    out = [] if "--resume" in flags else ["--out", str(tmp_path / "run")]
    assert cli.run(train, [*flags, *out]) == 2
    printed = capfd.readouterr().err
    assert printed.startswith(message)
    assert printed.count("\n") == 1


def test_diverged_training_gives_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.run(train, [*TINY, "--lr", "2e9", "--out", str(tmp_path / "run")]) == 2
    printed = capfd.readouterr().err
    assert printed.startswith("error: training diverged in epoch 1: ")
    assert printed.endswith("try a smaller --lr (now 2e+09)\n")
    assert printed.count("\n") == 1


def test_training_on_user_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    for name in ("train", "valid", "test"):
        (tmp_path / "mine" / f"{name}.txt").write_text("a\tis (x)\tb\nb\tis (y)\ta\n")
    monkeypatch.chdir(tmp_path)
    flags = ["--dataset", "mine", "--backend", "reference", "--epochs", "1", "--quiet", "--layers", "0"]
    train(flags)
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("mine-lightcake-distmult-")
    assert (folder / "relations.tsv").read_text() == "0\tis (x)\n1\tis (y)\n"
    assert (folder / "entities.tsv").read_text() == "0\ta\n1\tb\n"
    monkeypatch.chdir("/")
    assert train(["--resume", str(folder), "--epochs", "2", "--quiet"]) == 0


def test_resume_after_data_folder_moved(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data, moved, folder = tmp_path / "data", tmp_path / "moved", tmp_path / "run"
    write_dataset(data)
    flags = ["--backend", "reference", "--epochs", "1", "--quiet", "--layers", "0"]
    assert train(["--dataset", str(data), "--out", str(folder), *flags]) == 0
    data.rename(moved)
    assert cli.run(train, ["--resume", str(folder)]) == 2
    assert capfd.readouterr().err == (
        f"error: {folder}: expected the run's data set at {data}, got nothing there: give its new place "
        "with --dataset\n"
    )
    assert cli.run(train, ["--resume", str(folder), "--dataset", "family:60", "--epochs", "2"]) == 2
    assert "last.safetensors: expected a checkpoint of the given data set" in capfd.readouterr().err
    assert cli.run(train, ["--resume", str(folder), "--dataset", str(tmp_path / "no")]) == 2
    assert f"got '{tmp_path / 'no'}'" in capfd.readouterr().err
    assert train(["--resume", str(folder), "--dataset", str(moved), "--quiet"]) == 0  # the run was finished
    assert train(["--resume", str(folder), "--epochs", "2", "--quiet"]) == 0  # the new place is saved
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 2


def help_of(flag: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stop:
        train([flag])
    assert stop.value.code == 0
    return capsys.readouterr().out


def flags_in(text: str) -> list[str]:
    return re.findall(r"^  (?:-h, )?(--[a-z0-9-]+)", text, re.MULTILINE)


def test_help_shows_examples_and_common_flags(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    text = help_of("--help", capsys)
    assert text.index("\nexamples:\n") < text.index("\noptions:\n") < text.index("\nExit codes: 0 done")
    assert max(map(len, text.splitlines())) <= 110
    assert len(flags_in(text)) == 19, "help, help-all, debug and 16 settings"
    assert {"--dataset", "--model", "--score", "--lr", "--seed", "--seeds"} <= set(flags_in(text))


def test_help_all_shows_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of("--help-all", capsys)
    assert set(flags_in(help_of("--help", capsys))) < set(flags_in(text))
    assert {"--" + field.name.replace("_", "-") for field, _, _ in fields()} < set(flags_in(text))
    assert "--relation-bias, --no-relation-bias" in text


def test_out_with_existing_run_suggests_resume(unbroken: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = (unbroken / "config.json").read_bytes()
    assert cli.run(train, [*LONG, "--dim", "9", "--out", str(unbroken)]) == 2
    assert capfd.readouterr().err == (
        f"error: {unbroken}: expected a new folder, got a run: use another, or --resume {unbroken}\n"
    )
    assert (unbroken / "config.json").read_bytes() == before


def test_quiet_prints_only_metrics_otherwise_one_line_per_epoch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [flag for flag in TINY if flag != "--quiet"]
    train([*flags, "--epochs", "2", "--out", str(tmp_path / "run")])
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    assert len([line for line in lines if line.startswith("epoch ")]) == 2
    assert lines[2] == hyperparameters(RunFolder.open(tmp_path / "run").config)
    assert "\x1b" not in shown
    assert lines[-1] == f"run folder: {tmp_path / 'run'}"
    train(["--resume", str(tmp_path / "run"), "--quiet"])
    quiet = capsys.readouterr().out.splitlines()
    assert [line.partition(" (")[0] for line in quiet] == ["test all"], "all entities are seen"


def test_terminal_shows_live_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightcake_fast.training.progress.REFRESH_SECONDS", 0.0)
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80, color_system=None)
    monkeypatch.setattr(COMMAND, "Reporter", lambda quiet, _: Reporter(quiet, console))
    flags = [flag for flag in TINY if flag != "--quiet"]
    train([*flags, "--epochs", "2", "--out", str(tmp_path / "run")])
    shown = screen.getvalue()
    for part in ("\x1b[", "epoch 1/2", "loss ", "best MRR ", "triples/s", "left", "Hits@10"):
        assert part in shown
    lines = re.split("[\r\n]", re.sub(r"\x1b\[[^A-Za-z]*[A-Za-z]", "", shown))
    live = [line for line in lines if "━" in line and "triples/s" in line]
    assert any(re.search(r"triples/s  \d+ s left *$", line) for line in live), "the whole line fits"
    assert max(map(len, live)) <= 80
    assert "…" not in shown


def test_remaining_time_ignores_time_before_first_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # after 1,000 seconds of compilation: end of the first step, end of the epoch
    clock = iter([1000.0, 1002.0])
    monkeypatch.setattr("lightcake_fast.training.progress.time.monotonic", lambda: next(clock))
    config, graph = resolve({"epochs": 4}), load_dataset("family:60")
    reporter = Reporter()
    with reporter.training(config, graph, 5, Position(), Path("run")):
        for _ in range(5):
            reporter.due()
        record = {"loss": 1.0, "valid": {"all": {"mrr": 0.5}}, "triples_per_second": 10.0}
        reporter.epoch(record, Position(epoch=1, best_epoch=1, total_seconds=1002.0))
    assert "MRR 0.5000 (best)  10 triples/s  8 s left\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (
            {"dataset": "family", "task": "relation"},
            "layers 2, width 64, batch size 512, learning rate 0.01",
        ),
        (
            {"dataset": "fb15k-237", "task": "entity", "score": "complex", "layers": 1, "lr": 0.02},
            "layers 1, width 512, batch size 2,048, learning rate 0.02 (decay 0.12 per epoch), N3 0.05, "
            "negatives 4000",
        ),
        (
            {"dataset": "family", "task": "entity", "lr_decay": 0.0},
            "layers 2, width 64, batch size 256, learning rate 0.01, N3 0, negatives all entities",
        ),
    ],
)
def test_run_prints_chosen_hyperparameters(flags: dict[str, Any], line: str) -> None:
    assert hyperparameters(resolve(flags)) == line


@pytest.mark.parametrize(("best", "said"), [(3, True), (2, False)])
def test_best_last_epoch_suggests_more_epochs(
    best: int, said: bool, unbroken: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = {**json.loads((unbroken / "results.json").read_text()), "epochs": 3, "best_epoch": best}
    Reporter().results(results, Path("runs/mine"))
    assert ("--resume runs/mine --epochs 6" in capsys.readouterr().out) is said


def test_only_the_command_flushes_denormals(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def kept() -> bool:
        return bool((torch.tensor(1e-40) * 1).item() > 0)

    assert kept(), "importing lightcake_fast.train must not change this process"
    monkeypatch.setattr(sys, "argv", ["train", "--help"])
    try:
        with pytest.raises(SystemExit):
            runpy.run_path(str(COMMAND.__file__), run_name="__main__")
        assert not kept()
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--device", "cuda:99"], "GPUs, got 'cuda:99'"),
        (
            ["--cuda-graph", "on", "--device", "cpu"],
            "cuda_graph: expected 'auto' or 'off' without a GPU, got 'on'",
        ),
        (["--data-dir", "a\0b"], "data_dir: expected text, got 'a\\x00b'"),
        (["--model", "rotate", "--dim", "7"], "dim: expected an even number for rotate, got 7"),
    ],
)
def test_rejected_training_leaves_no_folder(
    flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert cli.run(train, ["--dataset", "family:60", "--out", str(out), *flags]) == 2
    assert message in capsys.readouterr().err
    assert not out.exists()
