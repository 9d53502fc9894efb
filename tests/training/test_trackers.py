"""Callbacks for trackers: files of TensorBoard, and offline clients of MLflow and W&B."""

import csv
import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import lightcake_fast
from lightcake_fast import cli, export, trackers
from lightcake_fast.errors import InputError
from lightcake_fast.inference.result import History, TrainingResult

SMALL: dict[str, Any] = {"dim": 6, "layers": 1, "batch_size": 64, "epochs": 2, "backend": "reference"}
RECORD = {"epoch": 3, "loss": 0.5, "valid": {"all": {"mrr": 0.25, "mr": None}}, "seconds": 2.0}
FIGURES = {"loss": 0.5, "valid/all/mrr": 0.25, "seconds": 2.0}  # without a metric that is None


def trained(*callbacks: Callable[[dict[str, Any]], object], **settings: Any) -> TrainingResult:
    return lightcake_fast.train("family:60", callbacks=callbacks, quiet=True, **{**SMALL, **settings})


def test_tensorboard_has_each_epoch(
    tmp_path: Path, peer: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = peer("tensorboard.backend.event_processing.event_accumulator")
    monkeypatch.setenv("HOME", str(tmp_path))
    result = trained(trackers.to_tensorboard("~/logs"))
    events = reader.EventAccumulator(str(tmp_path / "logs")).Reload()
    for name in ("loss", "valid/all/mrr", "seconds"):
        found = {event.step: event.value for event in events.Scalars(name)}
        wanted = {record["epoch"]: trackers.figures(record)[name] for record in result.history}
        assert found == pytest.approx(wanted, rel=1e-6)  # TensorBoard stores float32


@pytest.mark.full
def test_mlflow_has_each_epoch(tmp_path: Path, peer: Callable[[str], Any], monkeypatch: Any) -> None:
    mlflow = peer("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a database needs more than mlflow-skinny
    mlflow.set_tracking_uri((tmp_path / "store").as_uri())
    with mlflow.start_run() as run:
        result = trained(trackers.to_mlflow())
    found = mlflow.MlflowClient().get_metric_history(run.info.run_id, "valid/all/mrr")
    assert {metric.step: metric.value for metric in found} == {
        record["epoch"]: record["valid"]["all"]["mrr"] for record in result.history
    }


@pytest.mark.full
def test_wandb_has_each_epoch(tmp_path: Path, peer: Callable[[str], Any], monkeypatch: Any) -> None:
    wandb = peer("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    callback = trackers.to_wandb(project="tests", mode="offline", dir=str(tmp_path))
    result = trained(callback)
    summary = wandb.run.summary
    last = trackers.figures(result.history[-1])
    assert {name: summary[name] for name in last} == last
    wandb.finish()
    assert list(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))


def test_tracker_clients_get_the_right_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def log(values: dict[str, float], *, step: int, commit: bool = True) -> None:
        assert commit  # otherwise W&B shows the last epoch only at the end of the run
        calls.append((values, step))

    def init(**options: Any) -> SimpleNamespace:
        calls.append(options)
        return SimpleNamespace(log=log)

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(log_metrics=log))
    trackers.to_wandb(project="films")(RECORD)
    trackers.to_mlflow()(RECORD)
    assert calls == [{"project": "films"}, (FIGURES, 3), (FIGURES, 3)]


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: trackers.to_tensorboard("x"), "tensorboard"),
        (trackers.to_wandb, "wandb"),
        (trackers.to_mlflow, "mlflow"),
    ],
)
def test_missing_tracker_is_reported(
    make: Callable[[], object], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trackers, "import_module", lambda module: importlib.import_module("no_such_module"))
    with pytest.raises(
        InputError,
        match=rf"^{name}: expected an installed package, got .*: pip install 'lightcake_fast\[{name}\]'$",
    ):
        make()


def test_epochs_are_exported_as_csv(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = trained(out=str(tmp_path / "run"))
    assert cli.run(export.main, [str(tmp_path / "run"), "--history", str(tmp_path / "epochs.csv")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'epochs.csv'}: 2 epochs\n"
    with (tmp_path / "epochs.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for row, record in zip(rows, result.history, strict=True):
        assert int(row["epoch"]) == record["epoch"]
        assert float(row["valid_all_mrr"]) == record["valid"]["all"]["mrr"]
        assert set(row) == {name for name, _ in trackers.flat(record, "_")}
    result.history.to_csv(tmp_path / "again.csv")
    assert (tmp_path / "again.csv").read_bytes() == (tmp_path / "epochs.csv").read_bytes()
    assert History.read(tmp_path / "run") == json.loads(json.dumps(result.history))


def test_unwritable_export_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained(out=str(tmp_path / "run"))
    for flags, message in (
        ([], "expected --to or --history, got neither"),
        (["--history", str(tmp_path)], "expected a new file or folder, got an existing one"),
    ):
        assert cli.run(export.main, [str(tmp_path / "run"), *flags]) == 2
        assert message in capsys.readouterr().err
    (tmp_path / "run" / "metrics.jsonl").write_text("{")
    assert cli.run(export.main, [str(tmp_path / "run"), "--history", str(tmp_path / "x.csv")]) == 2
    assert "metrics.jsonl: expected JSON lines, got a damaged file (not JSON" in capsys.readouterr().err
