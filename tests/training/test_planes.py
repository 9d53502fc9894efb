"""`--score transh`: train, resume and predict. Without layers it is the baseline `--model transh`."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from lightcake_fast import load, predict
from lightcake_fast.errors import InputError
from lightcake_fast.models import LightCAKE
from lightcake_fast.train import main as train
from lightcake_fast.training.presets import preset_settings
from tests.support.comparison import assert_bitwise_equal
from tests.support.training_runs import assert_equal_runs, metrics, resume, run

FLAGS = ("--score", "transh")
PAIR = ("--head", "Priya Novák 10", "--tail", "Dmitri Novák 21")


def test_score_trains_resumes_predicts_and_explains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert run(whole, *FLAGS, "--lr", "0.02", "--epochs", "4") == 0
    losses = [record["loss"] for record in metrics(whole)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.9 * losses[0]
    assert run(stopped, *FLAGS, "--lr", "0.02", "--epochs", "2") == 0
    assert resume(stopped, "--epochs", "4") == 0
    assert_equal_runs(stopped, whole)
    trained = load(whole)
    results = json.loads((whole / "results.json").read_text())
    assert trained.evaluate("test").to_dict() == results["test"]
    assert results["model"] == "lightcake-transh"
    found = trained.embeddings()
    model = trained.model
    assert isinstance(model, LightCAKE)
    assert found.relations.shape == model.relations.shape == found.others["normals"].shape
    capsys.readouterr()
    predict.main([str(whole), *PAIR, "--explain"])
    shown = capsys.readouterr().out
    assert "share" in shown
    assert "profile of head" in shown


def test_score_without_layers_is_the_baseline(tmp_path: Path) -> None:
    flags = ["--dataset", "family:60", "--dim", "6", "--batch-size", "64", "--epochs", "2", "--quiet"]
    flags += ["--profile", "score", "--links", "--input-dropout", "0.2", "--row-dropout", "0.1"]
    ours, baseline = tmp_path / "ours", tmp_path / "baseline"
    assert train([*flags, *FLAGS, "--layers", "0", "--out", str(ours)]) == 0
    assert train([*flags, "--model", "transh", "--out", str(baseline)]) == 0
    assert metrics(ours) == metrics(baseline)
    weights = load_file(baseline / "best.safetensors")
    assert "normals" in weights
    for name, weight in load_file(ours / "best.safetensors").items():
        assert_bitwise_equal(weight, weights.pop(name), name=name)
    assert not weights


def test_fused_back_end_is_rejected_before_folder_is_made(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    message = "^backend: expected 'numba' or 'reference' for score 'transh', got 'triton'$"
    with pytest.raises(InputError, match=message):
        run(folder, *FLAGS, "--backend", "triton")
    assert not folder.exists()
    assert run(folder, *FLAGS, "--epochs", "1") == 0
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(InputError, match=message):
        resume(folder, "--epochs", "2", "--backend", "triton")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("dataset", ["family", "ddb14", "wn18rr", "my/folder"])
def test_transh_uses_presets_of_transe(dataset: str) -> None:
    ours, wanted = (preset_settings("best", dataset, "lightcake", score) for score in ("transh", "transe"))
    assert ours == wanted
