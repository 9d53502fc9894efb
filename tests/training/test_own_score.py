"""User-defined score with `--score MODULE:NAME`: train, resume and predict. The code runs only if named."""

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lightcake_fast
from lightcake_fast import evaluate, predict
from lightcake_fast.errors import InputError
from lightcake_fast.kernels.scores import SCORES as BLOCKS
from lightcake_fast.reference.scores import SCORES
from lightcake_fast.train import main as train
from tests.support.training_runs import assert_equal_runs, resume, run

pytestmark = pytest.mark.usefixtures("registry")
CODE = """
import torch
from lightcake_fast import Score

print("code of mine ran")


def turned(e_h, e_r):
    (real, imaginary), angle = e_h.chunk(2, -1), e_r.chunk(2, -1)[0]
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([real * cos - imaginary * sin, real * sin + imaginary * cos], -1)


TURN = Score(
    psi=lambda e_h, e_r, e_t: -(turned(e_h, e_r) - e_t).square().sum(-1),
    phi_ent=lambda e_r, e_t: turned(e_t, -e_r),
    phi_rel=lambda e_h, e_t: e_t - e_h,
    columns=2,
)
"""
FLAGS = ("--backend", "auto", "--score", "turns_of_mine:TURN")


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change to a folder with the user's module."""
    (tmp_path / "turns_of_mine.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])


def forget() -> None:
    """Forget the module and the score, as in a new process."""
    sys.modules.pop("turns_of_mine", None)
    for scores in (SCORES, BLOCKS):
        scores.pop("turns_of_mine:TURN", None)


def test_score_trains_resumes_predicts_and_explains(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(Path("whole"), *FLAGS, "--epochs", "3") == 0
    assert json.loads(Path("whole/config.json").read_text())["score"] == "turns_of_mine:TURN"
    assert run(Path("stopped"), *FLAGS, "--epochs", "2") == 0
    forget()
    assert resume(Path("stopped"), *FLAGS[2:], "--epochs", "3") == 0
    assert_equal_runs(Path("stopped"), Path("whole"))
    forget()
    pair = ("--head", "Priya Novák 10", "--tail", "Dmitri Novák 21")
    capsys.readouterr()
    predict.main(["whole", *pair, "--explain", *FLAGS[2:]])
    assert "share" in capsys.readouterr().out
    forget()
    evaluate.main(["whole", *FLAGS[2:]])
    assert "MRR" in capsys.readouterr().out


def test_score_from_run_folder_runs_no_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(Path("theirs"), *FLAGS, "--epochs", "1") == 0
    forget()
    capsys.readouterr()
    message = r"score: .* got 'turns_of_mine:TURN', which is code: .* give --score turns_of_mine:TURN"
    with pytest.raises(InputError, match=message):
        lightcake_fast.load("theirs")
    with pytest.raises(InputError, match=message):
        resume(Path("theirs"), "--epochs", "2")
    with pytest.raises(InputError, match=message):
        predict.main(["theirs", "--head", "a", "--tail", "b"])
    assert "turns_of_mine" not in sys.modules
    assert "code of mine ran" not in capsys.readouterr().out


def test_python_call_imports_named_score() -> None:
    size: dict[str, Any] = {"dim": 6, "layers": 1, "epochs": 1, "quiet": True}
    result = lightcake_fast.train("family:60", score="turns_of_mine:TURN", **size)
    assert result.summary["model"] == "lightcake-turns_of_mine:TURN"
    assert "turns_of_mine:TURN" in SCORES


def test_commands_that_a_search_prints_work(
    peer: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    peer("optuna")
    search = importlib.import_module("lightcake_fast.search")
    argv = ["--dataset", "family:20", "--dim", "6", "--layers", "1", "--vary", "lr=.01", "--sampler", "grid"]
    search.main([*argv, "--score", "turns_of_mine:TURN", "--epochs", "1", "--out", "found"])
    typed = [line.split(" -m lightcake_fast.train ")[1] for line in capsys.readouterr().out.splitlines()[-2:]]
    for flags in typed:
        forget()
        assert train([*flags.split(), "--quiet"]) == 0
        assert "MRR" in capsys.readouterr().out


def test_run_cannot_change_its_score() -> None:
    assert run(Path("mine"), *FLAGS, "--epochs", "1") == 0
    with pytest.raises(InputError, match=r"--resume: expected only .*, got --score"):
        resume(Path("mine"), "--score", "distmult", "--epochs", "2")


def test_missing_module_is_rejected() -> None:
    with pytest.raises(
        InputError, match=r"^score: expected MODULE:NAME that can be imported, got 'nothing:AT_ALL'"
    ):
        run(Path("none"), "--score", "nothing:AT_ALL")
    assert not Path("none").exists()
    with pytest.raises(InputError, match="score: expected one of distmult, transe, complex"):
        run(Path("none"), "--score", "rescal")
