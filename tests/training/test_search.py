"""The search uses only the validation split, and a stop does not change its result."""

import importlib
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lightcake_fast
from lightcake_fast import cli
from lightcake_fast.data import load_dataset, write_folder
from lightcake_fast.errors import DataWarning, InputError
from lightcake_fast.files import lock_folder
from lightcake_fast.train import main as train
from lightcake_fast.training.presets import preset_settings
from tests.support.training_runs import without_times

SMALL: dict[str, Any] = {"layers": 1, "batch_size": 64, "epochs": 2, "backend": "reference"}
FLAGS = ["--dataset", "family:60", "--layers", "1", "--batch-size", "64", "--epochs", "2"]
FLAGS += ["--backend", "reference"]


@pytest.fixture(scope="module")
def module(peer: Callable[[str], Any]) -> Any:
    """The module of the command. `lightcake_fast.search` is the function."""
    peer("optuna")

    return importlib.import_module("lightcake_fast.search")


def epochs(folder: Path) -> list[Any]:
    return [without_times(json.loads(line)) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_test_split_is_used_only_when_a_trial_is_resumed(
    module: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [*FLAGS, "--out", str(tmp_path), "--vary", "lr=1e-3..1e-1", "dim=4,6"]
    assert cli.run(module.main, [*argv, "--trials", "2"]) == 0
    printed = capsys.readouterr().out
    folders = [tmp_path / f"trial-00{number}" for number in range(2)]
    best = max(folders, key=lambda folder: max(record["valid"]["all"]["mrr"] for record in epochs(folder)))
    assert f"--resume {best}" in printed
    assert not any((folder / "results.json").exists() for folder in folders)
    assert train(["--resume", str(best), "--quiet"]) == 0
    results = json.loads((best / "results.json").read_text())
    capsys.readouterr()
    config = tmp_path / "best.json"
    assert train(["--config", str(config), "--out", str(tmp_path / "again"), "--quiet"]) == 0
    again = json.loads((tmp_path / "again" / "results.json").read_text())
    assert without_times(again) == without_times(results)


def test_same_command_trains_missing_trials(
    module: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = [
        *FLAGS,
        "--out",
        str(tmp_path),
        "--sampler",
        "grid",
        "--vary",
        "dim=4,6",
        "relation-bias=true,false",
    ]
    assert cli.run(module.main, [*grid, "--trials", "1"]) == 0
    capsys.readouterr()
    assert cli.run(module.main, grid) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines if line.startswith("trial-")] == [
        f"trial-00{number} of 4" for number in (1, 2, 3)
    ]
    found = {
        (config["dim"], config["relation_bias"])
        for config in (json.loads(path.read_text()) for path in tmp_path.glob("trial-*/config.json"))
    }
    assert found == {(4, True), (4, False), (6, True), (6, False)}
    monkeypatch.setattr(module, "train_to_end", None)
    assert cli.run(module.main, grid) == 0
    assert not any(line.startswith("trial-") for line in capsys.readouterr().out.splitlines())


def test_interrupted_trial_resumes(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(
        config: Any, data: Any, run: Any, reporter: Any, interrupt: Any, *more: Any, **options: Any
    ) -> Any:
        interrupt.signal = signal.SIGINT  # a signal during the first step
        return original(config, data, run, reporter, interrupt, *more, **options)

    settings = {**SMALL, "vary": {"dim": [4], "lr": (1e-3, 1e-1)}, "trials": 1, "quiet": True}
    whole = lightcake_fast.search("family:60", out=tmp_path / "whole", **settings)
    original = module.train_to_end
    with monkeypatch.context() as patch:
        patch.setattr(module, "train_to_end", stopped)
        with pytest.raises(SystemExit) as left:
            lightcake_fast.search("family:60", out=tmp_path / "cut", **settings)
    assert left.value.code == 130
    assert (tmp_path / "cut" / "trial-000" / "last.safetensors").exists()
    study = lightcake_fast.search("family:60", out=tmp_path / "cut", **settings)
    assert [trial.state.name for trial in study.trials] == ["FAIL", "COMPLETE"]
    assert study.best_params == whole.best_params
    assert study.best_value == whole.best_value
    assert epochs(tmp_path / "cut" / "trial-000") == epochs(tmp_path / "whole" / "trial-000")
    assert capsys.readouterr().out == ""


def test_search_on_data_from_memory(module: Any, tmp_path: Path) -> None:
    graph = load_dataset("family:60")
    names = [(graph.entities[h], graph.relations[r], graph.entities[t]) for h, r, t in graph.train]
    study = lightcake_fast.search(names, out=tmp_path, vary={"dim": [4]}, trials=1, quiet=True, **SMALL)
    assert study.best_params == {"dim": 4}
    assert study.trials_dataframe()["value"].tolist() == [study.best_value]
    trained = lightcake_fast.load(tmp_path / "trial-000")
    assert set(trained.data.entities) <= set(graph.entities)


@pytest.mark.parametrize(
    ("task", "alone"),
    [("relation", {"l2", "row_dropout", "unseen_rate"}), ("entity", {"lr_decay", "n3"})],
)
def test_default_search_space_fits_the_task(module: Any, tmp_path: Path, task: str, alone: set[str]) -> None:
    settings: dict[str, Any] = {"batch_size": 64, "epochs": 1, "backend": "reference", "quiet": True}
    study = lightcake_fast.search("family:60", out=tmp_path, trials=1, task=task, **settings)
    assert set(study.best_params) == {"dim", "layers", "lr", "input_dropout", *alone}


def test_default_search_space_contains_entity_presets(module: Any) -> None:
    for dataset in ("fb15k-237", "wn18rr"):
        for score in ("complex", "rotate"):
            preset = preset_settings("best", dataset, "lightcake", score, task="entity")
            for name, values in module.VARY["entity"].items():
                least, most = min(values), max(values)
                assert least <= preset[name] <= most, f"{name} {preset[name]} of {dataset}"


def test_failed_trials_do_not_stop_the_search(
    module: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [*FLAGS, "--out", str(tmp_path / "x"), "--sampler", "grid"]
    assert cli.run(module.main, [*argv, "--vary", "dim=4", "lr=0.01,1e9"]) == 0
    assert "trial-001 of 2: ended early: training diverged in epoch 1" in capsys.readouterr().out
    argv[-3] = str(tmp_path / "y")
    assert cli.run(module.main, [*argv, "--vary", "dim=4", "lr=1e9"]) == 2
    assert "expected a trial with an MRR, got none" in capsys.readouterr().err


def test_settings_that_a_model_rejects_end_a_trial(module: Any, tmp_path: Path) -> None:
    settings = {**SMALL, "quiet": True, "model": "rgcn", "sampler": "grid", "epochs": 1}
    del settings["layers"], settings["backend"]
    study = lightcake_fast.search("family:60", out=tmp_path, vary={"layers": [0, 1]}, **settings)
    assert [trial.state.name for trial in study.trials] == ["PRUNED", "COMPLETE"]
    assert study.trials[0].user_attrs["cause"] == "layers: expected at least 1, got 0"


def test_bad_trials_are_pruned(module: Any, tmp_path: Path) -> None:
    settings = {**SMALL, "epochs": 4, "quiet": True, "sampler": "random", "trials": 8, "dim": 4}
    study = lightcake_fast.search("family:60", out=tmp_path, vary={"lr": (1e-5, 1e-1)}, **settings)
    pruned = [trial for trial in study.trials if trial.state.name == "PRUNED"]
    assert pruned
    for trial in pruned:
        assert 3 <= len(epochs(tmp_path / trial.user_attrs["folder"])) <= 4


def test_folder_rejects_another_search(
    module: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [*FLAGS, "--out", str(tmp_path), "--trials", "1"]
    assert cli.run(module.main, [*argv, "--vary", "dim=4,6"]) == 0
    for more, message in (
        (["--vary", "dim=4,8"], "expected vary {'dim': [4, 6]} of its search, got {'dim': [4, 8]}"),
        (["--vary", "dim=4,6", "--seed", "1"], "expected settings "),
    ):
        assert cli.run(module.main, [*argv, *more]) == 2
        assert message in capsys.readouterr().err


def test_search_of_an_older_version_resumes_with_the_header_as_a_triple(module: Any, tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "search"
    write_folder(load_dataset("family:60"), data)
    for ids in data.glob("*.dict"):
        ids.unlink()
    train_file = data / "train.tsv"
    train_file.write_text(f"head\trelation\ttail\n{train_file.read_text()}")
    settings = {**SMALL, "epochs": 1, "sampler": "grid", "quiet": True, "out": out, "vary": {"dim": [4, 6]}}
    lightcake_fast.search(data, trials=1, header=False, **settings)
    journal = out / "study.journal"
    lines = journal.read_text().splitlines()
    asked = json.loads(lines[1])
    asked["user_attr"]["asked"]["settings"].pop("header", None)  # older versions did not have it
    journal.write_text("\n".join([lines[0], json.dumps(asked), *lines[2:], ""]))
    study = lightcake_fast.search(data, trials=2, header=False, **settings)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "COMPLETE"]
    with (
        pytest.warns(DataWarning, match="--no-header to keep"),
        pytest.raises(InputError, match="expected data"),
    ):
        lightcake_fast.search(data, trials=2, **settings)


@pytest.mark.parametrize(
    ("before", "after"), [([4, 6], (4, 6)), ((4, 6), [4, 6])], ids=["list then range", "range then list"]
)
def test_range_differs_from_list_of_its_bounds(module: Any, tmp_path: Path, before: Any, after: Any) -> None:
    settings = {**SMALL, "epochs": 1, "sampler": "random", "quiet": True, "out": tmp_path}
    lightcake_fast.search("family:20", vary={"dim": before}, trials=1, **settings)
    with pytest.raises(InputError, match=r"expected vary .*'low': 4, 'high': 6"):
        lightcake_fast.search("family:20", vary={"dim": after}, trials=2, **settings)
    study = lightcake_fast.search("family:20", vary={"dim": before}, trials=2, **settings)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "COMPLETE"]


def test_run_and_search_cannot_share_a_folder(
    module: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, search = str(tmp_path / "run"), str(tmp_path / "search")
    assert train([*FLAGS, "--dim", "4", "--out", run, "--quiet"]) == 0
    before = sorted(path.name for path in Path(run).iterdir())
    argv = [*FLAGS, "--trials", "1", "--vary", "dim=4", "--out"]
    assert cli.run(module.main, [*argv, run]) == 2
    assert f"{run}: expected a folder for a search, got a run" in capsys.readouterr().err
    assert sorted(path.name for path in Path(run).iterdir()) == before
    assert cli.run(module.main, [*argv, search]) == 0
    capsys.readouterr()
    assert cli.run(train, [*FLAGS, "--dim", "4", "--out", search]) == 2
    assert f"{search}: expected a new folder, got a search" in capsys.readouterr().err
    assert not (Path(search) / "config.json").exists()


def test_best_settings_train_from_any_folder(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_folder(load_dataset("family:60"), tmp_path / "mine")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    argv = ["--dataset", "mine", *FLAGS[2:], "--out", "search", "--trials", "1", "--vary", "dim=4"]
    assert cli.run(module.main, argv) == 0
    monkeypatch.chdir("elsewhere")
    assert train(["--config", "../search/best.json", "--out", "run", "--quiet"]) == 0


def test_two_processes_cannot_share_a_search(
    module: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = lock_folder(tmp_path, "this search")
    assert lock is not None
    argv = [*FLAGS, "--out", str(tmp_path), "--trials", "1", "--vary", "dim=4"]
    assert cli.run(module.main, argv) == 2
    assert "expected this search without another process" in capsys.readouterr().err
    os.close(lock)
    assert cli.run(module.main, argv) == 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--vary", "dim"], "--vary: expected NAME=VALUE,... or NAME=LOW..HIGH, got 'dim'"),
        (["--vary", "size=4"], "vary: expected settings to try, got 'size'"),
        (["--vary", "dataset=a,b"], "vary: expected settings to try, got 'dataset'"),
        (["--vary", "dmi=4"], "did you mean dim?"),
        (["--vary", "dim=x"], "--vary: expected values of the right type, got 'dim=x'"),
        (["--vary", "dim=0,4"], "vary: expected dim to be an integer of at least 1, got 0"),
        (["--vary", "lr=0.1..0.01"], "expected lr with a lower bound below its upper bound"),
        (["--vary", "links=yes"], "expected true or false, got 'yes'"),
        (["--vary", "score=distmult,best"], "vary: expected score to be one of distmult"),
        (["--vary", "lr=nan"], "expected a finite number, got 'nan'"),
        (["--vary", "lr=.1", "lr=.2"], "--vary: expected each setting once, got lr twice"),
        (["--vary", "lr=.1", "--vary", "lr=.2"], "got lr twice: join its values"),
        (["--vary", "lr=.1,0.1"], "vary: expected each value of lr once, got [0.1, 0.1]"),
        (["--vary", "dim=4", "--dim", "4"], "dim: expected a value or values to try, got both"),
        (
            ["--vary", "lr=0.1..1", "--sampler", "grid"],
            "expected a list of values for lr in a grid, got a range",
        ),
        (["--vary", "dim=4", "--trials", "0"], "trials: expected an integer of at least 1, got 0"),
        (["--vary", "bases=2"], "bases: expected model rgcn, got lightcake"),
        (["--resume", "x"], "--resume: expected no such flag in a search: repeat the same command"),
        (["--partition", "x"], "--partition: expected no such flag: a search trains in one process"),
    ],
)
def test_wrong_search_flags_are_rejected(
    module: Any, flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(module.main, ["--dataset", "family:60", "--out", str(tmp_path / "x"), *flags]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_search_needs_a_folder_and_optuna(
    module: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli.run(module.main, ["--dataset", "family:60"]) == 2
    assert "--out: expected the folder of the search" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(InputError, match=r"pip install 'lightcake_fast\[search\]'"):
        lightcake_fast.search("family:60", out=tmp_path)


def test_numpy_numbers_and_arrays_are_accepted(module: Any, tmp_path: Path) -> None:
    tried: dict[str, Any] = {
        "dim": np.array([4, 6]),
        "lr": [np.float64(0.01)],
        "l2": (np.float32(0), np.float64(1)),
    }
    settings = {**SMALL, "epochs": np.int64(1), "quiet": True, "trials": 1}
    study = lightcake_fast.search("family:60", out=tmp_path, vary=tried, **settings)
    assert study.best_params["dim"] in (4, 6)
    assert lightcake_fast.search("family:60", out=tmp_path, vary=tried, **settings).best_value
    tried = {"dim": np.array([4.5])}
    with pytest.raises(InputError, match=r"vary: expected dim to be an integer of at least 1, got 4\.5"):
        lightcake_fast.search("family:60", out=tmp_path / "x", vary=tried, **settings)


def test_file_instead_of_folder_is_rejected(module: Any, tmp_path: Path) -> None:
    settings = {**SMALL, "vary": {"dim": [4]}, "trials": 1, "quiet": True}
    (tmp_path / "file").touch()
    for out in ("file", "file/below"):
        with pytest.raises(InputError, match="file: expected a folder, got a file"):
            lightcake_fast.search("family:20", out=tmp_path / out, **settings)
    (tmp_path / "data").touch()
    with pytest.raises(InputError, match="data: expected a folder, got a file"):
        lightcake_fast.search(load_dataset("family:20"), out=tmp_path, **settings)


@pytest.mark.parametrize(
    ("vary", "message"),
    [
        ({"dim": 8}, "vary: expected dim as a list, or as a tuple of two numbers, got 8"),
        ({"score": "transe"}, "vary: expected score as a list, or as a tuple of two numbers, got 'transe'"),
        ({"lr": [1e30]}, r"vary: expected lr to be a number above 0 and below 2147483648, got 1e\+30"),
        ({"device": ["cpu"]}, "vary: expected settings to try, got 'device'"),
    ],
)
def test_wrong_values_to_try_are_rejected(module: Any, tmp_path: Path, vary: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        lightcake_fast.search("family:20", out=tmp_path, vary=vary)
