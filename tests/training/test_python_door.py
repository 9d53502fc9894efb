"""`lightcake_fast.train` in Python, and the command's additional features: several seeds, settings files."""

import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lightcake_fast
from lightcake_fast import cli
from lightcake_fast.data import KnowledgeGraph, load_dataset, read_folder, write_folder
from lightcake_fast.errors import InputError
from lightcake_fast.inference.result import TrainingResult
from lightcake_fast.train import main
from lightcake_fast.training.experiment import Experiment
from lightcake_fast.training.loop import Trainer
from tests.support.comparison import assert_bitwise_equal
from tests.support.surroundings import SURROUNDINGS
from tests.support.training_runs import assert_equal_runs, without_times

SIZES = {"dim": 6, "layers": 1, "batch_size": 64, "epochs": 2, "backend": "reference"}
SMALL: dict[str, Any] = {**SIZES, "quiet": True}
FLAGS = [word for name, v in SIZES.items() for word in ("--" + name.replace("_", "-"), str(v))] + ["--quiet"]


@pytest.fixture(scope="module")
def result() -> TrainingResult:
    return lightcake_fast.train("family:60", **SMALL)


def test_python_call_trains_like_the_command(result: TrainingResult, tmp_path: Path) -> None:
    assert main([*FLAGS, "--dataset", "family:60", "--out", str(tmp_path / "run")]) == 0
    written = json.loads((tmp_path / "run" / "results.json").read_text())
    assert without_times(result.summary) == without_times(written)
    assert result.metrics.to_dict() == written["test"]
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [without_times(record) for record in result.history] == [
        without_times(json.loads(line)) for line in lines
    ]
    again = lightcake_fast.load(tmp_path / "run").model.state_dict()
    for name, tensor in result.model.model.state_dict().items():
        assert torch.equal(tensor, again[name])


def test_result_has_metrics_history_and_model(result: TrainingResult) -> None:
    assert result.run is None
    assert result.model.evaluate("test") == result.metrics
    frame = result.history.to_pandas()
    assert frame["epoch"].tolist() == [1, 2]
    assert frame["valid_all_mrr"].tolist() == [record["valid"]["all"]["mrr"] for record in result.history]
    pytest.importorskip("matplotlib")
    loss, mrr = result.plot().axes
    for axes, column in ((loss, "loss"), (mrr, "valid_all_mrr")):
        assert np.array_equal(axes.lines[0].get_ydata(), frame[column])
    found = f"{result.metrics.all.mrr:.4f}, epoch {result.summary['best_epoch']} of 2)"
    assert repr(result) == f"TrainingResult(lightcake-distmult on family: test MRR {found}"


def test_notebook_shows_curves(result: TrainingResult, peer: Callable[[str], Any]) -> None:
    pytest.importorskip("matplotlib")
    formatters = peer("IPython.core.formatters")
    figure = result.plot()
    shown, _ = formatters.DisplayFormatter().format(figure)
    assert shown["image/png"].startswith(b"\x89PNG")


def test_curves_have_ticks_at_integer_epochs(result: TrainingResult) -> None:
    pytest.importorskip("matplotlib")
    for axes in result.plot().axes:
        assert [tick for tick in axes.get_xticks() if 1 <= tick <= 2] == [1, 2]


def test_quiet_prints_nothing_and_keeps_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    lightcake_fast.train("family:60", **{**SMALL, "epochs": 1})
    assert list(tmp_path.glob("lightcake*")) == list(tmp_path.glob("runs")) == []
    assert capfd.readouterr() == ("", "")
    lightcake_fast.train("family:60", **{**SMALL, "epochs": 1, "quiet": False})
    shown = capfd.readouterr().out
    assert "epoch 1/1" in shown
    assert str(tmp_path) not in shown
    assert "--resume" not in shown


def test_callbacks_get_each_epoch_and_can_end_training(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []
    result = lightcake_fast.train("family:60", callbacks=[seen.append], out=tmp_path / "run", **SMALL)
    assert seen == list(result.history)
    assert result.run == tmp_path / "run"

    def stop(record: dict[str, Any]) -> None:
        raise RuntimeError(f"enough after {record['epoch']}")

    with pytest.raises(RuntimeError, match="enough after 3"):
        lightcake_fast.train(resume=tmp_path / "run", epochs=4, patience=9, quiet=True, callbacks=stop)
    result = lightcake_fast.train(resume=tmp_path / "run", quiet=True, callbacks=[seen.append])
    assert [record["epoch"] for record in seen] == [1, 2, 4]
    assert len(result.history) == 4


def hand_made() -> KnowledgeGraph:
    """Make a graph in memory, with ids that no reader would choose and an entity without triples."""
    data = load_dataset("family:60")
    order = np.random.default_rng(0).permutation(data.num_entities)
    names = np.array([*data.entities, "nobody"])
    train, valid, test = (
        np.stack([order[rows[:, 0]], rows[:, 1], order[rows[:, 2]]], 1)
        for rows in (data.train, data.valid, data.test)
    )
    entities = (*names[:-1][np.argsort(order)].tolist(), "nobody")
    return KnowledgeGraph("my graph/1", entities, data.relations, train, valid, test)


def test_graph_from_memory_is_saved_in_run_folder(tmp_path: Path) -> None:
    data = hand_made()
    result = lightcake_fast.train(data, out=tmp_path / "run", **SMALL)
    opened = lightcake_fast.load(tmp_path / "run")
    assert opened.data.fingerprint == data.fingerprint
    assert opened.evaluate("test") == result.metrics
    assert main(["--resume", str(tmp_path / "run"), "--epochs", "3", "--quiet"]) == 0
    assert lightcake_fast.train(data, resume=tmp_path / "run", quiet=True).summary["epochs"] == 3
    passing = lightcake_fast.train(data, **SMALL)
    assert passing.metrics == result.metrics
    assert passing.summary["dataset"] == "my graph/1"


def test_written_folder_is_read_unchanged(tmp_path: Path) -> None:
    data = hand_made()
    write_folder(data, tmp_path / "data")
    assert read_folder(tmp_path / "data").fingerprint == data.fingerprint
    rows = np.array([[0, 0, 1]])
    broken = KnowledgeGraph("x", ("a\tb", "c"), ("r",), rows, rows, rows)
    with pytest.raises(InputError, match=r"entities: expected names .*, got the name 'a\\tb': replace"):
        write_folder(broken, tmp_path / "broken")


def test_triples_from_file_list_or_frame_train_resume_and_predict(tmp_path: Path) -> None:
    """A file, a list and a DataFrame give the same split."""
    people = load_dataset("family:60")
    rows = [(people.entities[h], people.relations[r], people.entities[t]) for h, r, t in people.train]
    path = tmp_path / "people.csv"
    path.write_text("".join(",".join(row) + "\n" for row in rows))
    flags = [*FLAGS, "--dataset", str(path), "--split", ".7,.2,.1"]
    assert main([*flags, "--out", str(tmp_path / "run")]) == 0
    listed = lightcake_fast.train(rows, split=(0.7, 0.2, 0.1), **SMALL)
    assert listed.metrics == lightcake_fast.load(tmp_path / "run").evaluate("test")
    frame = pytest.importorskip("pandas").DataFrame(rows, columns=["head", "relation", "tail"])
    assert lightcake_fast.train(frame, split=(0.7, 0.2, 0.1), **SMALL).metrics == listed.metrics
    assert main(["--resume", str(tmp_path / "run"), "--epochs", "3", "--quiet"]) == 0
    path.unlink()
    with pytest.raises(InputError, match=r"data set at .*people\.csv, got nothing there"):
        lightcake_fast.load(tmp_path / "run")


def test_wrong_calls_raise_clear_errors(tmp_path: Path) -> None:
    with pytest.raises(
        TypeError, match=r"train: expected known settings, got 'epoch' \(did you mean epochs\?\)"
    ):
        lightcake_fast.train("family:60", epoch=3)
    with pytest.raises(TypeError, match=r"triples: expected an array, list or DataFrame .*, got dict"):
        lightcake_fast.train({})
    wrong: Any
    for wrong in (3, [3], [print, None]):
        with pytest.raises(TypeError, match=r"callbacks: expected a function or several, got "):
            lightcake_fast.train("family:60", callbacks=wrong, **SMALL)
    with pytest.raises(InputError, match="lr: expected a number above 0, got 'fast'"):
        lightcake_fast.train("family:60", lr="fast")
    rows = np.array([[0, 0, 1]])
    empty = KnowledgeGraph("x", ("a", "b"), ("r",), rows, rows[:0], rows)
    broken = KnowledgeGraph("x", ("a\n", "b"), ("r",), rows, rows, rows)
    with pytest.raises(InputError, match="expected names without tabs, line breaks"):
        lightcake_fast.train(broken, out=tmp_path / "run", **SMALL)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InputError, match="x: expected at least one triple in the valid split"):
        lightcake_fast.train(empty, **SMALL)
    wrong = (1, "b")
    with pytest.raises(TypeError, match="entities: expected strings, got the name 1"):
        lightcake_fast.train(KnowledgeGraph("x", wrong, ("r",), rows, rows, rows), **SMALL)
    wrong = [[0, 0, 1]]
    with pytest.raises(TypeError, match=r"valid: expected an int32 array \[T, 3\], got list"):
        KnowledgeGraph("x", ("a", "b"), ("r",), rows, wrong, rows)


@pytest.mark.parametrize("name", SURROUNDINGS)
def test_caller_settings_do_not_change_training(name: str, result: TrainingResult) -> None:
    def state() -> tuple[Any, ...]:
        return torch.get_default_dtype(), torch.get_default_device(), torch.is_autocast_enabled("cpu")

    with SURROUNDINGS[name]():
        before = state()
        again = lightcake_fast.train("family:60", **SMALL)
        assert state() == before
    assert again.metrics == result.metrics
    for weight, expected in zip(again.model.model.parameters(), result.model.model.parameters(), strict=True):
        assert_bitwise_equal(weight, expected)


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("import lightcake_fast.train", marks=pytest.mark.full),
        "from lightcake_fast.train import main",
        pytest.param(
            "import importlib; importlib.import_module('lightcake_fast.train')", marks=pytest.mark.full
        ),
        pytest.param("from lightcake_fast import train", marks=pytest.mark.full),
        "import lightcake_fast.train as train; assert train is lightcake_fast.train",
    ],
)
def test_train_is_the_function_after_any_import(code: str) -> None:
    check = "import lightcake_fast\nassert lightcake_fast.train.__name__ == 'train', lightcake_fast.train"
    for order in (f"{code}\n{check}", f"{check}\n{code}\n{check}"):
        text = order if "as train" not in code else f"import lightcake_fast\n{order}"
        subprocess.run([sys.executable, "-c", text], check=True)
    assert importlib.import_module("lightcake_fast.train").main is main


def test_several_seeds_give_mean_and_deviation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FLAGS, "--dataset", "family:60", "--seeds", "3,5", "--out", str(tmp_path / "runs")]) == 0
    shown = capsys.readouterr().out
    values = []
    for seed in (3, 5):
        folder = tmp_path / "runs" / f"seed-{seed}"
        assert json.loads((folder / "config.json").read_text())["seed"] == seed
        values.append(json.loads((folder / "results.json").read_text())["test"]["all"]["mrr"])
    assert "family, lightcake-distmult: mean and deviation of 2 seeds" in shown
    assert f"{np.mean(values):.4f} ± {np.std(values, ddof=1):.4f}" in shown


def test_settings_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('dataset = "family:60"\nmodel = "transe"\ndim = 4\nbatch-size = 64\nepochs = 1\n')
    assert main(["--config", str(file), "--dim", "5", "--quiet", "--out", str(tmp_path / "a")]) == 0
    first = json.loads((tmp_path / "a" / "config.json").read_text())
    assert {"dataset": "family:60", "model": "transe", "dim": 5, "batch_size": 64}.items() <= first.items()
    again = ["--config", str(tmp_path / "a" / "config.json"), "--quiet", "--out", str(tmp_path / "b")]
    assert main(again) == 0
    assert json.loads((tmp_path / "b" / "config.json").read_text()) == first


@pytest.mark.parametrize(
    ("text", "flags", "message"),
    [
        ("dims = 4", [], r"settings.toml: expected names of settings, got 'dims' (did you mean dim?)"),
        ("dim = ", [], "settings.toml: "),
        ("dim = 'wide'", [], "dim: expected an integer of at least 1, got 'wide'"),
        ("model = 'transe'\nlayers = 2", [], "layers: expected model lightcake or"),
        ("", ["--resume", "x"], "--config: expected a new run, got --resume"),
        ("", ["--seeds", "1,x"], "argument --seeds: expected different integers, as in 0,1,2, got '1,x'"),
        ("", ["--seeds", "1,1"], "argument --seeds: expected different integers, as in 0,1,2, got '1,1'"),
        ("", ["--seeds", "1,2", "--seed", "3"], "--seeds: expected no --seed, got both"),
    ],
)
def test_wrong_settings_files_and_seeds_are_rejected(
    text: str, flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(text)
    assert cli.run(main, ["--config", str(file), "--out", str(tmp_path / "run"), *flags]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_experiment_trains_and_ranks_like_the_command(result: TrainingResult) -> None:
    experiment = Experiment.of(dataset="family:60", **SMALL)
    for number, record in enumerate(result.history):
        experiment.step.loss_sum.zero_()
        for batch in experiment.epoch(number):
            experiment.advance(batch)
        assert experiment.step.loss_sum.item() / len(experiment.data.train) == record["loss"]
        assert experiment.evaluate("valid").to_dict() == record["valid"]
    assert experiment.parameters == result.summary["parameters"]


def test_python_types_are_accepted_as_settings(tmp_path: Path, result: TrainingResult) -> None:
    numbers = {**SMALL, "dim": np.int64(6), "lr": np.float64(0.005), "out": None, "callbacks": None}
    found = lightcake_fast.train("family:60", **numbers)
    assert found.run is None
    assert found.metrics == lightcake_fast.train("family:60", **SMALL, lr=0.005).metrics
    with torch.no_grad():
        assert lightcake_fast.train("family:60", **SMALL).metrics == result.metrics
    with torch.inference_mode():
        assert lightcake_fast.train("family:60", **SMALL).metrics == result.metrics
    data = load_dataset("family:60")
    names = np.array(data.entities)[data.train], np.array(data.relations)
    lines = [f"{h}\t{names[1][r]}\t{t}\n" for (h, _, t), r in zip(names[0], data.train[:, 1], strict=True)]
    (tmp_path / "all.tsv").write_text("".join(lines))
    shares = lightcake_fast.train(str(tmp_path / "all.tsv"), split=(0.7, 0.2, 0.1), **SMALL)
    assert shares.metrics == lightcake_fast.train(tmp_path / "all.tsv", split=".7,.2,.1", **SMALL).metrics
    rows = [tuple(line.rstrip("\n").split("\t")) for line in lines]
    listed = lightcake_fast.train(rows, split=np.array((0.7, 0.2, 0.1)), **SMALL)
    assert listed.metrics == shares.metrics
    with pytest.raises(InputError, match=r"split: expected text, got 0\.6"):
        lightcake_fast.train(tmp_path / "all.tsv", split=0.6, **SMALL)
    for option in ({"split": (0.6, 0.2, 0.2)}, {"strip": True}):
        with pytest.raises(InputError, match="expected triples, got a KnowledgeGraph"):
            lightcake_fast.train(data, **option, **SMALL)
    with pytest.raises(InputError, match="out: expected nonempty text, got ''"):
        lightcake_fast.train("family:60", out="", **SMALL)


def test_callback_can_change_its_record(tmp_path: Path) -> None:
    def spoil(record: dict[str, Any]) -> None:
        record["valid"].clear()

    result = lightcake_fast.train("family:60", callbacks=spoil, out=tmp_path / "run", **SMALL)
    assert all(record["valid"]["all"]["mrr"] for record in result.history)


def test_run_with_saved_data_can_be_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = lightcake_fast.train(hand_made(), out=tmp_path / "run", **SMALL)
    assert lightcake_fast.load(tmp_path / "run").data.name == "my-graph-1"  # name of the data folder
    (tmp_path / "run").rename(tmp_path / "moved")
    monkeypatch.chdir(tmp_path)
    assert lightcake_fast.load("moved").data.name == "my-graph-1"
    assert lightcake_fast.load(tmp_path / "moved").evaluate("test") == result.metrics
    summary = lightcake_fast.train(resume=tmp_path / "moved", epochs=3, quiet=True).summary
    assert (summary["epochs"], summary["dataset"]) == (3, "my-graph-1")


def test_run_with_missing_data_rejects_other_data(tmp_path: Path) -> None:
    data = load_dataset("family:60")
    write_folder(data, tmp_path / "far" / "data")
    lightcake_fast.train(tmp_path / "far" / "data", out=tmp_path / "run", **SMALL)
    (tmp_path / "far" / "data").rename(tmp_path / "far" / "elsewhere")
    write_folder(load_dataset("family:61"), tmp_path / "data")
    with pytest.raises(InputError, match=r"data set at .*/far/data, got nothing there"):
        lightcake_fast.load(tmp_path / "run")


def test_data_name_like_a_file_name_is_accepted(tmp_path: Path) -> None:
    data = load_dataset("family:60")
    first = data.train[0, 0]
    names = [name if id != first else "\ufeff" + name for id, name in enumerate(data.entities)]
    marked = KnowledgeGraph("x", tuple(names), data.relations, data.train, data.valid, data.test)
    result = lightcake_fast.train(marked, out=tmp_path / "run", **SMALL)
    assert lightcake_fast.load(tmp_path / "run").data.fingerprint == marked.fingerprint
    assert lightcake_fast.load(tmp_path / "run").evaluate("test") == result.metrics


def test_several_seeds_resume_after_a_stop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(trainer: Any, split: str) -> Any:
        if list(tmp_path.glob("cut/seed-1/best.safetensors")):
            raise KeyboardInterrupt
        return evaluate(trainer, split)

    argv = [*FLAGS, "--dataset", "family:60", "--epochs", "2", "--seeds", "0,1,2", "--out"]
    assert cli.run(main, [*argv, str(tmp_path / "whole")]) == 0
    shown = capsys.readouterr().out.splitlines()
    evaluate = Trainer.evaluate
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "evaluate", stop)
        assert cli.run(main, [*argv, str(tmp_path / "cut")]) == 130
    begun = {path.name: (path / "results.json").exists() for path in (tmp_path / "cut").iterdir()}
    assert begun == {"seed-0": True, "seed-1": False}
    finished = (tmp_path / "cut" / "seed-0" / "results.json").stat().st_mtime_ns
    capsys.readouterr()
    assert cli.run(main, [*argv, str(tmp_path / "cut")]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == shown[-2:]
    assert (tmp_path / "cut" / "seed-0" / "results.json").stat().st_mtime_ns == finished
    for seed in range(3):
        assert_equal_runs(tmp_path / "cut" / f"seed-{seed}", tmp_path / "whole" / f"seed-{seed}")


def test_several_seeds_resume_only_with_the_same_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [*FLAGS, "--dataset", "family:60", "--out"]
    assert cli.run(main, [*argv, str(tmp_path / "seed-1"), "--seed", "1"]) == 0
    assert cli.run(main, [*argv, str(tmp_path), "--seeds", "0,1", "--lr", "0.5"]) == 2
    assert "seed-1: expected lr 0.01 of its run, got 0.5: use this value or another folder" in (
        capsys.readouterr().err
    )
    assert [path.name for path in tmp_path.iterdir()] == ["seed-1"]
    assert cli.run(main, [*argv, str(tmp_path), "--seeds", "0,1", "--epochs", "1"]) == 2
    assert "expected epochs at least 2 of its run, got 1" in capsys.readouterr().err
    assert cli.run(main, [*argv, str(tmp_path / "seed-0"), "--epochs", "1"]) == 0  # the run could resume
    assert cli.run(main, [*argv, str(tmp_path), "--seeds", "0,1", "--lr", "0.01", "--dim", "7"]) == 2
    (tmp_path / "seed-1" / "config.json").write_text("{")
    capsys.readouterr()
    assert cli.run(main, [*argv, str(tmp_path), "--seeds", "0,1"]) == 2
    assert f"{tmp_path}/seed-1/config.json: " in capsys.readouterr().err
    assert len((tmp_path / "seed-0" / "metrics.jsonl").read_text().splitlines()) == 1
    assert cli.run(main, [*FLAGS, "--seeds", "01,1"]) == 2
