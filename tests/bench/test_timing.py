"""Training speed of a run's model, with a clock that only the timed work advances."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.reproduce import timing
from lightcake_fast import cli
from lightcake_fast.models import LightCAKE
from lightcake_fast.train import main as train
from lightcake_fast.training.experiment import Experiment


@pytest.mark.parametrize(("model", "layer_seconds"), [("lightcake", 1.5), ("distmult", None)])
def test_timing_does_not_change_a_run(
    model: str, layer_seconds: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step takes 4 seconds, two layers take 3."""
    flags = ["--dataset", "family:60", "--dim", "4", "--epochs", "1", "--batch-size", "32", "--model", model]
    folder = tmp_path / "run"
    assert cli.run(train, [*flags, "--out", str(folder)]) == 0
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    now, advance, refine = [0.0], Experiment.advance, LightCAKE.refine

    def advanced(*arguments: Any) -> None:
        start = now[0]
        advance(*arguments)
        now[0] = start + 4

    def refined(*arguments: Any, **options: Any) -> Any:
        now[0] += 3
        return refine(*arguments, **options)

    monkeypatch.setattr(Experiment, "advance", advanced)
    monkeypatch.setattr(LightCAKE, "refine", refined)
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    assert timing.time_training(folder) == timing.Timing(32 / 4, layer_seconds)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
