"""Errors that end a trial, and errors that only stop the search: full disk, memory, damaged files, bugs."""

import errno
import importlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lightcake_fast
from lightcake_fast import cli
from lightcake_fast.data import load_dataset, read_folder, write_folder
from lightcake_fast.errors import DivergedError, InputError
from tests.training.test_search import FLAGS, SMALL, epochs

LITTLE = ["--dataset", "family:20", *FLAGS[2:]]


@pytest.fixture(scope="module")
def module(peer: Callable[[str], Any]) -> Any:
    """The module of the command. `lightcake_fast.search` is the function."""
    peer("optuna")
    return importlib.import_module("lightcake_fast.search")


@pytest.mark.parametrize("sampler", ["tpe", "grid"])
def test_full_disk_does_not_end_a_trial(
    module: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str], sampler: str
) -> None:
    argv = [*LITTLE, "--out", str(tmp_path), "--vary", "dim=4,6", "--trials", "2", "--sampler", sampler]
    fsync, written = os.fsync, list[str]()

    def full(file: int) -> None:
        written.append(Path(f"/proc/self/fd/{file}").readlink().name)
        if written.count("last.safetensors") > 1:  # the checkpoint of the second epoch, after its metrics
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(file)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert cli.run(module.main, argv) == 1
    printed = capfd.readouterr()
    assert "trial-000 of 2: stopped, repeat the command to resume" in printed.out
    assert printed.err.count("\n") == 1
    assert "last.safetensors: cannot be written (No space left on device)" in printed.err
    assert cli.run(module.main, argv) == 0
    printed = capfd.readouterr()
    assert printed.err == ""
    assert "the best of 2 trials" in printed.out
    assert sorted(line.split(":")[0] for line in printed.out.splitlines() if line.startswith("trial-")) == [
        f"trial-00{number} of 2" for number in range(2)
    ]
    for number in range(2):
        assert len(epochs(tmp_path / f"trial-00{number}")) == 2


def test_truncated_journal_is_repaired(module: Any, tmp_path: Path) -> None:
    settings = {**SMALL, "vary": {"dim": [4, 6]}, "sampler": "grid", "quiet": True}
    lightcake_fast.search("family:20", out=tmp_path, trials=1, **settings)
    with (tmp_path / "study.journal").open("a") as file:
        file.write('{"op_code": 4, "tri')
    study = lightcake_fast.search("family:20", out=tmp_path, **settings)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "COMPLETE"]


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), OSError("gone"), InputError("damaged"), KeyError("bug")]
)
def test_errors_not_caused_by_settings_do_not_end_a_trial(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(*more: Any, **options: Any) -> float:
        raise error

    settings = {**SMALL, "vary": {"dim": [4]}, "trials": 1, "quiet": True}
    with monkeypatch.context() as patch:
        patch.setattr(module, "train_to_end", fail)
        for _ in range(2):
            with pytest.raises(type(error)):
                lightcake_fast.search("family:20", out=tmp_path, **settings)
    study = lightcake_fast.search("family:20", out=tmp_path, **settings)
    assert [trial.state.name for trial in study.trials] == ["FAIL", "FAIL", "COMPLETE"]
    assert [path.name for path in tmp_path.glob("trial-*")] == ["trial-000"]


def test_trial_with_damaged_folder_stops_the_search(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(config: Any, data: Any, run: Any, *more: Any, **options: Any) -> float:
        (run.path / "metrics.jsonl").write_text("{")
        raise KeyboardInterrupt

    settings = {**SMALL, "vary": {"dim": [4]}, "trials": 1, "quiet": True}
    with monkeypatch.context() as patch:
        patch.setattr(module, "train_to_end", cut)
        with pytest.raises(KeyboardInterrupt):
            lightcake_fast.search("family:20", out=tmp_path, **settings)
    folder = tmp_path / "trial-000"
    for _ in range(2):
        with pytest.raises(InputError, match=rf"metrics.jsonl: expected .*: remove {folder} and repeat"):
            lightcake_fast.search("family:20", out=tmp_path, **settings)
    shutil.rmtree(folder)
    assert len(lightcake_fast.search("family:20", out=tmp_path, **settings).best_trials) == 1


def test_out_of_memory_prunes_or_stops(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def short(config: Any, *more: Any, **options: Any) -> float:
        if config.dim >= 8 or config.lr < 0.01:
            raise MemoryError("wanted 9 GiB at once")
        return 0.5

    settings: dict[str, Any] = {**SMALL, "sampler": "grid"}
    stops: list[dict[str, Any]] = [{"dim": [4], "lr": [0.02, 0.001]}, {"lr": [0.001]}]
    with monkeypatch.context() as patch:
        patch.setattr(module, "train_to_end", short)
        study = lightcake_fast.search("family:20", out=tmp_path / "a", vary={"dim": [4, 8]}, **settings)
        assert [trial.state.name for trial in study.trials] == ["COMPLETE", "PRUNED"]
        assert "trial-001 of 2: ended early: wanted 9 GiB at once" in capsys.readouterr().out
        with pytest.raises(
            InputError,
            match=r"expected a trial with an MRR, got none: trial-000 ended early: wanted 9 GiB at once",
        ):
            lightcake_fast.search("family:20", out=tmp_path / "b", vary={"dim": [8]}, **settings)
        # a larger trial has finished, or the tried settings do not change the memory
        for vary in stops:
            with pytest.raises(MemoryError, match="wanted 9 GiB at once"):
                lightcake_fast.search("family:20", out=tmp_path / str(len(vary)), vary=vary, **settings)
    study = lightcake_fast.search("family:20", out=tmp_path / "1", vary={"lr": [0.001]}, **settings)
    assert study.trials[-1].state.name == "COMPLETE"


def test_contradictory_settings_end_a_trial(module: Any, tmp_path: Path) -> None:
    settings = {**SMALL, "score": "complex", "sampler": "grid", "quiet": True}
    study = lightcake_fast.search("family:20", out=tmp_path, vary={"dim": [5, 6]}, **settings)
    assert [trial.state.name for trial in study.trials] == ["PRUNED", "COMPLETE"]


def test_late_diverged_trial_is_not_the_best(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverge(
        config: Any, data: Any, run: Any, reporter: Any, interrupt: Any, calls: Any, **options: Any
    ) -> float:
        calls[0]({"epoch": 1, "valid": {"all": {"mrr": 0.9}}})
        if config.dim == 4:
            raise DivergedError("training diverged in epoch 2")
        return 0.5

    monkeypatch.setattr(module, "train_to_end", diverge)
    settings = {**SMALL, "sampler": "grid", "quiet": True}
    with pytest.raises(InputError, match="training diverged in epoch 2"):
        lightcake_fast.search("family:20", out=tmp_path / "none", vary={"dim": [4]}, **settings)
    lightcake_fast.search("family:20", out=tmp_path / "one", vary={"dim": [4, 6]}, **settings)
    assert json.loads((tmp_path / "one" / "best.json").read_text())["dim"] == 6


@pytest.mark.parametrize("damage", ["empty", "a split is missing", "cut short"])
def test_damaged_data_from_memory_is_written_again(module: Any, tmp_path: Path, damage: str) -> None:
    graph = load_dataset("family:20")
    settings = {**SMALL, "vary": {"dim": [4, 6]}, "sampler": "grid", "quiet": True}
    kept = tmp_path / "data"
    if damage == "empty":
        kept.mkdir()
    else:
        lightcake_fast.search(graph, out=tmp_path, trials=1, **settings)
    if damage == "a split is missing":
        (kept / "valid.tsv").unlink()
    if damage == "cut short":
        lines = (kept / "train.tsv").read_text().splitlines(keepends=True)
        (kept / "train.tsv").write_text("".join(lines[:-3]))
    study = lightcake_fast.search(graph, out=tmp_path, **settings)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "COMPLETE"]
    assert read_folder(kept).fingerprint == graph.fingerprint


def test_output_and_count_of_trials(
    module: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = [*LITTLE, "--out", str(tmp_path), "--vary", "dim=4,6", "--trials", "3"]
    outcomes: Iterator[float | BaseException] = iter([0.5, KeyboardInterrupt(), 0.5, OSError("gone"), 0.5])

    def train_to_end(*more: Any, **options: Any) -> float:
        outcome = next(outcomes)
        if isinstance(outcome, float):
            return outcome
        raise outcome

    monkeypatch.setattr(module, "train_to_end", train_to_end)
    for code in (130, 2, 0):
        assert cli.run(module.main, argv) == code
    printed = capsys.readouterr().out
    assert "trial-002 of 3: validation MRR" in printed
    assert "trial-003" not in printed
    assert "the best of 3 trials" in printed
    assert cli.run(module.main, [*argv, "--quiet"]) == 0
    assert capsys.readouterr().out == ""


def test_data_folder_of_the_user_is_not_changed(module: Any, tmp_path: Path) -> None:
    graph = load_dataset("family:20")
    write_folder(load_dataset("family:21"), tmp_path / "data")
    before = {path.name: path.read_bytes() for path in (tmp_path / "data").iterdir()}
    settings = {**SMALL, "vary": {"dim": [4]}, "trials": 1, "quiet": True}
    with pytest.raises(InputError, match=r"data: expected data of the search, got other files"):
        lightcake_fast.search(graph, out=tmp_path, **settings)
    assert {path.name: path.read_bytes() for path in (tmp_path / "data").iterdir()} == before
    assert lightcake_fast.search(graph, out=tmp_path / "new", **settings).best_params == {"dim": 4}


def test_search_with_saved_data_can_be_moved(module: Any, tmp_path: Path) -> None:
    def cut(config: Any, data: Any, run: Any, *more: Any, **options: Any) -> float:
        train_to_end(config, data, run, *more, **options)
        raise KeyboardInterrupt

    graph, train_to_end = load_dataset("family:20"), module.train_to_end
    settings = {**SMALL, "vary": {"dim": [4, 6]}, "sampler": "grid", "quiet": True}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "train_to_end", cut)
        with pytest.raises(KeyboardInterrupt):
            lightcake_fast.search(graph, out=tmp_path / "before", **settings)
    (tmp_path / "before").rename(tmp_path / "after")
    study = lightcake_fast.search(graph, out=tmp_path / "after", **settings)
    assert [trial.state.name for trial in study.trials] == ["FAIL", "COMPLETE", "COMPLETE"]
    best = json.loads((tmp_path / "after" / "best.json").read_text())
    assert best["dataset"] == str(tmp_path / "after" / "data")
    (tmp_path / "after").rename(tmp_path / "again")
    write_folder(load_dataset("family:21"), tmp_path / "before" / "data")
    assert lightcake_fast.train(resume=tmp_path / "again" / "trial-000", quiet=True).metrics.all.mrr
    typed = lightcake_fast.search(tmp_path / "again" / "data", out=tmp_path / "again", **settings)
    assert len(typed.trials) == 3


def test_damaged_journal_is_rejected(module: Any, tmp_path: Path) -> None:
    settings = {**SMALL, "vary": {"dim": [4]}, "trials": 1, "quiet": True}
    lightcake_fast.search("family:20", out=tmp_path, **settings)
    journal = tmp_path / "study.journal"
    lines = journal.read_text().splitlines(keepends=True)
    wrong = ("{\n", "[]\n", "{}\n", '{"op_code": 99, "worker_id": "a"}\n', "\xff\n")
    damaged = [[*lines[:2], line, *lines[2:]] for line in wrong]
    damaged.append([line for line in lines if '"folder"' not in line])
    damaged += [
        [re.sub(r'"values": ?\[[^]]*\]', f'"values": {v}', n) for n in lines] for v in ("null", '["x"]')
    ]
    for changed in damaged:
        assert changed != lines
        journal.write_text("".join(changed), encoding="latin-1")
        with pytest.raises(InputError, match=rf"{journal}: expected a journal of Optuna, .*: remove it"):
            lightcake_fast.search("family:20", out=tmp_path, **settings)


def test_stale_lock_is_removed(module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = {**SMALL, "vary": {"dim": [4, 6]}, "sampler": "grid", "quiet": True}
    lightcake_fast.search("family:20", out="s", **{**settings, "trials": 1})
    (tmp_path / "s" / "study.journal.lock").symlink_to("s/study.journal")
    assert len(lightcake_fast.search("family:20", out="s", **settings).trials) == 2


def test_search_accepts_the_data_of_training(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = load_dataset("family:60")
    settings: dict[str, Any] = {**SMALL, "vary": {"dim": [4]}, "trials": 1, "quiet": True}
    rows = [(graph.entities[h], graph.relations[r], graph.entities[t]) for h, r, t in graph.train]
    (tmp_path / "all.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    file, shares = tmp_path / "all.tsv", (0.7, 0.2, 0.1)
    found = lightcake_fast.search(file, out=tmp_path / "a", split=shares, data_dir=tmp_path, **settings)
    listed = lightcake_fast.search(rows, out=tmp_path / "b", split=np.array(shares), **settings)
    assert found.best_value == listed.best_value
    for wrong, error, message in (
        ({"split": shares}, InputError, "expected triples, got a KnowledgeGraph"),
        ({"epoch": 3}, TypeError, r"search: expected known settings, got 'epoch' \(did you mean epochs"),
        ({"vary": ["lr"]}, InputError, "vary: expected a dict from settings to values to try"),
        ({"trials": 2.5}, InputError, "trials: expected an integer of at least 1, got 2.5"),
    ):
        with pytest.raises(error, match=message):
            lightcake_fast.search(graph, out=tmp_path / "c", **{**settings, **wrong})
